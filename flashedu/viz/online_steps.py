"""A row of scores, block by block: the running maximum, the factor that repairs the sum, and the sum without it."""
import numpy as np

from flashedu.viz.figure import COLOURS
from flashedu.viz.svg import FAINT, INK, SIZE, Drawing, Plot, hatch, line, number, path, polyline, rect, text

LEFT, RIGHT, COLUMN, END = 66, 606, 646, 944  # of the plots, and of the column of numbers beside them
HEIGHT = 568


def online_steps_drawing(scores, block_size, step, history):
    """Online softmax: a row of scores block by block

    Takes one row of scores (N,), the block size, the number of blocks seen, and `history`: for each block
    (m, alpha, kept, added), the maximum after it, the factor on the old sum, and the two parts of the new one.
    """
    n, blocks = len(scores), len(history)
    note = f"There are no more than {blocks:,} blocks." if step > blocks else ""
    step = min(step, blocks)
    if block_size >= n:
        note = f"A block of {block_size:,} holds the whole row of {n:,} scores: this is ordinary softmax, in one step."
    seen = min(step * block_size, n)
    drawn, said = _numbers(scores[:seen], step, history, n)
    return Drawing(_plots(scores, block_size, step, history) + drawn, HEIGHT, f"{said} Blocks of {block_size:,}.", note)


def _plots(scores, block_size, step, history):
    """Three plots over one axis of keys: scores with their running maximum, factors, and sums, right and stale."""
    n = len(scores)
    m, alpha, kept, added = np.array(history).T
    stale = added.cumsum()  # what nobody multiplied
    edges = np.minimum(np.arange(len(m) + 1) * block_size, n)
    margin = 0.08 * np.ptp(scores)
    top = Plot((LEFT, 78, RIGHT, 272), (0, n), (min(0, scores.min() - margin), max(0, scores.max() + margin)))
    middle = Plot((LEFT, 318, RIGHT, 372), (0, n), (0, 1))
    bottom = Plot((LEFT, 418, RIGHT, 518), (0, n), (0, 1.08 * max(stale.max(), (kept + added).max())))
    drawn, band = [], ""
    if step:
        a, b = top.x(edges[step - 1]), top.x(edges[step])
        middle_of_it = min(max((a + b) / 2, LEFT + 60), RIGHT - 60)
        band = rect(a, 60, b - a, 458, FAINT, fill_opacity=0.35)
        drawn.append(text(middle_of_it, 55, "this block", anchor="middle", weight="bold"))
    drawn += [plot.frame("", words, x_ticks=[], y_ticks=ticks) for plot, words, ticks in (
        (top, "", None), (middle, "factor on the old sum, exp(m_old − m_new)", [0, 1]), (bottom, "", None))]
    drawn += [text(bottom.x(i), 536, str(i), anchor="middle") for i in (0, n)]
    drawn += [text((LEFT + RIGHT) / 2, 540, "keys, in the order of arrival", anchor="middle")]

    seen, width = edges[step], (RIGHT - LEFT) / n
    bar = lambda i: f"M{top.x(i + 0.5):.1f} {top.y(0):.1f}V{top.y(scores[i]):.1f}"  # noqa: E731
    drawn += [path("".join(map(bar, range(seen, n))), stroke=FAINT, stroke_width=0.3 * width),
              path("".join(map(bar, range(seen))), stroke=COLOURS["scores"], stroke_width=0.72 * width)]
    if step:
        climb = "".join(f"V{top.y(m[b]):.1f}H{top.x(edges[b + 1]):.1f}" for b in range(step))
        drawn.append(path(f"M{LEFT} {top.y(m[0]):.1f}{climb}", stroke=COLOURS["query"], stroke_width=3))
    drawn += [_swatch(LEFT, 32, COLOURS["scores"]), text(LEFT + 24, 32, "score seen"), line(LEFT + 130, 26, LEFT + 144, 26, FAINT, stroke_width=4),
              text(LEFT + 152, 32, "still to come"), line(LEFT + 276, 26, LEFT + 298, 26, COLOURS["query"], stroke_width=3),
              text(LEFT + 306, 32, "running maximum m")]

    stripes, fill = hatch(COLOURS["output"], "flashedu-added")
    columns = {name: [] for name in ("alpha", "kept", "added")}
    for b in range(step):
        x, w = bottom.x(edges[b]) + 0.14 * (bottom.x(edges[b + 1]) - bottom.x(edges[b])), 0.72 * (bottom.x(edges[b + 1]) - bottom.x(edges[b]))
        for name, plot, low, high in (("alpha", middle, 0, alpha[b]), ("kept", bottom, 0, kept[b]), ("added", bottom, kept[b], kept[b] + added[b])):
            if plot.y(low) - plot.y(high) > 0.1:
                columns[name].append(f"M{number(x)} {number(plot.y(low))}h{number(w)}V{number(plot.y(high))}h{number(-w)}Z")
        if len(m) <= 8:
            drawn.append(text(x + w / 2, middle.y(alpha[b]) + (18 if alpha[b] > 0.5 else -5), f"{alpha[b]:.2g}", "#fff" if alpha[b] > 0.5 else INK, 16, "middle"))
    bars = [path("".join(columns["alpha"]), COLOURS["query"]), path("".join(columns["kept"]), COLOURS["output"]),
            path("".join(columns["added"]), fill, stroke=COLOURS["output"], stroke_width=min(1.5, block_size * width / 6))]
    wrong = [(bottom.x((edges[b] + edges[b + 1]) / 2), bottom.y(stale[b])) for b in range(step)]
    crosses = "".join(f"M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10" for x, y in wrong) if len(m) <= 40 else ""
    if wrong:
        bars += [polyline(wrong, COLOURS["hbm"], stroke_width=2, stroke_dasharray="6 4"), path(crosses, stroke=COLOURS["hbm"], stroke_width=2.5)]
    bars += [text(LEFT, 406, "sum l ="), _swatch(LEFT + 74, 406, COLOURS["output"]), text(LEFT + 96, 406, "kept +"), _swatch(LEFT + 164, 406, fill, COLOURS["output"]),
             text(LEFT + 186, 406, "added"), *_stale_sign(LEFT + 262, 406), text(LEFT + 302, 406, "sum without factors")]
    return "".join([stripes, band, *bars[:3], *drawn, *bars[3:]])


