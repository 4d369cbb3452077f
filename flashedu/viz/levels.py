"""How many bytes travel at each level of memory, and how many operations each of them pays for."""

from flashedu.viz.figure import COLOURS, Picture, drawing, new_figure

LABEL = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # behind a text that stands on a line
BARS = {  # face, edge, hatch: the colour is the algorithm's; a formula is hollow, what crosses above HBM is striped
    "naive": (COLOURS["hbm"], COLOURS["hbm"], ""),
    "flash": (COLOURS["output"], COLOURS["output"], ""),
    "flash, formula": ("white", COLOURS["output"], ""),
    "flash, above HBM": (COLOURS["output"], "white", "///"),
}


@drawing
def traffic_against_block(block_q, closed_form, measured, naive_form, naive_bytes, least_bytes):
    """HBM traffic against the height of the query tile, with naive attention above and the arrays' own size below.

    Takes block sizes, the closed form's bytes for each, `measured` (a dict block_q -> list of bytes counted on
    `machine`, one for each block_k tried), naive attention's bytes with the same query tiles, and two levels below
    which nobody can go: of three kernels with whole arrays in SRAM, and of one.
    """
    figure, axes = new_figure(figsize=(7.5, 3.7))
    axes.plot(block_q, naive_form, color=COLOURS["hbm"], marker="v", label="naive, the same query tiles")
    axes.plot(block_q, closed_form, color=COLOURS["output"], label="tiled, closed form")
    points = [(b, value) for b, values in measured.items() for value in values]
    axes.plot(
        *zip(*points, strict=True),
        "o",
        color=COLOURS["text"],
        fillstyle="none",
        markersize=9,
        linestyle="none",
        label="tiled, counted by machine",
    )
    axes.axhline(naive_bytes, color=COLOURS["hbm"], linestyle="--", label="naive, all of K, then V, in SRAM")
    axes.axhline(least_bytes, color=COLOURS["output"], linestyle=":", label="tiled, all of K and V in SRAM")
    axes.set(
        xscale="log", yscale="log", xlabel="block_q (rows of a query tile)", ylabel="HBM traffic (bytes)"
    )
    axes.set_xticks(block_q, [str(b) for b in block_q])
    axes.set_xticks([], minor=True)
    axes.legend(loc="upper right", fontsize=10)
    axes.set_ylim(top=20 * naive_bytes)
    return Picture(
        figure,
        "HBM traffic of one head against the query tile's height. The points for different block_k coincide.",
        f"Tiled traffic falls nearly in inverse proportion to block_q from {closed_form[0]:,} to {closed_form[-1]:,} "
        f"bytes; with the same query tiles naive moves {naive_form[0]:,} to {naive_form[-1]:,}. With all of K and V in "
        f"SRAM naive moves {naive_bytes:,}, tiled {least_bytes:,}.",
    )


@drawing
def bytes_by_level(rows):
    """Horizontal bars of bytes. Takes a list of (label, bytes, kind), kind one of BARS."""
    figure, axes = new_figure(figsize=(8, 0.9 + 0.5 * len(rows)))
    most = max(size for _, size, _ in rows)
    for y, (_, size, kind) in enumerate(rows):
        face, edge, hatch = BARS[kind]
        axes.barh(y, size / 1e9, color=face, edgecolor=edge, hatch=hatch, linewidth=1.5, height=0.62)
        axes.text((size + 0.01 * most) / 1e9, y, f"{size / 1e9:.2f} GB", va="center", fontsize=10)
    axes.set(
        xlabel="GB",
        xlim=(0, 1.12 * most / 1e9),
        yticks=range(len(rows)),
        yticklabels=[label for label, _, _ in rows],
        ylim=(len(rows) - 0.5, -0.5),
    )
    axes.grid(axis="y", visible=False)
    return Picture(
        figure,
        "Bytes of one attention layer, at the level of memory that each label names.",
        "; ".join(f"{label}: {size / 1e9:.2f} GB" for label, size, _ in rows) + ".",
    )


@drawing
def intensity_against_block(block_q, intensity, ridges, naive, naive_most, counted):
    """FLOP per byte against block_q, with the ridges (a dict name -> FLOP per byte) that hide the memory.

    `intensity` and `naive` have a value for each block_q; `naive_most` is three kernels' with each array read once,
    `counted` what hardware counters saw at HBM.
    """
    figure, axes = new_figure(figsize=(7.5, 3.9))
    axes.plot(block_q, intensity, marker="^", color=COLOURS["output"], label="tiled, every load from HBM")
    axes.plot(block_q, naive, marker="v", color=COLOURS["hbm"], label="naive, every load from HBM")
    axes.axhline(naive_most, color=COLOURS["hbm"], linestyle=":", label=f"naive, each array once: {naive_most:.0f}")
    axes.axhline(
        counted,
        color=COLOURS["output"],
        linestyle="-.",
        label=f"flash on an H200, counted at HBM: {counted:,.0f}",
    )
    for name, ridge in ridges.items():
        axes.axhline(ridge, color=COLOURS["text"], linestyle="--", linewidth=1)
        axes.text(block_q[0], ridge, f"ridge of {name}: {ridge:.0f}", fontsize=9, va="center", bbox=LABEL)
    axes.set(xscale="log", yscale="log", xlabel="block_q (rows of a query tile)", ylabel="FLOP per HBM byte")
    axes.set_xticks(block_q, [str(b) for b in block_q])
    axes.set_xticks([], minor=True)
    axes.legend(loc="upper right", bbox_to_anchor=(1, 0.93), fontsize=10)
    return Picture(
        figure,
        "Arithmetic intensity of one layer. Below a ridge, memory is the limit; above it, arithmetic.",
        f"Tiled intensity rises from {intensity[0]:.0f} to {intensity[-1]:.0f}; naive with the same tiles from "
        f"{naive[0]:.0f} to {naive[-1]:.0f}, at most {naive_most:.0f}; counted at HBM {counted:.0f}; ridges "
        + ", ".join(f"{name} {ridge:.0f}" for name, ridge in ridges.items())
        + ".",
    )
