"""Tiled attention step by step: where in the square it is, what it has moved, and what SRAM must hold."""
from flashedu.cost import block_sizes, naive_traffic
from flashedu.hardware import KIB, gpu
from flashedu.viz.board import board, tile_at
from flashedu.viz.figure import COLOURS
from flashedu.viz.svg import INK, PAPER, SIZE, WIDTH, Drawing, hatch, line, path, rect, text

SIDE = 290  # of the square
LEFT, TOP, PANEL = 70, 78, 460  # of the square, and where the panel beside it begins
BAR, BAR_TOP, BAR_HEIGHT = WIDTH - 40, 474, 34  # of SRAM
FLOAT32 = 4  # bytes of what is accumulated: S, the output and the row statistics, whatever the inputs
GROWS = {"q": "block_q x D", "k and v": "block_k x D", "S": "block_q x block_k", "the accumulator": "block_q x D"}


def sram_parts(block_q, block_k, head_dim, itemsize):
    """SRAM bytes of each thing that one tile of queries and one of keys need: {"q": .., "k": .., "v": .., "S": .., "acc": .., "m, l": ..}."""
    return {
        "q": block_q * head_dim * itemsize, "k": block_k * head_dim * itemsize, "v": block_k * head_dim * itemsize,
        "S": block_q * block_k * FLOAT32, "acc": block_q * head_dim * FLOAT32, "m, l": 2 * block_q * FLOAT32,
    }


