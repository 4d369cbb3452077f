"""What runs at the same time in FlashAttention 2 and 3, against the speed of exp and the number of buffers."""
from flashedu.demos.demo import Demo, counter, slider, switch
from flashedu.viz.overlap import exp_share, overlap_drawing

HEAD_DIMS = [256, 128, 64, 32]
BETWEEN = [0.1, 0.75, 1.5]  # and what no usual head dimension gives
LOADS = [0.25, 0.5, 0.75, 1.0, 1.5]


def overlap(head_dim=128, load=0.75, stages=2, tiles=4, ping_pong=True, inside=False):
    """A widget: sliders for exp, loads, buffers and key tiles over two timelines of one multiprocessor."""
    ratios = {exp_share(d): f"{exp_share(d):.2f} (D={d})" for d in HEAD_DIMS} | {ratio: f"{ratio:.2f}" for ratio in BETWEEN}
    controls = {
        "softmax": slider("exp / matmul time", [(ratios[ratio], ratio) for ratio in sorted(ratios)], exp_share(head_dim)),
        "stages": counter("stages (buffers)", stages, 4, least=1),
        "load": slider("load / matmul time", LOADS, load),
        "tiles": counter("key tiles", tiles, 8, least=4),
        "ping_pong": switch("ping-pong: two consumers in turn", ping_pong),
        "inside": switch("overlap inside a consumer (Algorithm 2)", inside),
    }
    return Demo(overlap_drawing, controls, moves="softmax")
