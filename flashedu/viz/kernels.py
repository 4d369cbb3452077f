"""What a kernel touches, and what it asks of a GPU."""

from flashedu.hardware import KIB
from flashedu.viz.figure import COLOURS, Picture, drawing, new_figure


@drawing
def memory_strip(rows, n, block):
    """Where tiles of `block` elements land, one a row, when rows of n elements lie one after the other in memory."""
    figure, axes = new_figure(figsize=(7.5, 1.3 + 0.34 * rows))
    end = rows * n
    axes.axvspan(end, end + block, color=COLOURS["masked"], alpha=0.25, linewidth=0)
    axes.text(end + block, -0.75, "another tensor", ha="right", va="center", fontsize=10)
    for row in range(rows):
        own, past = (COLOURS["output"], ""), (COLOURS["hbm"], "///")
        for start, width, (colour, hatch) in ((row * n, n, own), (row * n + n, block - n, past)):
            axes.barh(row, width, left=start, height=0.66, color=colour, hatch=hatch, edgecolor="white", linewidth=1)
    axes.set(
        xlim=(0, end + block), ylim=(rows - 0.4, -1.1), xticks=range(0, end + 1, n), yticks=range(rows),
        xlabel="address, in elements from the start of the matrix; lines where a row begins", ylabel="program",
    )
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", alpha=0.8)
    return Picture(
        figure,
        f"Tiles of {block} elements over rows of {n}. Plain: the row of the program. Hatched: the {block - n} elements past its end, "
        "which are the beginning of the next row, and for the last program those of another tensor.",
        f"{rows} bars of {block} elements, one below the other, each beginning {n} elements further right than the one above it, so that "
        f"the last {block - n} elements of each lie over the first of the next.",
    )


@drawing
def what_fits(kernels):
    """Shared memory of compiled kernels against the limit of their GPU.

    Takes rows (name of the GPU, kernel), a kernel with BLOCK_Q and BLOCK_K in `constants`, `shared_bytes`,
    `shared_limit_bytes` and `fits`.
    """
    figure, axes = new_figure(figsize=(7.5, 1.0 + 0.32 * len(kernels)))
    told, ys, before, y = [], [], None, -1.0
    for gpu, kernel in kernels:
        y += 1.0 if gpu == before else 1.5  # a gap between GPUs
        before = gpu
        ys.append(y)
        colour, hatch, word = (COLOURS["sram"], "", "") if kernel.fits else (COLOURS["hbm"], "///", ": does not fit")
        axes.barh(y, kernel.shared_bytes / KIB, height=0.7, color=colour, hatch=hatch, edgecolor="white", linewidth=0)
        limit = kernel.shared_limit_bytes / KIB
        axes.plot((limit, limit), (y - 0.5, y + 0.5), color=COLOURS["text"], linewidth=2.5)
        right = max(limit, kernel.shared_bytes / KIB)
        axes.annotate(f"{kernel.shared_bytes / KIB:.0f} of {limit:.0f}{word}", (right, y), (6, 0), textcoords="offset points", va="center", fontsize=10)
        told.append(f"{gpu} {_tile(kernel)}: {kernel.shared_bytes:,} of {kernel.shared_limit_bytes:,} bytes")
    axes.set(
        yticks=ys, yticklabels=[f"{gpu}  {_tile(kernel)}" for gpu, kernel in kernels], ylim=(y + 0.7, -0.3),
        xlim=(0, 1.25 * max(kernel.shared_limit_bytes for _, kernel in kernels) / KIB), xlabel="shared memory of one block (KiB)",
    )
    axes.grid(axis="y", visible=False)
    return Picture(
        figure,
        "Shared memory that the compiled kernel asks for, as bars, and the most that one block may have on that GPU, as vertical marks. "
        "A hatched bar is a kernel that the GPU refuses to start.",
        "Shared memory asked for: " + "; ".join(told) + ".",
    )


def _tile(kernel):
    return f"{kernel.constants['BLOCK_Q']} x {kernel.constants['BLOCK_K']}"


CONTENDERS = {  # label, colour, marker, line
    "flashedu": ("this package", "output", "^", "-"),
    "cudnn": ("cuDNN", "query", "o", "-"),
    "fa2": ("FlashAttention-2", "key", "s", "--"),
    "flex": ("FlexAttention", "value", "D", "-."),
    "efficient": ("memory-efficient", "masked", "x", ":"),
    "naive": ("naive", "hbm", "v", "-"),
}


@drawing
def speeds(rows, what):
    """The speed of attention kernels against N, as a share of the matrix product that was timed with them.

    Takes rows of a result of `flashedu.bench.speed` (of one direction and head dimension), and what they are, in words.
    """
    figure, panels = new_figure(1, 2, figsize=(8.2, 4.0), sharex=True, sharey=True)
    told = []
    for axes, causal in zip(panels, (False, True)):
        for name, (label, colour, marker, line) in CONTENDERS.items():
            points = sorted((row["n"], row["of_matmul"]) for row in rows
                            if (row["contender"], row["causal"]) == (name, causal) and "of_matmul" in row)
            if points:
                width = 3 if name == "flashedu" else 1.7
                axes.plot(*zip(*points), line, color=COLOURS[colour], marker=marker, markersize=7, linewidth=width, label=label)
                told.append(f"{label}, {'causal' if causal else 'full'}, {points[-1][0]:,} tokens: {points[-1][1]:.0%}")
        ticks = sorted({row["n"] for row in rows})
        axes.set(xscale="log", title="causal" if causal else "full", xlabel="N, tokens", ylim=(0, 1), xticks=ticks,
                 xticklabels=[f"{n // 1024}k" if n >= 1024 else str(n) for n in ticks])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:.0%}")
    panels[0].set_ylabel("share of the rate of a matrix product")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=10)
    return Picture(
        figure,
        f"{what}: speed against the number of tokens, where 100 % is a large matrix product in the same rounds on the same GPU.",
        "Two panels of lines, full and causal. " + "; ".join(told) + ".",
    )
