"""What attention keeps for the backward pass of a known model, and the sequence at which a GPU is full."""
from flashedu.demos.demo import Demo, menu, slider
from flashedu.hardware import GPUS
from flashedu.viz.memory import MODELS, memory_drawing

LENGTHS = [(f"{2**e:,}", 2**e) for e in range(7, 21)]
BATCHES = [1, 2, 4, 8, 16, 32, 64]
DTYPES = [("bfloat16 (2 bytes)", 2), ("float32 (4 bytes)", 4)]


def draw(model, gpu, n, batch, itemsize):
    """Memory: what naive and flash attention keep for the backward pass"""
    return memory_drawing(model, GPUS[gpu], n, batch, itemsize)


def memory(model="Llama-3-8B", gpu="H200", n=8192, batch=1, itemsize=2):
    """A widget: menus for the model and the GPU, sliders for the length and the batch, over the bytes that are kept."""
    controls = {
        "model": menu("model", list(MODELS), model),
        "gpu": menu("GPU", list(GPUS), gpu),
        "n": slider("N (tokens)", LENGTHS, n),
        "batch": slider("batch (sequences)", BATCHES, batch),
        "itemsize": menu("dtype", DTYPES, itemsize),
    }
    return Demo(draw, controls, moves="n")
