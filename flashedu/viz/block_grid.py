"""The N x N square of scores cut into square blocks: as an SVG for a slider, and as a picture."""

from flashedu.hardware import KIB
from flashedu.viz.figure import COLOURS, WORDS, Picture, drawing, new_figure


def block_facts(n, block, itemsize, sram_bytes):
    """What the drawing says: (number of blocks, bytes of one, bytes of the whole, does one fit in SRAM)."""
    return (
        (-(-n // block)) ** 2,
        block * block * itemsize,
        n * n * itemsize,
        block * block * itemsize <= sram_bytes,
    )


def _sentence(n, block, itemsize, sram_bytes):
    blocks, one, whole, fits = block_facts(n, block, itemsize, sram_bytes)
    return (
        f"{n} x {n} scores of {itemsize} bytes are {whole / KIB:,.0f} KiB. Blocks of {block} x {block}: "
        f"{blocks} of them, {one / KIB:,.1f} KiB each, "
        f"which {'fits' if fits else 'does NOT fit'} in {sram_bytes / KIB:,.0f} KiB of SRAM."
    )


def block_grid_svg(n, block, itemsize=4, sram_bytes=227 * KIB, side=260):
    """An SVG string: the square with its cuts, one block filled, and a sentence that says what is seen."""
    fits = block_facts(n, block, itemsize, sram_bytes)[3]
    colour, one = COLOURS["sram" if fits else "hbm"], side * min(block, n) / n
    cuts = "".join(
        f"M{x:.1f} 0V{side}M0 {x:.1f}H{side}" for x in (side * i / n for i in range(block, n, block))
    )
    text = _sentence(n, block, itemsize, sram_bytes)
    return (
        f'<svg role="img" aria-label="{text}" width="{side + 2}" height="{side + 2}" '
        f'viewBox="-1 -1 {side + 2} {side + 2}">'
        f'<rect width="{one:.1f}" height="{one:.1f}" fill="{colour}"/>'
        f'<path d="{cuts}M0 0H{side}V{side}H0Z" fill="none" stroke="var(--jp-ui-font-color1, #222)"/></svg>'
        f'<p style="color:{WORDS}">{text}</p>'
    )


@drawing
def block_grid(n, block, itemsize=4, sram_bytes=227 * KIB):
    """The same as a Picture."""
    fits = block_facts(n, block, itemsize, sram_bytes)[3]
    figure, ax = new_figure(figsize=(3.6, 3.6))
    ax.fill_between([0, block], 0, block, color=COLOURS["sram" if fits else "hbm"])
    ax.set(
        xlim=(0, n),
        ylim=(n, 0),
        xticks=range(0, n + 1, block),
        yticks=range(0, n + 1, block),
        xlabel="key",
        ylabel="query",
        aspect="equal",
    )
    ax.set_title(f"filled: {block * block * itemsize / KIB:,.0f} KiB", fontsize=11)
    ax.tick_params(labelsize=8, axis="x", rotation=90)
    ax.tick_params(labelsize=8, axis="y")
    ax.grid(color=COLOURS["text"], alpha=1, lw=0.8)
    text = _sentence(n, block, itemsize, sram_bytes)
    return Picture(figure, text, f"A square cut by a grid, one cell filled. {text}")
