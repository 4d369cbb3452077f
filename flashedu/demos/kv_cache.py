"""What a decoding step of a known model reads from its cache, and how long that takes on a chosen GPU."""
from flashedu.demos.demo import Demo, menu, slider
from flashedu.hardware import GPUS
from flashedu.viz.kv_cache import LENGTHS, kv_cache_drawing
from flashedu.viz.memory import MODELS

BATCHES = [1, 2, 4, 8, 16, 32, 64]
DTYPES = [("16 bits (2 bytes)", 2), ("8 bits (1 byte)", 1)]


def draw(model, gpu, n, batch, itemsize):
    """The cache: what a new token has to read"""
    return kv_cache_drawing(model, GPUS[gpu], n, batch, itemsize)


def kv_cache(model="Llama-3-8B", gpu="H200", n=131_072, batch=1, itemsize=2):
    """A widget: menus for the model and the GPU, sliders for the cache's length and the batch, over the bytes that are read."""
    controls = {
        "model": menu("model", list(MODELS), model),
        "gpu": menu("GPU", list(GPUS), gpu),
        "n": slider("tokens in the cache", [(f"{n:,}", n) for n in LENGTHS], n),
        "batch": slider("batch (sequences)", BATCHES, batch),
        "itemsize": menu("cache", DTYPES, itemsize),
    }
    return Demo(draw, controls, moves="n")
