"""How many bytes travel at each level of memory, and how many operations each of them pays for."""

from flashedu.viz.figure import COLOURS, Picture, new_figure

LABEL = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # behind a text that stands on a line


def traffic_against_block(block_q, closed_form, measured, naive_bytes, least_bytes):
    """HBM traffic against the height of the query tile, with naive attention above and the arrays' own size below.

    Takes block sizes, the closed form's bytes for each, `measured` (a dict block_q -> list of bytes counted on
    `machine`, one for each block_k tried), and two levels to compare with.
    """
    figure, axes = new_figure(figsize=(7.5, 3.7))
    axes.plot(block_q, closed_form, color=COLOURS["sram"], label="closed form")
    points = [(b, value) for b, values in measured.items() for value in values]
    axes.plot(
        *zip(*points, strict=True),
        "o",
        color=COLOURS["text"],
        fillstyle="none",
        markersize=9,
        linestyle="none",
        label="counted by machine",
    )
    axes.axhline(naive_bytes, color=COLOURS["hbm"], linestyle="--", label="naive: S and P through HBM")
    axes.axhline(least_bytes, color=COLOURS["output"], linestyle=":", label="q, k, v, o, lse once")
    axes.set(
        xscale="log", yscale="log", xlabel="block_q (rows of a query tile)", ylabel="HBM traffic (bytes)"
    )
    axes.set_xticks(block_q, [str(b) for b in block_q])
    axes.set_xticks([], minor=True)
    axes.legend(loc="upper right", fontsize=10, frameon=False)
    axes.set_ylim(top=8 * naive_bytes)
    return Picture(
        figure,
        "HBM traffic of one head against the query tile's height. The points for different block_k coincide.",
        f"Traffic falls in proportion to block_q from {closed_form[0]:,} to {closed_form[-1]:,} bytes; naive moves "
        f"{naive_bytes:,}, the arrays alone are {least_bytes:,}.",
    )


def bytes_by_level(rows):
    """Horizontal bars of bytes on a logarithmic axis. Takes a list of (label, bytes, kind), kind "hbm" or "sram"."""
    figure, axes = new_figure(figsize=(8, 0.9 + 0.5 * len(rows)))
    for y, (_, size, kind) in enumerate(rows):
        axes.barh(y, size, color=COLOURS[kind], height=0.62)
        axes.text(size * 1.06, y, f"{size / 1e9:.2f} GB", va="center", fontsize=10)
    axes.set(
        xscale="log",
        xlabel="bytes (logarithmic)",
        yticks=range(len(rows)),
        yticklabels=[label for label, _, _ in rows],
        ylim=(len(rows) - 0.5, -0.5),
    )
    axes.set_xlim(min(size for _, size, _ in rows) / 3, max(size for _, size, _ in rows) * 4)
    axes.grid(axis="y", visible=False)
    return Picture(
        figure,
        "Bytes of one attention layer, at the level of memory that each label names.",
        "; ".join(f"{label}: {size / 1e9:.2f} GB" for label, size, _ in rows) + ".",
    )


def intensity_against_block(block_q, intensity, ridges, naive_intensity, counted):
    """FLOP per byte against block_q, with the ridges (a dict name -> FLOP per byte) that hide the memory.

    `naive_intensity` is three kernels' value, `counted` what hardware counters saw at HBM.
    """
    figure, axes = new_figure(figsize=(7.5, 3.9))
    axes.plot(block_q, intensity, marker="o", color=COLOURS["sram"], label="tiled, every load from HBM")
    axes.axhline(naive_intensity, color=COLOURS["hbm"], linestyle=":", label=f"naive: {naive_intensity:.0f}")
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
    axes.legend(loc="upper right", bbox_to_anchor=(1, 0.93), fontsize=10, frameon=False)
    return Picture(
        figure,
        "Arithmetic intensity of one layer. Below a ridge, memory is the limit; above it, arithmetic.",
        f"Tiled intensity rises from {intensity[0]:.0f} to {intensity[-1]:.0f}; naive "
        f"{naive_intensity:.0f}; counted at HBM {counted:.0f}; ridges "
        + ", ".join(f"{name} {ridge:.0f}" for name, ridge in ridges.items())
        + ".",
    )
