"""What attention keeps between the forward and the backward pass of a model, and how long a sequence a GPU survives."""
from typing import NamedTuple

from flashedu.cost import kept_for_backward
from flashedu.hardware import GIB
from flashedu.viz.curves import size
from flashedu.viz.figure import COLOURS
from flashedu.viz.roofline import ALGORITHMS, triangle
from flashedu.viz.svg import INK, PAPER, SIZE, Drawing, Plot, hatch, line, path, polyline, rect, text

PLOT = Plot((84, 112, 560, 430), (2**7, 2**20), (1e6, 1e16), log="xy")  # tokens, bytes
HEIGHT = 490
ROWS = ["q, k, v", "P (N x N)", "o", "lse"]
LENGTHS = [round(2 ** (e / 2)) for e in range(14, 41)]


class Model(NamedTuple):
    """A model's attention, from its published configuration."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int


# GPT-2: hparams.json of 124M and 1558M (github.com/openai/gpt-2). Llama: config.json of meta-llama/Llama-2-7b,
# Meta-Llama-3-8B, Meta-Llama-3-70B and Llama-3.1-405B (huggingface.co); head_dim is hidden_size / num_attention_heads.
MODELS = {
    "GPT-2 small": Model(12, 12, 12, 64),
    "GPT-2 XL": Model(48, 25, 25, 64),
    "Llama-2-7B": Model(32, 32, 32, 128),
    "Llama-3-8B": Model(32, 32, 8, 128),
    "Llama-3-70B": Model(80, 64, 8, 128),
    "Llama-3.1-405B": Model(126, 128, 8, 128),
}


def kept_bytes(model, n, batch, itemsize):
    """{"naive": {array: bytes}, "flash": {array: bytes}} that one layer keeps for a batch of sequences of n tokens."""
    kept = kept_for_backward(n, model.head_dim, model.heads, model.kv_heads, itemsize)
    qkv, p, o, lse = (batch * n_bytes for n_bytes in kept)
    return {"naive": {"q, k, v": qkv, "P (N x N)": p}, "flash": {"q, k, v": qkv, "o": o, "lse": lse}}


def all_layers_bytes(model, n, batch, itemsize):
    """{"naive": bytes, "flash": bytes} that all layers keep together."""
    return {name: model.layers * sum(arrays.values()) for name, arrays in kept_bytes(model, n, batch, itemsize).items()}


def longest(model, batch, itemsize, capacity_bytes):
    """{"naive": n, "flash": n}: the most tokens for which what all layers keep fits in capacity_bytes; 0 if not even one."""
    found = {}
    for name in ALGORITHMS:
        n, step = 0, 2**32
        while step := step // 2:  # the bytes grow with n: bit by bit, from the highest
            n += step * (all_layers_bytes(model, n + step, batch, itemsize)[name] <= capacity_bytes)
        found[name] = n
    return found


def _axes(gpu):
    """The plot without its curves: what does not fit is hatched."""
    (left, top, right, _), y = PLOT.box, PLOT.y(gpu.hbm_bytes)
    stripes, fill = hatch(COLOURS["masked"], "flashedu-full")
    ticks, sizes = [2**e for e in (7, 10, 13, 16, 19)], [10.0**e for e in (8, 10, 12, 14, 16)]
    return [
        stripes, rect(left, top, right - left, y - top, fill, opacity=0.3),
        PLOT.frame("N (tokens)", "bytes kept by all layers", "{:,}".format, size, ticks, sizes),
        line(left, y, right, y, INK, stroke_width=3),
    ]


def _cross(x, y, r=8):
    return path(f"M{x - r:.1f} {y - r:.1f}l{2 * r} {2 * r}m0 {-2 * r}l{-2 * r} {2 * r}", stroke=INK, stroke_width=3)


def _table(model, kept, most, gpu):
    """Array by array what one layer keeps, and whether all layers fit."""
    drawn = []
    for column, (name, arrays) in zip((806, 944), kept.items()):
        one = sum(arrays.values())
        fits = "fits" if model.layers * one <= gpu.hbm_bytes else "too much"
        rows = [*(size(arrays[key]) if key in arrays else "–" for key in ROWS), size(one), size(model.layers * one), fits]
        drawn += [triangle(column - 66, 140, name), text(column, 146, name, anchor="end", weight="bold")]
        drawn += [text(column, 182 + 32 * i, words, anchor="end", weight="bold" if i > 3 else None) for i, words in enumerate(rows)]
    labels = [*ROWS, "one layer", f"{model.layers} layers", f"in {size(gpu.hbm_bytes)}"]
    return drawn + [text(590, 182 + 32 * i, label) for i, label in enumerate(labels)]


def memory_drawing(name, gpu, n, batch, itemsize):
    """Picture of the bytes that all layers of the model of that name keep, over N, under the capacity of a `Gpu`."""
    model = MODELS[name]
    kept, most = kept_bytes(model, n, batch, itemsize), longest(model, batch, itemsize, gpu.hbm_bytes)
    whole = all_layers_bytes(model, n, batch, itemsize)
    x, (_, top, _, bottom), highest = PLOT.x(n), PLOT.box, PLOT.ranges["y"][1]
    drawn = [*_axes(gpu), line(x, top, x, bottom, INK, stroke_width=1.5, stroke_dasharray="2 4")]
    curves = [(m, all_layers_bytes(model, m, batch, itemsize)) for m in LENGTHS]
    for row, (which, (colour, _)) in enumerate(ALGORITHMS.items()):
        points = [(PLOT.x(m), PLOT.y(y[which])) for m, y in curves if y[which] <= highest]
        drawn.append(polyline(points, colour, stroke_width=3, stroke_dasharray=None if row == 0 else "12 5"))
        if whole[which] <= highest:
            drawn.append(triangle(x, PLOT.y(whole[which]), which))
        if 2**7 <= most[which] <= 2**20:
            drawn.append(_cross(PLOT.x(most[which]), PLOT.y(gpu.hbm_bytes)))
        times = f", {most['flash'] / max(1, most['naive']):.3g} times as many" if row else " tokens"
        drawn += [triangle(36, 28 + 32 * row, which),
                  text(56, 34 + 32 * row, f"{which} fills the {gpu.name} at N = {most[which]:,}{times}", weight="bold", size=SIZE + 3)]
    halo = {"stroke": PAPER, "stroke_width": 5, "paint_order": "stroke"}
    drawn += [text(94, 138, "does not fit:", **halo), text(94, 162, f"{gpu.name}, {size(gpu.hbm_bytes)}", **halo)]
    drawn += [_cross(598, 416), text(616, 422, "the GPU is full"), text(590, 450, "attention alone, without the weights")]
    note = ""
    if whole["naive"] > highest:
        note = f"The {size(whole['naive'])} of naive attention lie above the picture."
    elif whole["flash"] >= whole["naive"]:
        note = f"N is no larger than D = {model.head_dim}, so P is no larger than o, and flash attention saves nothing yet."
    caption = (
        f"{name} ({model.layers} layers, {model.heads} query and {model.kv_heads} key-value heads, D = {model.head_dim}), N = {n:,}, batch {batch}: "
        f"naive attention keeps {size(whole['naive'])}, flash attention {size(whole['flash'])}; the {gpu.name} has {gpu.hbm_bytes // GIB} GiB, "
        f"{size(gpu.hbm_bytes)}. Weights, gradients, the optimizer and the rest of the model are not counted, so a training run ends earlier.")
    return Drawing("".join(drawn + _table(model, kept, most, gpu)), HEIGHT, caption, note)
