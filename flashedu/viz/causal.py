"""Under a causal mask: which tiles are full, which diagonal, which skipped, and the share of the work that is saved."""
from flashedu.cost import tile_counts
from flashedu.viz.figure import COLOURS
from flashedu.viz.svg import FAINT, PAPER, SIZE, Drawing, hatch, path, rect, text
from flashedu.viz.tiles import DIAGONAL, FULL, SKIPPED, tile_kinds

SIDE = 420  # of the square, or its longer side
MOST_TILES = 4096  # drawn one by one; more would be smaller than a pixel of the projector


def causal_tiles_drawing(n_q, n_k, block_q, block_k):
    """Causal tiles: full, diagonal and skipped, and the work that is saved"""
    full, diagonal, skipped = tile_counts(n_q, n_k, block_q, block_k, causal=True)
    tiles = full + diagonal + skipped
    width, height = (SIDE * n / max(n_q, n_k) for n in (n_k, n_q))
    x, y = (lambda j: 60 + width * min(j, n_k) / n_k), (lambda i: 50 + height * min(i, n_q) / n_q)
    stripes, fill = hatch(COLOURS["scores"], "flashedu-diagonal")
    drawn = [stripes, text(60, 34, f"keys: {n_k:,}"), text(44, 50, f"queries: {n_q:,}", anchor="end", transform="rotate(-90 44 50)")]
    surfaces = {FULL: COLOURS["scores"], DIAGONAL: fill, SKIPPED: "none"}
    if tiles <= MOST_TILES:
        kinds = tile_kinds(n_q, n_k, block_q, block_k, causal=True)
        for kind, surface in surfaces.items():
            corners = ((x(j * block_k), y(i * block_q), x((j + 1) * block_k), y((i + 1) * block_q)) for i, j in zip(*(kinds == kind).nonzero()))
            d = "".join(f"M{a:.1f} {b:.1f}H{c:.1f}V{e:.1f}H{a:.1f}Z" for a, b, c, e in corners)
            drawn.append(path(d, surface, stroke=FAINT if kind == SKIPPED else PAPER, stroke_width=1) if d else "")
    else:
        drawn.append(rect(60, 50, width, height, "none", stroke=FAINT))
    row = 90
    for kind, count, name in ((FULL, full, "full: no mask needed"), (DIAGONAL, diagonal, "diagonal: masked inside"), (SKIPPED, skipped, "skipped: never loaded")):
        drawn += [rect(540, row - 18, 26, 26, surfaces[kind], stroke=FAINT), text(578, row + 2, f"{count:,} {name}")]
        row += 40
    saved = skipped / tiles
    drawn += [text(540, row + 34, f"{saved:.1%} of the tiles are saved", weight="bold", size=SIZE + 5),
              text(540, row + 66, f"{diagonal / max(1, full + diagonal):.1%} of the others need a mask")]
    note = ""
    if block_q >= n_q and block_k >= n_k:
        note = "One tile holds everything, so nothing can be skipped: choose blocks smaller than N."
    elif tiles > MOST_TILES:
        note = f"{tiles:,} tiles are too many to draw one by one; the counts are exact."
    elif n_q > n_k:
        note = f"The first {n_q - n_k:,} queries see no key: their output is 0."
    caption = (
        f"{n_q:,} queries and {n_k:,} keys in tiles of {block_q} x {block_k}: {full:,} full, {diagonal:,} diagonal and {skipped:,} "
        f"skipped tiles, {saved:.1%} saved. The mask alone would save {_masked_share(n_q, n_k):.1%}: tiles of one score."
    )
    return Drawing("".join(drawn), 500, caption, note)


def _masked_share(n_q, n_k):
    """The share of the (n_q, n_k) scores that a bottom-right mask removes."""
    _, seen_whole, skipped = tile_counts(n_q, n_k, 1, 1, causal=True)
    return skipped / (n_q * n_k)
