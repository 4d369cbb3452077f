"""How many parts of the keys fill a GPU when one token asks, and what is merged then."""
from flashedu.demos.demo import Demo, menu, slider
from flashedu.hardware import GPUS
from flashedu.viz.splits import splits_drawing

SPLITS = [1, 2, 4, 8, 16, 24, 32, 33, 34, 40, 48, 64, 66, 96, 128, 192, 256, 512]
LENGTHS = [(f"{2**e:,}", 2**e) for e in range(9, 18)]
BATCHES = [1, 2, 4, 8, 16, 32, 64]
KV_HEADS = [1, 2, 4, 8, 16, 32]


def splits(parts=8, n=131_072, batch=1, kv_heads=8, gpu="H200"):
    """A widget: sliders for the number of parts and the cache over the places of a GPU."""
    controls = {
        "splits": slider("parts of the keys", SPLITS, parts),
        "n": slider("cache (tokens)", LENGTHS, n),
        "batch": slider("batch (sequences)", BATCHES, batch),
        "kv_heads": slider("kv_heads", KV_HEADS, kv_heads),
        "gpu_name": menu("GPU", list(GPUS), gpu),
    }
    return Demo(splits_drawing, controls, moves="splits")
