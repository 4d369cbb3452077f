"""Which tiles a causal mask leaves, against N and the block sizes."""
from flashedu.demos.demo import Demo, slider
from flashedu.viz.causal import causal_tiles_drawing

LENGTHS = [128, 256, 512, 1000, 1024, 2048, 4096, 8192]
BLOCKS = [16, 32, 64, 96, 128, 256, 512]


def causal_tiles(n_q=1024, n_k=1024, block_q=128, block_k=128):
    """A widget: sliders for queries, keys and block sizes over the square of scores."""
    controls = {
        "n_q": slider("queries (rows)", LENGTHS, n_q),
        "n_k": slider("keys (columns)", LENGTHS, n_k),
        "block_q": slider("block_q (rows)", BLOCKS, block_q),
        "block_k": slider("block_k (columns)", BLOCKS, block_k),
    }
    return Demo(causal_tiles_drawing, controls, moves="block_q")