def _numbers(seen, step, history, n):
    """(the column of numbers, the caption): what the last block did, and the check against the keys seen at once."""
    if not step:
        rows = [text(COLUMN, 34, f"0 of {len(history):,} blocks seen", size=SIZE + 5, weight="bold"), text(COLUMN, 78, "The state before block 1:"),
                text(COLUMN, 110, "maximum m = −∞, sum l = 0"), text(COLUMN, 154, "Will the maximum rise?"), text(COLUMN, 182, "If so, the sum is repaired.")]
        return "".join(rows), f"Nothing of the row of {n:,} scores has been seen yet."
    m, alpha, kept, added = history[step - 1]
    m_old, old = (history[step - 2][0], sum(history[step - 2][2:])) if step > 1 else (-np.inf, 0.0)
    l, stale = kept + added, sum(part[3] for part in history[:step])
    whole = np.exp(seen - seen.max()).sum()
    moved = "nothing seen before" if step == 1 else "it rises: repair the old sum" if m > m_old else "it stays: nothing to repair"
    column = [
        (118, "old sum l", _short(old), {}), (146, "× exp(m_old − m_new)", _short(alpha), {"fill": INK, "weight": "bold"}),
        (174, "     = kept", _short(kept), {}), (202, "     + this block adds", _short(added), {}), (240, "new sum l", _short(l), {"weight": "bold", "size": SIZE + 3}),
        (306, "          without the factors", _short(stale), {}), (420, f"check: all {len(seen):,} at once", _short(whole), {}),
        (448, "relative difference", f"{abs(l - whole) / whole:.0e}".replace("0e+00", "0"), {}),
    ]
    done = step == len(history)
    too_large = f"{_times(stale / l)} too large" if stale / l >= 1.005 else "right: m never rose"
    rows = [text(COLUMN, 34, f"block {step:,} of {len(history):,}", size=SIZE + 5, weight="bold"), text(COLUMN, 62, "maximum m"),
            text(END, 62, f"{_minus(m_old)} → {_minus(m)}", anchor="end"), text(END, 84, moved, anchor="end", size=16)]
    for y, words, value, look in column:
        rows += [text(COLUMN + 24 * words.startswith("     ") + 14 * words.startswith("          "), y, words.strip(), **look), text(END, y, value, anchor="end", **look)]
    rows += [_swatch(COLUMN, 174, COLOURS["output"]), _swatch(COLUMN, 202, "url(#flashedu-added)", COLOURS["output"]),
             line(COLUMN, 214, END, 214), *_stale_sign(COLUMN, 306), line(COLUMN, 276, END, 276, FAINT), line(COLUMN, 390, END, 390, FAINT),
             text(COLUMN, 344, too_large, size=SIZE + 9, weight="bold"), text(COLUMN, 490, "The sum is exact:" if done else "The sum is exact so far", size=SIZE + 5, weight="bold")]
    rows += [text(COLUMN, 518, "softmax's denominator", size=SIZE + 5, weight="bold")] if done else [text(COLUMN, 518, f"{len(seen):,} of {n:,} keys seen")]
    said = (f"After {len(seen):,} of {n:,} keys the sum is {_short(l)}; without the factors it would be {_short(stale)}, and the largest probability "
            f"{1 / stale:.3f} instead of {1 / l:.3f}.")
    return "".join(rows), said


def _swatch(x, y, fill, stroke=None):
    return rect(x, y - 13, 15, 15, fill, stroke=stroke)


def _stale_sign(x, y):
    """The sign of the sum without factors, beside words whose baseline is at y."""
    return [line(x, y - 6, x + 30, y - 6, COLOURS["hbm"], stroke_width=2, stroke_dasharray="6 4"), path(f"M{x + 10} {y - 11}l10 10m0 -10l-10 10", stroke=COLOURS["hbm"], stroke_width=2.5)]


def _short(x):
    """Three decimals, and a power of ten for what they would not show."""
    return f"{x:.3f}" if x >= 0.001 or x == 0 else f"{x:.1e}"


def _times(x):
    return f"{x:.2f} ×" if x < 10 else f"{x:,.0f} ×"


def _minus(x):
    return "−∞" if x == -np.inf else f"{x:.2f}".replace("-", "−")
