"""Under a causal mask: which tiles are full, which diagonal, which skipped, and the share of the work that is saved."""
import functools

from flashedu.cost import tile_counts
from flashedu.viz.figure import COLOURS, SHADE
from flashedu.viz.svg import FAINT, INK, PAPER, SIZE, Drawing, Plot, hatch, line, number, path, polyline, rect, text
from flashedu.viz.tiles import DIAGONAL, EDGE, FULL, KINDS, SKIPPED, tile_kinds

LEFT, TOP, SIDE, THIN = 60, 50, 420, 60  # of the square; its shorter side is not drawn below THIN
FINEST = 3  # the narrowest tiles that are drawn with lines between them
SHORTEST, LONGEST = 128, 8192  # lengths on the curve's axis


def causal_tiles_drawing(n_q, n_k, block_q, block_k):
    """Causal tiles: full, diagonal and skipped, and the work that is saved"""
    full, diagonal, skipped = tile_counts(n_q, n_k, block_q, block_k, causal=True)
    tiles = full + diagonal + skipped
    stripes, fill = hatch(COLOURS["scores"], "flashedu-diagonal")
    width, height = (max(THIN, SIDE * n / max(n_q, n_k)) for n in (n_k, n_q))
    fine = width * min(block_k, n_k) < FINEST * n_k or height * min(block_q, n_q) < FINEST * n_q
    scale = " (not to scale)" if THIN * max(n_q, n_k) > SIDE * min(n_q, n_k) else ""
    drawn = [stripes, text(LEFT, 34, f"keys: {n_k:,}{scale}"), text(44, 50, f"queries: {n_q:,}", anchor="end", transform="rotate(-90 44 50)"),
             *_square(n_q, n_k, block_q, block_k, width, height, fill, lines=not fine)]
    surfaces, counts = {FULL: COLOURS["scores"], DIAGONAL: fill, SKIPPED: "none"}, {FULL: full, DIAGONAL: diagonal, SKIPPED: skipped}
    for row, (kind, name) in enumerate(KINDS.items()):
        y = 14 + 32 * row
        drawn += [rect(540, y, 26, 26, COLOURS["masked"], fill_opacity=SHADE), rect(540, y, 26, 26, surfaces[kind], stroke=FAINT),
                  text(578, y + 19, f"{counts[kind]:,} {name}")]
    drawn += [line(540, 123, 566, 123, INK, stroke_width=2), text(578, 129, EDGE)]
    saved = skipped / tiles
    drawn += [text(540, 172, f"{saved:.1%} of the tiles are saved", weight="bold", size=SIZE + 7),
              text(540, 204, f"{diagonal / max(1, full + diagonal):.1%} of the others need a mask"),
              *_curve(n_q, n_k, block_q, block_k, saved)]
    note = ""
    if block_q >= n_q and block_k >= n_k:
        note = "One tile holds everything, so nothing can be skipped: choose blocks smaller than N."
    elif fine:
        note = f"{tiles:,} tiles are too small for lines between them; shape and counts are exact."
    elif n_q > n_k:
        note = f"The first {n_q - n_k:,} queries see no key: their output is 0."
    elif n_q % block_q or n_k % block_k:
        note = "The tiles in the last row or column are cut off where the lengths end."
    caption = (
        f"{n_q:,} queries and {n_k:,} keys in tiles of {block_q} x {block_k}: {full:,} full, {diagonal:,} diagonal and {skipped:,} "
        f"skipped tiles, {saved:.1%} saved. The mask alone would save {masked_share(n_q, n_k):.1%}: tiles of one score."
    )
    return Drawing("".join(drawn), 500, caption, note)


