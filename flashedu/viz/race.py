"""Two methods on the reader's machine: time and peak memory against N, and against the size of a tile."""

from flashedu.viz.figure import COLOURS, Picture, drawing, new_figure


@drawing
def naive_against_tiled(rows):
    """Time and peak memory against N. Takes a list of (n, naive, tiled), two `bench.Measurement`s."""
    figure, axes = new_figure(1, 2, figsize=(8.5, 3.6))
    for panel, of, label in zip(
        axes,
        (lambda x: x.seconds, lambda x: x.peak_bytes / 1e6),
        ("time (s)", "peak memory (MB)"),
        strict=True,
    ):
        for which, name, colour, marker, style in (
            (1, "naive", "hbm", "v", "--"),
            (2, "tiled", "output", "^", "-"),
        ):
            points = [(row[0], of(row[which])) for row in rows]
            panel.plot(
                *zip(*points, strict=True),
                style,
                marker=marker,
                markersize=8,
                color=COLOURS[colour],
                label=name,
            )
        panel.set(xscale="log", yscale="log", xlabel="N, tokens", ylabel=label)
        panel.set_xticks([row[0] for row in rows], [f"{row[0] // 1024}k" for row in rows])
        panel.set_xticks([], minor=True)
        panel.legend()
    told = [
        f"N = {n}: time {a.seconds / b.seconds:.1f}x, memory {a.peak_bytes / b.peak_bytes:.0f}x"
        for n, a, b in rows
    ]
    return Picture(
        figure,
        "Naive and tiled attention in NumPy on this machine, one head.",
        "Naive over tiled, " + "; ".join(told) + ".",
    )


@drawing
def time_against_block(blocks, seconds, naive_seconds, n):
    """Time of tiled attention against the side of a square tile; the last block is the whole matrix."""
    figure, axes = new_figure(figsize=(7.5, 3.3))
    axes.plot(blocks, seconds, marker="^", markersize=8, color=COLOURS["output"], label="tiled")
    axes.axhline(naive_seconds, color=COLOURS["hbm"], linestyle="--", label="naive")
    axes.set(
        xscale="log",
        ylim=(0, 1.1 * max(*seconds, naive_seconds)),
        xlabel="side of a square tile (rows)",
        ylabel="time (s)",
    )
    axes.set_xticks(blocks, [f"{b}" for b in blocks])
    axes.set_xticks([], minor=True)
    axes.legend()
    best = blocks[seconds.index(min(seconds))]
    return Picture(
        figure,
        f"Time of one head at N = {n} against the tile's side: left many small tiles, right the whole matrix.",
        f"Time against block size from {blocks[0]} to {blocks[-1]}; "
        f"the fastest is {best}, naive takes {naive_seconds:.2f} s.",
    )
