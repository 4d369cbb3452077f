"""Naive and flash attention on the roofline of a chosen GPU, with what was measured on an H200."""
import functools

from flashedu.demos.demo import Demo, menu, slider
from flashedu.hardware import GPUS
from flashedu.results import load
from flashedu.viz.roofline import roofline_drawing

LENGTHS = [(f"{2**e:,}", 2**e) for e in range(7, 17)]
HEAD_DIMS = [64, 80, 128, 256]
HEADS = [1, 2, 4, 8, 12, 16, 32, 64, 128]
KV_HEADS = [1, 2, 4, 8, 12, 16, 32]
DTYPES = [("bfloat16 (2 bytes)", 2), ("float32 (4 bytes)", 4)]
MEASURED_ON = "H200"


@functools.lru_cache
def measurements():
    """{(n, head_dim, heads, kv_heads): ({"naive": seconds, "flash": seconds}, how)}: bfloat16, forward, no mask, one sequence."""
    found = {}
    layer = load("h200_attention_traffic")
    for row in layer["sweep"]:
        seconds = {name: row[name]["time_ms"] / 1e3 for name in ("naive", "flash") if "time_ms" in row[name]}
        key = (row["n"], *(layer["shape"][name] for name in ("head_dim", "heads", "kv_heads")))
        found[key] = seconds, "Measured: flash is torch's FlashAttention-2, naive three kernels of torch, timed as one."
    for row in load("h200_attention_speed")["rows"]:
        name = {"naive": "naive", "flashedu": "flash"}.get(row["contender"])
        if name and row["direction"] == "forward" and not row["causal"] and "time_ms" in row:
            key = row["n"], row["head_dim"], row["heads"], row["heads"]
            how = f"Measured: flash is this course's Triton kernel; the time of a batch of {row['batch']} divided by {row['batch']}."
            found.setdefault(key, ({}, how))[0][name] = row["time_ms"] / 1e3 / row["batch"]
    return found


def draw(gpu, n, head_dim, heads, kv_heads, itemsize):
    """The roofline: naive and flash attention on a GPU"""
    measured, remark = {}, f"Measured points exist for the {MEASURED_ON} only."
    if gpu == MEASURED_ON:
        measured, remark = measurements().get((n, head_dim, heads, kv_heads), ({}, _nearest(head_dim)))
    if itemsize != 2:
        measured = {}
    return roofline_drawing(GPUS[gpu], n, head_dim, heads, kv_heads, itemsize, measured, remark)


def _nearest(head_dim):
    """Which values were measured at this head dimension, in a sentence."""
    heads = sorted({(key[2], key[3], key[0]) for key in measurements() if key[1] == head_dim})
    if not heads:
        return f"No measurement has D = {head_dim}."
    pairs = dict.fromkeys(f"{h} heads with {kv} kv_heads" for h, kv, _ in heads)
    return f"Not measured with these values; measured at D = {head_dim}: {', '.join(pairs)}, N {min(x[2] for x in heads):,} to {max(x[2] for x in heads):,}."


def roofline(gpu=MEASURED_ON, n=8192, head_dim=128, heads=32, kv_heads=8, itemsize=2):
    """A widget: a GPU menu and sliders for the shape of one attention layer over the GPU's roofline."""
    controls = {
        "gpu": menu("GPU", list(GPUS), gpu),
        "n": slider("N (tokens)", LENGTHS, n),
        "head_dim": slider("D (head dimension)", HEAD_DIMS, head_dim),
        "heads": slider("heads (of queries)", HEADS, heads),
        "kv_heads": slider("kv_heads", KV_HEADS, kv_heads),
        "itemsize": menu("dtype", DTYPES, itemsize),
    }
    return Demo(draw, controls, moves="n")
