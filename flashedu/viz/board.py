"""The square of scores among Q, K, V and O, at one step of the two loops over its tiles."""
from flashedu.viz.figure import COLOURS
from flashedu.viz.svg import FAINT, INK, PAPER, SIZE, hatch, number, path, rect, text

STRIP, GAP = 22, 6  # thickness of Q, K, V and O, and what lies between them
SMALLEST = 4  # a tile's side from which on its grid is drawn, and of the present tile in any case


def tile_at(step, n, block_q, block_k, queries_outside=True):
    """(query tile, key tile) of the step-th tile in loop order, counted from 1; None before the first."""
    q_tiles, k_tiles = -(-n // block_q), -(-n // block_k)
    if step < 1:
        return None
    outer, inner = divmod(step - 1, k_tiles if queries_outside else q_tiles)
    return (outer, inner) if queries_outside else (inner, outer)


def board(name, left, top, side, n, block_q, block_k, step, queries_outside=True):
    """SVG of the square at (left, top) with K and V above, Q and O beside it; `name` makes its patterns' ids its own.

    The tile of the step is solid, and so are the tiles of q, k, v that it is made of; striped tiles of the square are
    past, and striped rows of O unfinished.
    """
    x, y = (lambda j: left + side * min(j * block_k, n) / n), (lambda i: top + side * min(i * block_q, n) / n)
    q_tiles, k_tiles = -(-n // block_q), -(-n // block_k)
    now = tile_at(step, n, block_q, block_k, queries_outside)
    definitions, stripes = zip(*(hatch(COLOURS[thing], f"{name}-{thing}") for thing in ("scores", "output")))
    drawn = [*definitions, rect(left, top, side, side, "none", stroke=INK, stroke_width=1.5, stroke_dasharray="6 4")]
    if now:
        i, j = now
        past = _box(x(0), y(0), x(k_tiles), y(i)) + _box(x(0), y(i), x(j), y(i + 1))
        if not queries_outside:
            past = _box(x(0), y(0), x(j), y(q_tiles)) + _box(x(j), y(0), x(j + 1), y(i))
        drawn.append(path(past, stripes[0]))
    grid = "".join(f"M{number(x(j))} {top}V{top + side}" for j in range(1, k_tiles)) if side * block_k >= SMALLEST * n else ""
    grid += "".join(f"M{left} {number(y(i))}H{left + side}" for i in range(1, q_tiles)) if side * block_q >= SMALLEST * n else ""
    drawn.append(path(grid, stroke=FAINT, stroke_width=1))
    q_left, o_left, k_top, v_top = left - GAP - STRIP, left + side + GAP, top - 2 * (GAP + STRIP), top - GAP - STRIP
    if now:
        finished, begun = (i + (j + 1 == k_tiles), i + 1) if queries_outside else ((i + 1) * (j + 1 == k_tiles), q_tiles if j else i + 1)
        (x1, x2), (y1, y2) = _visible(x(j), x(j + 1), left + side), _visible(y(i), y(i + 1), top + side)
        drawn += [
            path(_box(x1, y1, x2, y2), COLOURS["scores"], stroke=PAPER, stroke_width=1),
            path(_box(q_left, y1, q_left + STRIP, y2), COLOURS["query"]),
            path(_box(x1, k_top, x2, k_top + STRIP), COLOURS["key"]),
            path(_box(x1, v_top, x2, v_top + STRIP), COLOURS["value"]),
            path(_box(o_left, y(0), o_left + STRIP, y(finished)), COLOURS["output"]),
            path(_box(o_left, y(finished), o_left + STRIP, y(begun)), stripes[1]),
        ]
    for letter, thing, box, spot in (
        ("Q", "query", (q_left, top, STRIP, side), (q_left - 14, top + side / 2)),
        ("K", "key", (left, k_top, side, STRIP), (left - 14, k_top + 17)),
        ("V", "value", (left, v_top, side, STRIP), (left - 14, v_top + 17)),
        ("O", "output", (o_left, top, STRIP, side), (o_left + STRIP + 14, top + side / 2)),
    ):
        drawn += [rect(*box, "none", stroke=COLOURS[thing], stroke_width=2), text(*spot, letter, anchor="middle", weight="bold", size=SIZE + 1)]
    return "".join(drawn)


def _visible(start, stop, end):
    """start and stop, moved apart where they are too near to be seen."""
    start = min(start, end - SMALLEST)
    return start, max(stop, start + SMALLEST)


def _box(x1, y1, x2, y2):
    """A rectangle as commands of a path; nothing where it is empty."""
    return f"M{number(x1)} {number(y1)}H{number(x2)}V{number(y2)}H{number(x1)}Z" if x2 > x1 and y2 > y1 else ""