def _square(n_q, n_k, block_q, block_k, width, height, hatched, lines):
    """The tiles as two surfaces with steps, each one path however many tiles it covers, and the lines between tiles."""
    kinds = tile_kinds(n_q, n_k, block_q, block_k, causal=True)
    rows, columns = kinds.shape
    x = [number(LEFT + width * min(j * block_k, n_k) / n_k) for j in range(columns + 1)]
    y = [number(TOP + height * min(i * block_q, n_q) / n_q) for i in range(rows + 1)]
    unmasked, needed = (found.sum(axis=1).tolist() for found in (kinds == FULL, kinds != SKIPPED))
    down = [f"H{x[stop]}V{y[i + 1]}" for i, stop in enumerate(needed)]
    up = [f"H{x[stop]}V{y[i]}" for i, stop in reversed(list(enumerate(unmasked)))]
    across, along = (range(1, rows), range(1, columns)) if lines else ((), ())
    first = (rows - (kinds != SKIPPED).sum(axis=0)).tolist()  # row from which a column is needed
    everywhere = [f"M{x[0]} {y[i]}H{x[-1]}" for i in across] + [f"M{x[j]} {y[0]}V{y[-1]}" for j in along]
    inside = [f"M{x[0]} {y[i]}H{x[needed[i]]}" for i in across] + [f"M{x[j]} {y[first[j]]}V{y[-1]}" for j in along]
    return [
        rect(LEFT, TOP, width, height, COLOURS["masked"], fill_opacity=SHADE),
        path(f"M{x[0]} {y[0]}H{x[-1]}V{y[-1]}H{x[0]}Z{''.join(everywhere)}", stroke=FAINT),
        path(f"M{x[0]} {y[0]}{''.join(down)}{''.join(up)}Z", hatched),
        path(f"M{x[0]} {y[-1]}{''.join(up)}H{x[0]}Z", COLOURS["scores"]),
        path("".join(inside), stroke=PAPER) if inside else "",
        line(LEFT + width * max(0, n_k - n_q) / n_k, TOP + height * max(0, n_q - n_k) / n_q, LEFT + width, TOP + height, INK, stroke_width=2),
    ]


def _curve(n_q, n_k, block_q, block_k, saved):
    """The share saved against the longer side, both sides growing alike, under what the mask alone would save."""
    plot = Plot((600, 268, 930, 424), (SHORTEST, LONGEST), (0, 1), log="x")
    longer = max(n_q, n_k)
    more, fewer = ("queries", "keys") if n_q > n_k else ("keys", "queries")
    what = "N (queries = keys)" if n_q == n_k else f"{more}, {longer / min(n_q, n_k):.3g} times as many as {fewer}"
    lengths, tiled, masked = _shares(n_q, n_k, block_q, block_k)
    x, y, colour = plot.x(longer), plot.y(saved), COLOURS["scores"]
    return [
        plot.frame(what, "saved (dashed: the mask alone)", "{:,.0f}".format, "{:.0%}".format,
                   x_ticks=[128, 512, 2048, 8192], y_ticks=[0, 0.5, 1]),
        polyline([(plot.x(n), plot.y(share)) for n, share in zip(lengths, masked)], COLOURS["masked"], stroke_width=2, stroke_dasharray="7 5"),
        polyline([(plot.x(n), plot.y(share)) for n, share in zip(lengths, tiled)], colour, stroke_width=3),
        line(x, y, x, plot.box[3], colour, stroke_width=2, stroke_dasharray="2 3"),
        f'<circle cx="{number(x)}" cy="{number(y)}" r="7" fill="{colour}" stroke="{PAPER}" stroke-width="2"/>',
    ]


@functools.lru_cache(maxsize=512)
def _shares(n_q, n_k, block_q, block_k):
    """(lengths, shares of tiles skipped, shares of scores masked): n_q and n_k scaled so that the longer is each length."""
    longer = max(n_q, n_k)
    lengths = sorted({longer, *(round(SHORTEST * (LONGEST / SHORTEST) ** (step / 24)) for step in range(25))})
    sides = [(max(1, round(n * n_q / longer)), max(1, round(n * n_k / longer))) for n in lengths]
    counts = [tile_counts(*side, block_q, block_k, causal=True) for side in sides]
    return lengths, [skipped / (full + diagonal + skipped) for full, diagonal, skipped in counts], [masked_share(*side) for side in sides]


def masked_share(n_q, n_k):
    """The share of the (n_q, n_k) scores that a bottom-right mask removes: 1 - (m (m + 1) / 2 + m max(0, n_k - n_q)) / (n_q n_k), m the shorter side."""
    m = min(n_q, n_k)
    return 1 - (m * (m + 1) / 2 + m * max(0, n_k - n_q)) / (n_q * n_k)
