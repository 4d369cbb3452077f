"""Version 1's loop order beside version 2's, on the same tiles."""
from flashedu.demos.demo import Demo, counter, menu, player, slider
from flashedu.demos.tiling import HEAD_DIMS, TYPES, adjust, tiles
from flashedu.demos.trace import steps
from flashedu.viz.loop_order import loop_order_drawing

LENGTHS = [256, 512, 1000, 1024]
BLOCKS = [64, 100, 128, 256, 512]


def loop_order(n=1024, head_dim=128, block_q=128, block_k=128, itemsize=2, step=21):
    """A widget: sliders for the problem and its tiles, and a step through both loops at once."""
    controls = {
        "step": counter("tile in loop order", step, tiles(n, block_q, block_k)),
        "block_q": slider("block_q (rows)", BLOCKS, block_q),
        "block_k": slider("block_k (keys)", BLOCKS, block_k),
        "n": slider("N (tokens)", LENGTHS, n),
        "head_dim": slider("D (elements)", HEAD_DIMS, head_dim),
        "itemsize": menu("element", TYPES, itemsize),
    }
    return Demo(draw, controls, moves="step", adjust=adjust, extra=[player(controls["step"])])


def draw(step, block_q, block_k, n, head_dim, itemsize):
    """Loop order: version 1 beside version 2, tile by tile"""
    runs = {version: steps(version, n, n, block_q, block_k) for version in (1, 2)}
    now = {version: (run[step].loads, run[step].stores) for version, run in runs.items()}
    moved, totals = ({version: run[t].moved_bytes(head_dim, itemsize) for version, run in runs.items()} for t in (step, -1))
    return loop_order_drawing(n, head_dim, block_q, block_k, itemsize, step, now, moved, totals)
