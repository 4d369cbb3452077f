"""Tiled attention on the tiles of one's choice: the traffic, and whether they fit."""
from flashedu.demos.demo import Demo, counter, menu, player, slider
from flashedu.demos.trace import steps
from flashedu.hardware import GPUS
from flashedu.viz.tiling import tiling_drawing

LENGTHS = [256, 512, 1000, 1024, 2048, 4096]
BLOCKS = [16, 32, 64, 100, 128, 256, 512]
HEAD_DIMS = [32, 64, 96, 128, 256]
TYPES = [("float32, 4 bytes", 4), ("bfloat16, 2 bytes", 2), ("fp8, 1 byte", 1)]


def tiling(n=1024, head_dim=128, block_q=128, block_k=64, itemsize=2, gpu="H100 SXM", step=37):
    """A widget: sliders for the problem and its tiles, and a step through the loops."""
    controls = {
        "step": counter("tile in loop order", step, tiles(n, block_q, block_k)),
        "block_q": slider("block_q (rows)", BLOCKS, block_q),
        "block_k": slider("block_k (keys)", BLOCKS, block_k),
        "n": slider("N (tokens)", LENGTHS, n),
        "head_dim": slider("D (elements)", HEAD_DIMS, head_dim),
        "itemsize": menu("element", TYPES, itemsize),
        "gpu": menu("GPU", list(GPUS), gpu),
    }
    return Demo(draw, controls, moves="step", adjust=adjust, extra=[player(controls["step"])])


def draw(step, block_q, block_k, n, head_dim, itemsize, gpu):
    """Tiling: the N x N square that never exists, and the SRAM that its tiles need"""
    moved, total = (moved_bytes(n, head_dim, block_q, block_k, itemsize, t) for t in (step, tiles(n, block_q, block_k)))
    return tiling_drawing(n, head_dim, block_q, block_k, itemsize, gpu, step, moved, total)


def adjust(controls):
    """As many steps as there are tiles."""
    controls["step"].max = tiles(*(controls[name].value for name in ("n", "block_q", "block_k")))


def tiles(n, block_q, block_k):
    return -(-n // block_q) * -(-n // block_k)


def moved_bytes(n, head_dim, block_q, block_k, itemsize, step):
    """HBM bytes of the first `step` tiles. Without a mask all full tiles of queries move as many, so the machine runs one of them."""
    done, inner = divmod(step, -(-n // block_k))
    rows = [min(block_q, n), n - (-(-n // block_q) - 1) * block_q]  # of a tile of queries, and of the last one
    row = [[sum(s.moved_bytes(head_dim, itemsize)) for s in steps(2, r, n, block_q, block_k)] for r in rows]
    if done == -(-n // block_q):
        return (done - 1) * row[0][-1] + row[1][-1]
    return done * row[0][-1] + row[done == -(-n // block_q) - 1][inner]
