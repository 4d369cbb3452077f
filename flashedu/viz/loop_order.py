"""The two loop orders side by side, on the same tiles."""
from flashedu.cost import naive_traffic, tiled_sram
from flashedu.viz.board import board, tile_at
from flashedu.viz.figure import COLOURS
from flashedu.viz.svg import INK, SIZE, Drawing, hatch, rect, text
from flashedu.viz.tiling import kib, megabytes

SIDE, TOP = 200, 96  # of the squares
BOARDS = {1: 64, 2: 544}  # where they begin
BARS, BARS_END, ROW = 110, 690, 42  # the bars of traffic, and their distance from row to row
ORDERS = {1: "Version 1: keys outside", 2: "Version 2: queries outside"}


def loop_order_drawing(n, head_dim, block_q, block_k, itemsize, step, now, moved, totals):
    """Loop order: version 1 beside version 2, tile by tile

    `now`, `moved` and `totals` are dicts over the versions 1 and 2: the names (loads, stores) of the present step, and the
    HBM bytes (read_bytes, written_bytes) so far and in all, of one head.
    """
    q_tiles, k_tiles = -(-n // block_q), -(-n // block_k)
    naive_bytes, (first, second) = sum(naive_traffic(n, head_dim, 1, 1, itemsize)), (sum(totals[version]) for version in (1, 2))
    body = []
    for version, left in BOARDS.items():
        place = tile_at(step, n, block_q, block_k, version == 2)
        loads, stores = (", ".join(names) or "nothing" for names in now[version])
        right = left + SIDE + 58
        body += [
            text(left - 44, 26, ORDERS[version], size=SIZE + 3, weight="bold"),
            board(f"flashedu-order-{version}", left, TOP, SIDE, n, block_q, block_k, step, version == 2),
            text(right, TOP + 14, f"q tile {place[0] + 1} of {q_tiles}" if place else "not begun"),
            text(right, TOP + 40, f"k tile {place[1] + 1} of {k_tiles}" if place else ""),
            text(right, TOP + 84, "reads from HBM"), text(right, TOP + 108, loads, weight="bold"),
            text(right, TOP + 146, "writes to HBM"), text(right, TOP + 170, stores, weight="bold"),
        ]
    body += [_bars(moved, totals, naive_bytes), _verdict(first, second, totals)]
    caption = (
        f"N = {n:,}, D = {head_dim}. After {step:,} of {q_tiles * k_tiles:,} tiles of {min(block_q, n)} x {min(block_k, n)}. In all, version 1 reads {megabytes(totals[1][0])} and writes "
        f"{megabytes(totals[1][1])}; version 2 reads {megabytes(totals[2][0])} and writes {megabytes(totals[2][1])}. "
        f"Both need the same SRAM, {kib(tiled_sram(min(block_q, n), min(block_k, n), head_dim, itemsize))} with {itemsize} bytes for every element.")
    note = ""
    if q_tiles * k_tiles == 1:
        note = "One tile holds everything, so there is no order: choose blocks smaller than N."
    elif max(block_q, block_k) > n:
        note = f"A block larger than N = {n:,} is cut to it."
    elif first > naive_bytes:
        note = (f"Version 1 moves more than naive attention: a row and a tile of keys cost it 3 x {head_dim} elements of q and o, naive "
                f"4 x {block_k} of S and P.")
    elif second > first:
        note = f"Version 2 reads K and V {q_tiles} times, version 1 the state only {k_tiles} times: make block_q larger."
    return Drawing("".join(body), 546, caption, note)


def _bars(moved, totals, naive_bytes):
    """A row for each version, solid what is read and striped what is written, in the frame of the whole run; and naive's."""
    unit = (BARS_END - BARS) / max(naive_bytes, *(sum(total) for total in totals.values()))
    stripes, written = hatch(COLOURS["output"], "flashedu-order-written")
    y = TOP + SIDE + 54
    drawn = [stripes, text(20, y - 22, "Bytes between HBM and SRAM, one head", weight="bold"),
             rect(430, y - 37, 18, 18, COLOURS["output"]), text(456, y - 22, "read"),
             rect(520, y - 37, 18, 18, written, stroke=COLOURS["output"]), text(546, y - 22, "written"),
             rect(640, y - 37, 18, 18, "none", stroke=INK, stroke_dasharray="5 3"), text(666, y - 22, "still to come")]
    for version, (read, write) in moved.items():
        total = sum(totals[version])
        drawn += [
            text(BARS - 12, y + 22, f"version {version}", anchor="end"),
            rect(BARS, y, read * unit, 30, COLOURS["output"]),
            rect(BARS + read * unit, y, write * unit, 30, written, stroke=COLOURS["output"]),
            rect(BARS, y, total * unit, 30, "none", stroke=INK, stroke_dasharray="5 3"),
            text(BARS_END + 12, y + 22, f"{megabytes(read + write)} of {megabytes(total)}"),
        ]
        y += ROW
    drawn += [text(BARS - 12, y + 22, "naive", anchor="end"), rect(BARS, y, naive_bytes * unit, 30, COLOURS["hbm"]),
              text(BARS_END + 12, y + 22, megabytes(naive_bytes))]
    return "".join(drawn)


def _verdict(first, second, totals):
    """Which version moves more bytes, and how much more version 1 writes."""
    more, ratio = (1, first / second) if first >= second else (2, second / first)
    words = f"Version {more} moves {ratio:.1f} times the bytes of version {3 - more}"
    if f"{ratio:.1f}" == "1.0":
        words = "Both versions move about as many bytes"
    writes = f"Version 1 writes {totals[1][1] / totals[2][1]:.1f} times as much as version 2: o, m, l leave with every tile of keys."
    return text(20, 506, words, size=SIZE + 7, weight="bold") + text(20, 534, writes)
