"""What a new token has to read: the bytes of the cache of keys and values, and the time that this takes at best."""
from flashedu.cost import attention_flops, attention_intensity, kv_cache_bytes
from flashedu.viz.curves import duration, size
from flashedu.viz.figure import COLOURS
from flashedu.viz.memory import MODELS
from flashedu.viz.roofline import attainable_flops
from flashedu.viz.svg import INK, PAPER, SIZE, Drawing, Plot, hatch, line, path, polyline, rect, text

PLOT = Plot((84, 112, 540, 430), (2**10, 2**20), (1e6, 1e15), log="xy")  # tokens in the cache, bytes
HEIGHT = 490
DASHES = {"MHA": "2 5", "model": None, "MQA": "12 5"}
LENGTHS = [2**e for e in range(10, 21)]


def shared(model):
    """{"MHA": kv_heads, "model": .., "MQA": ..}: every query head has keys of its own, as in the model, all heads share one."""
    return {"MHA": model.heads, "model": model.kv_heads, "MQA": 1}


def step(model, kv_heads, gpu, n, batch, itemsize):
    """(bytes, FLOP per byte, seconds at best, what naive attention's S and P add) of one decoding step's attention, all layers.

    One query for each head and sequence meets n keys; what S and P add is a share of the cache's bytes.
    """
    cache_bytes = batch * kv_cache_bytes(n, model.layers, kv_heads, model.head_dim, itemsize)
    intensity = attention_intensity(1, n, model.head_dim, model.heads, kv_heads, itemsize)
    flops = batch * model.layers * attention_flops(1, n, model.head_dim, model.heads)
    s_and_p = batch * model.layers * 4 * model.heads * n * itemsize
    return cache_bytes, intensity, flops / attainable_flops(gpu, intensity), s_and_p / cache_bytes


def _axes(gpu):
    """The plot without its lines: what does not fit is hatched."""
    (left, top, right, _), y = PLOT.box, PLOT.y(gpu.hbm_bytes)
    stripes, fill = hatch(COLOURS["masked"], "flashedu-cache-full")
    ticks, sizes = [2**e for e in (10, 13, 16, 19)], [10.0**e for e in (6, 8, 10, 12, 14)]
    return [
        stripes, rect(left, top, right - left, y - top, fill, opacity=0.3),
        PLOT.frame("tokens in the cache", "bytes of keys and values", "{:,}".format, size, ticks, sizes),
        line(left, y, right, y, INK, stroke_width=3),
    ]


def _square(x, y, r=7):
    return path(f"M{x - r:.1f} {y - r:.1f}h{2 * r}v{2 * r}h{-2 * r}Z", COLOURS["key"])


def _rate(per_second):
    return f"{per_second:.2g}" if per_second < 10 else f"{per_second:,.0f}" if per_second < 1e5 else size(per_second, "").strip()


def kv_cache_drawing(name, gpu, n, batch, itemsize):
    """Picture of the cache's bytes over its length for the model of that name on a `Gpu`, with more and with fewer key heads."""
    model = MODELS[name]
    kv_heads = shared(model)
    steps = {which: step(model, kv, gpu, n, batch, itemsize) for which, kv in kv_heads.items()}
    drawn = [*_axes(gpu), line(PLOT.x(n), PLOT.box[1], PLOT.x(n), PLOT.box[3], INK, stroke_width=1.5, stroke_dasharray="2 4")]
    drawn.append(text(94, 138, f"does not fit: {gpu.name}, {size(gpu.hbm_bytes)}", stroke=PAPER, stroke_width=5, paint_order="stroke"))
    rows = ["kv_heads", "cache", "FLOP / byte", "of the ridge", "at best", "tokens / s", "naive adds", "cache fits"]
    drawn += [text(566, 176 + 30 * i, row) for i, row in enumerate(rows)]
    for column, (which, kv) in zip((770, 858, 944), kv_heads.items()):
        cache_bytes, intensity, seconds, more = steps[which]
        points = [(PLOT.x(m), PLOT.y(step(model, kv, gpu, m, batch, itemsize)[0])) for m in LENGTHS]
        drawn += [polyline(points, COLOURS["key"], stroke_width=3, stroke_dasharray=DASHES[which]), _square(PLOT.x(n), PLOT.y(cache_bytes))]
        said = [kv, size(cache_bytes), f"{intensity:.3g}", f"{intensity / gpu.ridge:.1%}",
                duration(seconds), _rate(batch / seconds), f"{more:.0%}", "yes" if cache_bytes <= gpu.hbm_bytes else "no"]
        drawn += [text(column, 144, which, anchor="end", weight="bold")]
        drawn += [text(column, 176 + 30 * i, words, anchor="end", weight="bold" if i in (1, 4) else None) for i, words in enumerate(said)]
    for i, (which, means) in enumerate({"MHA": "own keys for every head", "model": "as in the model", "MQA": "the same keys for all"}.items()):
        drawn += [line(566, 418 + 26 * i, 610, 418 + 26 * i, COLOURS["key"], stroke_width=3, stroke_dasharray=DASHES[which]), text(620, 424 + 26 * i, f"{which}: {means}")]
    cache_bytes, intensity, seconds, more = steps["model"]
    drawn += [text(20, 34, f"A decoding step of {name} reads {size(cache_bytes)}: {duration(seconds)} at best", weight="bold", size=SIZE + 3),
              text(20, 66, f"{intensity:.3g} FLOP per byte, where the {gpu.name} could do {gpu.ridge:.0f}", weight="bold", size=SIZE + 3)]
    caption = (
        f"One decoding step of {name} on the {gpu.name}, attention alone: {n:,} tokens in the cache, batch {batch}, {model.layers} layers, {model.heads} query heads, "
        f"{model.kv_heads} for keys, D = {model.head_dim}. {size(cache_bytes)} are read, with any exact kernel; naive attention moves {more:.0%} more, its S and P. "
        "The weights have to be read, too.")
    note = f"{name} has as many key heads as query heads: its line is that of MHA." if model.heads == model.kv_heads else ""
    return Drawing("".join(drawn), HEIGHT, caption, note)
