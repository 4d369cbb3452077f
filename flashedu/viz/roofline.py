"""Naive and flash attention under the roof of one GPU: how far each is from the ridge, and what that costs in time."""
import math

from flashedu.cost import attention_flops, attention_intensity, naive_intensity, naive_traffic
from flashedu.viz.curves import duration, size
from flashedu.viz.figure import COLOURS
from flashedu.viz.svg import INK, SIZE, Drawing, Plot, line, path, polyline, text

PLOT = Plot((64, 112, 560, 430), (0.5, 5e5), (0.1, 5e3), log="xy")  # FLOP per byte, TFLOP/s
ALGORITHMS = {"naive": (COLOURS["hbm"], 1), "flash": (COLOURS["output"], -1)}  # colour, which way the triangle points
HEIGHT = 490


def attainable_flops(gpu, intensity):
    """FLOP/s in reach at `intensity` FLOP per HBM byte on a `Gpu`: min(bandwidth * intensity, matmul rate)."""
    return min(gpu.hbm_bytes_per_s * intensity, gpu.matmul_flops)


def triangle(x, y, algorithm, hollow=False, r=9):
    """The marker of naive (pointing down) or flash attention (pointing up); hollow for what was measured."""
    colour, way = ALGORITHMS[algorithm]
    d = f"M{x - r:.1f} {y - way * r * 0.8:.1f}h{2 * r}L{x:.1f} {y + way * r:.1f}Z"
    return path(d, "none" if hollow else colour, stroke=colour, stroke_width=2.5)


def _said(intensity):
    return f"{intensity:,.0f}" if intensity >= 100 else f"{intensity:.3g}"


def _roof(gpu):
    x, y = PLOT.x, lambda flops: PLOT.y(flops / 1e12)
    low, high, ridge, (_, _, right, bottom) = *PLOT.ranges["x"], gpu.ridge, PLOT.box
    roof = [(x(i), y(attainable_flops(gpu, i))) for i in (low, ridge, high)]
    (x0, y0), (x1, y1), _ = roof
    start, turn = (x(0.6), y(0.6 * gpu.hbm_bytes_per_s) - 8), math.degrees(math.atan2(y1 - y0, x1 - x0))
    return [
        PLOT.frame("FLOP per byte of HBM traffic", "TFLOP/s", "{:,g}".format, "{:,g}".format),
        polyline(roof, INK, stroke_width=3),
        line(x1, y1, x1, bottom, INK, stroke_width=1.5, stroke_dasharray="6 5"),
        text(*start, f"{gpu.hbm_bytes_per_s / 1e12:.3g} TB/s", transform=f"rotate({turn:.1f} {start[0]:.1f} {start[1]:.1f})"),
        text(right, y1 - 12, f"{gpu.matmul_flops / 1e12:,.0f} TFLOP/s (dense, 16-bit)", anchor="end"),
        text(x1 + 10, bottom - 36, f"ridge: {gpu.ridge:.0f} FLOP per byte"),
        text(x1 - 10, bottom - 12, "memory-bound", anchor="end"),
        text(x1 + 10, bottom - 12, "compute-bound"),
    ]


def _table(columns):
    """Naive and flash side by side: {"naive": {row: words}, ...}."""
    drawn = []
    for x, (name, rows) in zip((818, 944), columns.items()):
        drawn += [triangle(x - 66, 146, name), text(x, 152, name, anchor="end", weight="bold")]
        for i, words in enumerate(rows.values()):
            drawn.append(text(x, 192 + 34 * i, words, anchor="end", weight="bold" if i > 2 else None))
    return drawn + [text(590, 192 + 34 * i, row) for i, row in enumerate(columns["naive"])]


def roofline_drawing(gpu, n, head_dim, heads, kv_heads, itemsize, measured=None, remark=""):
    """Picture of one attention layer, forward, one sequence, under the roof of a `Gpu`: naive and ideal fused attention.

    measured is {"naive": seconds, "flash": seconds} (either may be missing), of these very values on this GPU; remark
    says how it was measured, or why it was not.
    """
    if heads % kv_heads:
        why = f"{heads} query heads cannot share {kv_heads} key-value heads evenly: choose kv_heads that divides heads."
        said = text(30, 50, "No such layer: kv_heads must divide heads", weight="bold", size=SIZE + 3)
        return Drawing("".join([*_roof(gpu), said]), HEIGHT, f"The roof of the {gpu.name}, without points.", why)
    measured = measured or {}
    flops, (io_bytes, intermediate_bytes) = attention_flops(n, n, head_dim, heads), naive_traffic(n, head_dim, heads, kv_heads, itemsize)
    shape = head_dim, heads, kv_heads, itemsize
    intensities = {"naive": naive_intensity(n, *shape), "flash": attention_intensity(n, n, *shape)}
    drawn, columns, seconds = _roof(gpu), {}, {}
    for row, (name, intensity) in enumerate(intensities.items()):
        share, roof = intensity / gpu.ridge, attainable_flops(gpu, intensity)
        x, y, seconds[name] = PLOT.x(intensity), PLOT.y(roof / 1e12), flops / roof
        if name in measured:
            y_measured = PLOT.y(flops / measured[name] / 1e12)
            drawn += [line(x, y, x, y_measured, ALGORITHMS[name][0], stroke_width=2, stroke_dasharray="3 3"),
                      triangle(x, y_measured, name, hollow=True)]
        near = f"{share:.0%} of the ridge" if share < 1 else f"{share:.3g} times the ridge"
        bound = "memory-bound" if share < 1 else "compute-bound"
        drawn += [triangle(x, y, name), triangle(36, 28 + 32 * row, name),
                  text(56, 34 + 32 * row, f"{name}: {_said(intensity)} FLOP per byte, {near}: {bound}", weight="bold", size=SIZE + 3)]
        drawn.append(text(x - 14, y - 6, name, anchor="end") if name == "naive" else text(x + 14, y + 22, name))
        columns[name] = {
            "products": size(flops, "FLOP"), "HBM traffic": size(io_bytes + (intermediate_bytes if name == "naive" else 0)),
            "FLOP per byte": _said(intensity), "time, at best": duration(seconds[name]),
            "measured": duration(measured[name]) if name in measured else "–",
        }
    drawn += _table(columns)
    times = f"{seconds['naive'] / seconds['flash']:.3g} times as fast"
    drawn += [text(590, 364, f"flash at best {times}", weight="bold"),
              text(590, 402, "filled: at best, on the roof"), text(590, 428, "hollow: measured on an H200")]
    caption = (
        f"One layer, forward, no mask, N = {n:,}, D = {head_dim}, {heads} query and {kv_heads} key-value heads, on the {gpu.name}. At best: naive "
        f"{duration(seconds['naive'])}, flash {duration(seconds['flash'])}, {times} with the same operations.")
    note = remark
    if itemsize > 2:
        note = "4 bytes double the traffic. The roof drawn is still that of 16-bit products; float32 products are slower, so their ridge lies further left."
    elif intermediate_bytes // 2 > gpu.hbm_bytes:
        note = f"S and P together are {size(intermediate_bytes // 2)}, more than the {gpu.name} has: naive attention does not run at all."
    return Drawing("".join(drawn), HEIGHT, caption, note)