def tiling_drawing(n, head_dim, block_q, block_k, itemsize, gpu_name, step, moved_bytes, total_bytes):
    """Tiling: the N x N square that never exists, and the SRAM that its tiles need

    Takes the HBM bytes of the first `step` tiles and of all of them, for one head.
    """
    naive_bytes = sum(naive_traffic(n, head_dim, 1, 1, itemsize))
    capacity, rows, keys = gpu(gpu_name).block_shared_bytes, min(block_q, n), min(block_k, n)
    parts, formula = sram_parts(rows, keys, head_dim, itemsize), block_sizes(capacity, head_dim, itemsize)
    needed, formula_needs = (sum(p.values()) for p in (parts, sram_parts(*formula, head_dim, itemsize)))
    fits = needed <= capacity
    verdict = "fits" if fits else f"{kib(needed - capacity)} too much"
    passes = f"K and V pass by {'once' if rows == n else f'{-(-n // block_q):,} times'}, Q and O once"
    body = [
        board("flashedu-tiling", LEFT, TOP, SIDE, n, block_q, block_k, step),
        text(20, TOP + SIDE + 26, f"The square, {n:,} x {n:,} scores or {megabytes(n * n * itemsize)}, never exists."),
        _traffic(n, block_q, block_k, step, moved_bytes, total_bytes, naive_bytes),
        text(PANEL, 352, passes if fits else "if these tiles fitted into SRAM"),
        text(20, 434, f"SRAM: needs {kib(needed)}, {gpu_name} has {kib(capacity)}: {verdict}", size=SIZE + 4, weight="bold"),
        _sram(parts, capacity, needed, formula, formula_needs),
    ]
    q_tiles, k_tiles = -(-n // block_q), -(-n // block_k)
    caption = (
        f"After {step:,} of {q_tiles:,} x {k_tiles:,} tiles of {rows} x {keys}, one head has moved {megabytes(moved_bytes)} of {megabytes(total_bytes)}; "
        f"naive attention moves {megabytes(naive_bytes)}. S, accumulator and row statistics are float32 and count as SRAM here, {kib(needed)} in all; "
        "real kernels keep them in registers.")
    note = ""
    if not fits:
        note = _blame(parts, needed, capacity, gpu_name)
    elif max(block_q, block_k) > n:
        note = f"A block larger than N = {n:,} is cut to it."
    elif total_bytes > naive_bytes:
        note = f"K and V are read {-(-n // block_q):,} times, once for each tile of queries: make block_q larger."
    elif n % block_q or n % block_k:
        note = "The last tiles are smaller: no block size has to divide N."
    return Drawing("".join(body), 580, caption, note)


def _traffic(n, block_q, block_k, step, moved_bytes, total_bytes, naive_bytes):
    """The panel beside the square: which tile it is, and bars of HBM bytes."""
    q_tiles, k_tiles, now = -(-n // block_q), -(-n // block_k), tile_at(step, n, block_q, block_k)
    where = f"query tile {now[0] + 1:,} of {q_tiles:,}, key tile {now[1] + 1:,} of {k_tiles:,}" if now else "nothing is loaded yet"
    unit = (WIDTH - 20 - PANEL) / max(total_bytes, naive_bytes)
    return "".join([
        text(PANEL, 38, f"Tile {step:,} of {q_tiles * k_tiles:,}", size=SIZE + 4, weight="bold"), text(PANEL, 64, where),
        text(PANEL, 116, "Bytes between HBM and SRAM, one head", weight="bold"),
        text(PANEL, 146, f"naive, in all: {megabytes(naive_bytes)}"),
        rect(PANEL, 156, naive_bytes * unit, 30, COLOURS["hbm"]),
        text(PANEL, 222, f"tiled, so far: {megabytes(moved_bytes)} of {megabytes(total_bytes)}"),
        rect(PANEL, 232, moved_bytes * unit, 30, COLOURS["output"]),
        rect(PANEL, 232, total_bytes * unit, 30, "none", stroke=COLOURS["output"], stroke_width=2, stroke_dasharray="5 3"),
        text(PANEL, 322, f"{total_bytes / naive_bytes:.0%} of naive's traffic", size=SIZE + 14, weight="bold"),
    ])


def _sram(parts, capacity, needed, formula, formula_needs):
    """The bar of SRAM: its parts, one after the other, the capacity, and what the paper's block sizes would need."""
    unit = BAR / max(1.7 * capacity, needed, formula_needs)
    full, spill = 20 + capacity * unit, hatch(PAPER, "flashedu-tiling-spill")
    statistics = hatch(COLOURS["output"], "flashedu-tiling-statistics")
    colours = dict(zip(parts, [*(COLOURS[thing] for thing in ("query", "key", "value", "scores", "output")), statistics[1]]))
    drawn, x, key = [spill[0], statistics[0], rect(20, BAR_TOP, capacity * unit, BAR_HEIGHT, "none", stroke=INK)], 20, 20
    names = []
    for name, size in parts.items():
        drawn.append(rect(x, BAR_TOP, size * unit, BAR_HEIGHT, colours[name], stroke=PAPER))
        if size * unit > 14 * len(name) + 10:  # a name on its own ground, so that it reads where the bar is striped
            names += [rect(x + size * unit / 2 - 7 * len(name), BAR_TOP + 5, 14 * len(name), 24, colours[name]),
                      text(x + size * unit / 2, BAR_TOP + 23, name, "#fff", weight="bold", anchor="middle")]
        drawn += [rect(key, 554, 16, 16, colours[name]), text(key + 22, 568, f"{name} {kib(size)}")]
        key, x = key + (154 if name != "m, l" else 0), x + size * unit
    if needed > capacity:
        drawn.append(rect(full, BAR_TOP, x - full, BAR_HEIGHT, spill[1], stroke=INK, stroke_width=2))
    x, y = 20 + formula_needs * unit, BAR_TOP + BAR_HEIGHT
    words = f"paper's formula: block_q {formula[0]}, block_k {formula[1]} would need {kib(formula_needs)}"
    return "".join([
        *drawn, *names,
        line(full, BAR_TOP - 10, full, BAR_TOP + BAR_HEIGHT + 4, stroke_width=4),
        _near(full, BAR_TOP - 14, f"capacity of a block {kib(capacity)}"),
        path(f"M{x:.1f} {y + 2}l-8 12h16Z", INK),
        _near(x, y + 32, words),
    ])


def _near(x, y, words):
    """Words in the middle above or below x, or as near to it as the drawing's edges allow."""
    half = 0.3 * SIZE * len(words)
    return text(min(max(x, 20 + half), WIDTH - 20 - half), y, words, anchor="middle")


def _blame(parts, needed, capacity, gpu_name):
    """Which part is the largest, when they do not fit together."""
    sizes = {"q": parts["q"], "k and v": parts["k"] + parts["v"], "S": parts["S"], "the accumulator": parts["acc"]}
    worst = max(sizes, key=sizes.get)
    return (f"Needs {kib(needed)}, but a block of {gpu_name} has {kib(capacity)}. The largest part is {worst}, {kib(sizes[worst])}: "
            f"{GROWS[worst]} elements.")


def kib(size):
    return f"{size / KIB:,.1f}".removesuffix(".0") + " KiB"


def megabytes(size):
    return f"{size / 1e6:,.2f} MB"
