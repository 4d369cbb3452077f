"""What a function of the learner's did on one input: its error, its memory, and the bytes of its tiles, beside naive attention."""
import textwrap

from flashedu.cost import naive_traffic, tiled_sram, tiled_traffic
from flashedu.hardware import GPUS
from flashedu.viz.figure import COLOURS
from flashedu.viz.svg import FAINT, INK, SIZE, WIDTH, Drawing, Plot, hatch, line, path, rect, text

LEFT, RIGHT, HEIGHT = 336, 820, 520
ITEMSIZE = 4  # float32
LOW, HIGH = 1e-3, 1e3  # of the axis of errors
LETTERS = 94  # of a message in one line


def own_kernel_drawing(name, n, d, block_q, block_k, causal, problem, ratio, peak, naive_ratio, naive_peak):
    """Your function against naive attention: error, memory, bytes

    Takes the sizes (block_q None: all queries at once), and what was found: `problem`, None or (headline, details);
    error / bound and peak memory in bytes, of the function (None where the call failed) and of naive attention.
    """
    stripes, fill = hatch(COLOURS["hbm"], "flashedu-naive")
    headline, details = problem or (f"Exact: its error is {ratio:.2g} of what rounding allows", _praise(peak, n))
    drawn = [stripes, text(20, 40, ("" if problem else "✓ ") + headline, size=SIZE + 7, weight="bold")]
    drawn += [text(20, 70 + 23 * i, words, size=16) for i, words in enumerate(_lines(details))]
    rows_q = block_q or n
    moved = sum(tiled_traffic(n, n, d, rows_q, block_k, ITEMSIZE, causal))
    least, square = naive_traffic(n, d, 1, 1, ITEMSIZE)
    naive_moved, matrix = least + square, n * n * ITEMSIZE
    drawn += _pair(136, "error", "of what rounding may cause", ratio, naive_ratio, 1, "all that rounding explains: 1", fill, _times, (LOW, HIGH))
    most = 1.05 * max(peak or 0, naive_peak, matrix)
    drawn += _pair(266, "memory at the peak", "measured by tracemalloc", peak, naive_peak, matrix, f"one N × N matrix: {_size(matrix)}", fill, _size, (0, most))
    sram = tiled_sram(min(rows_q, n), min(block_k, n), d, ITEMSIZE)
    tiles = f"blocks of {block_k} keys" if block_q is None else f"tiles of {block_q} x {block_k}"
    drawn += _pair(396, "HBM bytes of a kernel", f"with {tiles}", moved, naive_moved, least, f"q, k, v, o once: {_size(least)}", fill, _size,
                   (0, 1.05 * max(moved, naive_moved)))
    last = f"SRAM it needs: {_size(sram)}; an H100 has {_size(GPUS['H100 SXM'].block_shared_bytes)}. Naive attention moves {naive_moved / moved:.2g} times its bytes."
    drawn.append(text(20, 510, last, weight="bold"))
    found = "no result" if ratio is None else f"error {_times(ratio)} of the bound"
    used = "" if peak is None else f", {_size(peak)} at the peak"
    caption = (f"{name}, N = {n}, D = {d}, {tiles}{', causal' if causal else ''}: {found}{used}. Naive attention: error {naive_ratio:.2g} of the bound, "
               f"{_size(naive_peak)} at the peak. {headline}.")
    return Drawing("".join(drawn), HEIGHT, caption, _note(n, d, rows_q, block_k, block_q is None))


def _praise(peak, n):
    share = peak / (n * n * ITEMSIZE)
    if share < 1:
        return f"At its peak it held {share:.0%} of the bytes of an N × N matrix: never the whole one."
    return f"At its peak it held {share:.1f} times the bytes of an N × N matrix."


def _note(n, d, block_q, block_k, online):
    if block_k >= n and block_q >= n:
        return f"One {'block' if online else 'tile'} of {block_k} keys holds all {n}: these are naive attention's steps. Choose smaller blocks."
    if block_k > n or block_q > n:
        return f"A block of {max(block_q, block_k)} is larger than N = {n}: it does what one of {n} does."
    if 3 * min(block_q, n) * min(block_k, n) + n * d > 0.75 * n * n:  # S, P and what exp is given, and the output
        return "At these sizes a few arrays of a block's size and the output take as much as N × N: memory tells at larger N and smaller blocks."
    if n % block_k or n % block_q:
        return f"N = {n} is no multiple of the block sizes: the last {'block is' if online else 'tiles are'} smaller."
    return ""


def _pair(y, title, about, mine, naive, limit, limit_words, fill, written, ends):
    """Two bars, the learner's and naive attention's, with a dashed line at `limit`; the axis of errors is logarithmic."""
    log = ends[0] > 0
    plot = Plot((LEFT, y, RIGHT, y + 78), ends, (0, 1), log="x" if log else "")
    drawn = [text(20, y + 22, title, weight="bold"), text(20, y + 46, about, size=16)]
    if log:
        drawn += [text(plot.x(tick), y + 92, f"{tick:g}", anchor="middle", size=16) for tick in (0.001, 0.01, 0.1, 1, 10, 100, 1000)]
    for top, who, value, surface in ((y + 4, "yours", mine, COLOURS["output"]), (y + 42, "naive", naive, fill)):
        drawn.append(text(LEFT - 8, top + 21, who, anchor="end"))
        if value is None:
            drawn.append(text(LEFT + 10, top + 21, "no result"))
            continue
        x = plot.x(min(max(value, ends[0]), ends[1]))
        drawn += [rect(LEFT, top, x - LEFT, 30, surface, stroke=COLOURS["output"] if who == "yours" else COLOURS["hbm"]),
                  text(RIGHT + 22, top + 21, written(value), weight="bold" if who == "yours" else None)]
        if value > ends[1]:
            drawn.append(path(f"M{x:.1f} {top}l16 15l-16 15Z", COLOURS["output"]))  # it goes on beyond the axis
    x = plot.x(limit)
    after = x < (LEFT + RIGHT) / 2 + 60
    drawn += [line(LEFT, y, LEFT, y + 76), line(x, y - 8, x, y + 76, INK, stroke_width=2, stroke_dasharray="5 4"),
              text(x, y - 13, limit_words, size=16, anchor="start" if after else "end"), line(20, y - 32, WIDTH - 20, y - 32, FAINT)]
    return drawn


def _lines(words, most=2):
    lines = textwrap.wrap(" ".join(words.split()), LETTERS) or [""]
    return lines if len(lines) <= most else [*lines[: most - 1], lines[most - 1][: LETTERS - 2] + " …"]


def _times(ratio):
    if ratio == float("inf"):
        return "∞"
    return f"{ratio:,.0f}" if 100 <= ratio < 1e7 else f"{ratio:.2g}"


def _size(n_bytes):
    return f"{n_bytes / 2**20:.2f} MiB" if n_bytes >= 2**20 else f"{n_bytes / 2**10:,.0f} KiB"
