"""Measures where flash attention does not help, on a GPU: short sequences, long ones, one query over a cache, head dimensions.

    python tools/measure_limits.py --out flashedu/results
    python tools/measure_limits.py --out DIR --parts cache heads --quick

It needs a CUDA GPU, torch and triton. Each part writes a file of its own; with --quick they are of a few sizes, in seconds.
"""
import argparse
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import measure_decode

from flashedu.bench import contenders, ladder, speed
from flashedu.bench.result import result, write
from flashedu.bench.rounds import MOST_CALLS, interleave
from flashedu.cost import attention_flop_share, attention_flops, kv_cache_bytes

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, FFN, ITEMSIZE = 32, 8, 128, 4096, 14_336, 2  # Llama-3-8B, bfloat16
SHARED = (32, 8, 1)  # heads of keys: each query head its own, the model's, one for all
TOKENS = 16_384  # in the batch of a short sequence
LONG_HEADS = 4
WIDE_BATCH, WIDE_HEADS, WIDE_N = 4, 16, 4096  # for the head dimensions
HEAD_DIMS = (40, 48, 50, 56, 64, 72, 80, 88, 96, 100, 104, 112, 120, 128, *range(144, 257, 16))
SIZES = {
    "short": tuple(2**e for e in range(7, 15)), "long": tuple(2**e for e in range(13, 20)),
    "cache": tuple(2**e for e in range(10, 18)), "heads": HEAD_DIMS,
}
QUICK = {"short": (128, 2048), "long": (8192, 16_384), "cache": (1024, 8192), "heads": (64, 72)}
SUBJECTS = {"short": "short_sequences", "long": "long_sequences", "cache": "kv_cache", "heads": "head_dims"}
ROUNDS, LONG_ROUNDS, CACHE_ROUNDS, SLOT_MS, CACHE_SLOT_MS = 5, 3, 7, 10, 5

SAMPLES = (
    "For every problem there are several rounds, and in each of them every contender is timed once, one after the other; each round begins with another "
    "contender. A sample is the mean over `calls` calls in a row, as many as take about {} ms, at most {}, between two CUDA events; the device is kept busy "
    "with matrix products while they are queued, so that Python's share is not in it. time_ms is the median of the samples, time_ms_min and time_ms_max "
    "are the extremes. out_of_memory, refused: why a contender has no time, what it raised, with the warnings before it."
)
TORCH = "torch's scaled_dot_product_attention with that backend alone allowed: FLASH_ATTENTION (FlashAttention-2), CUDNN_ATTENTION, EFFICIENT_ATTENTION."
FLASH = 'flashedu.kernels.flash_attention(backend="triton").'
NAIVE = "Separate operations of torch, in bfloat16, the queries of a group side by side: s = (q * scale) @ k.mT, p = softmax(s, -1), o = p @ v."
MATMUL = f"The product of two {contenders.SIDE} x {contenders.SIDE} bfloat16 matrices, a contender in every problem's rounds."
ERROR = "||o - o*|| / ||o*|| over at most 256 rows of the last head of the batch; o* is naive attention in float64 on the same inputs."
METHOD = {
    "short": {
        "shapes": f"q (batch, {HEADS}, n, {HEAD_DIM}), k and v (batch, {KV_HEADS}, n, {HEAD_DIM}), contiguous, bfloat16, random normal, no mask; batch * n = {TOKENS:,}. "
        f"The block's input is (batch, n, {HIDDEN}).",
        "rounds": SAMPLES.format(SLOT_MS, MOST_CALLS),
        "what": "attention: from q, k, v to o. block: one block as Llama-3-8B has it, of random weights: RMS norm, projections of q, k and v, attention, output "
        f"projection, residual; RMS norm, SwiGLU feed-forward part of width {FFN:,}, residual. Left out are rotations of q and k, and the mask.",
        "naive": NAIVE, "flash": FLASH, "fa2": TORCH,
        "none": "In attention's place q + k + v, a head of k and v being added to each query head of its group: what the rest of the block takes.",
        "direction": "forward: inputs that need no gradient. backward: torch.autograd.grad alone, on one graph, with respect to all inputs, weights among them.",
        "flops": "Of the products: 4 n^2 head_dim for each query head, and 2 for each token and weight; backward 2.5 and 2 times as many. none counts the weights alone.",
        "matmul": MATMUL, "relative_error": ERROR,
    },
    "long": {
        "shapes": f"q, k, v (1, {LONG_HEADS}, n, {HEAD_DIM}), contiguous, bfloat16, random normal, no mask, forward.",
        "rounds": SAMPLES.format(SLOT_MS, MOST_CALLS),
        "naive": NAIVE, "flash": FLASH, "hopper": 'flashedu.kernels.flash_attention(backend="hopper").', "cudnn": TORCH, "matmul": MATMUL,
        "flops": "Of the two products: 4 n^2 head_dim for each head.",
        "peak_bytes": "The most memory that one call held at once, its inputs not included, its output and what is between included.",
        "relative_error": ERROR,
    },
    "cache": {
        "shapes": f"q (1, {HEADS}, 1, {HEAD_DIM}), k and v (1, kv_heads, n, {HEAD_DIM}), contiguous, bfloat16, random normal: one new token, one layer, no mask.",
        "rounds": SAMPLES.format(CACHE_SLOT_MS, MOST_CALLS),
        "cold": measure_decode.METHOD["cold"], "hbm_bytes": measure_decode.METHOD["hbm_bytes"], "copy": measure_decode.METHOD["copy"],
        "naive": NAIVE, "flash": FLASH + " A program for each tile of queries of each head: here one for each query head.", "fa2": TORCH,
        "decode": "flashedu.kernels.decode.decode_attention: the keys are split among as many programs as fill the device.",
        "relative_error": ERROR,
    },
    "heads": {
        "shapes": f"q, k, v ({WIDE_BATCH}, {WIDE_HEADS}, {WIDE_N}, head_dim), contiguous, bfloat16, random normal, no mask.",
        "rounds": SAMPLES.format(SLOT_MS, MOST_CALLS),
        "direction": "forward, or backward: torch.autograd.grad alone, on one graph.",
        "flash": FLASH + " Its tiles are `padded` wide: the next power of two.", "fa2, cudnn, efficient": TORCH, "matmul": MATMUL,
        "flops": "Credited: 4 n^2 head_dim for each head forward, 2.5 times as much backward, whoever computes it, however wide its tiles are.",
        "relative_error": ERROR,
    },
}
WHAT = {
    "short": "Time of attention, and of a whole block of Llama-3-8B around it, on short and longer sequences on one GPU: naive, flash, and no attention.",
    "long": "Time and memory of forward attention on one GPU at lengths from 8,192 tokens on, naive and flash.",
    "cache": "Time of one query's attention over a cache on one GPU, beside a copy: by cache length and number of key heads.",
    "heads": "Time of attention on one GPU by head dimension, forward and backward: what padding costs, and who refuses.",
}


def make(*shape):
    """A tensor of random normal numbers."""
    import torch

    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def flash(q, k, v, backend="triton"):
    from flashedu.kernels import flash_attention

    return flash_attention(q, k, v, backend=backend)


def none(q, k, v):
    """No attention, with a gradient for q, k and v."""
    return (q.unflatten(1, (k.shape[1], -1)) + (k + v)[:, :, None]).flatten(1, 2)


def torch_backends(*names):
    from torch.nn.attention import SDPBackend

    chosen = {"fa2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}
    return {name: partial(measure_decode.by_torch, chosen[name]) for name in names}


def weights():
    """The matrices of one block, each (in, out), scaled so that the tokens keep their size: q, k, v, output, gate, up, down."""
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = (HIDDEN, q), (HIDDEN, kv), (HIDDEN, kv), (q, HIDDEN), (HIDDEN, FFN), (HIDDEN, FFN), (FFN, HIDDEN)
    return [make(*shape) * shape[0] ** -0.5 for shape in shapes]


def block(attend, x, w_q, w_k, w_v, w_o, w_gate, w_up, w_down):
    """One transformer block on x (B, N, hidden)."""
    from torch.nn.functional import rms_norm, silu

    y = rms_norm(x, x.shape[-1:])
    q, k, v = ((y @ w).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for w in (w_q, w_k, w_v))  # (B, H, N, D)
    x = x + attend(q, k, v).transpose(1, 2).flatten(2) @ w_o
    y = rms_norm(x, x.shape[-1:])
    return x + (silu(y @ w_gate) * (y @ w_up)) @ w_down


def credited(what, name, n, direction):
    """FLOPs that a row is credited with, for the whole batch."""
    attention = TOKENS // n * attention_flops(n, n, HEAD_DIM, HEADS)
    rest = attention * (1 / attention_flop_share(n, HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM) - 1)
    own = (name != "none") * attention * (1 if direction == "forward" else 2.5)
    return round(own + (what == "block") * rest * (1 if direction == "forward" else 2))


def prepare(direction, function, inputs):
    """A function that makes the function to be timed: a pass over inputs."""
    if direction == "forward":
        return partial(partial, function, *inputs)

    def backward():
        leaves = [x.detach().requires_grad_() for x in inputs]
        return contenders.backward_alone(function, leaves, make(*leaves[0].shape))  # the output is as large as the first input

    return backward


def timed(contestants, direction, inputs, matmul, clock, rounds):
    """(name, outcome) of each of {name: (function, the key of its inputs)}, and of the matrix product, in the same rounds."""
    prepared = {name: prepare(direction, function, inputs[which]) for name, (function, which) in contestants.items()}
    return interleave({"matmul": lambda: matmul, **prepared}, clock, rounds, SLOT_MS).items()


def rated(row, flops):
    """The row with the rate that it is credited with, if it has a time."""
    row |= {"flops": flops}
    if "time_ms" in row:
        row["flops_per_s"] = float(f"{flops / row['time_ms'] * 1e3:.5g}")
    return row


def free():
    import torch

    torch.cuda.empty_cache()


def short(n, matmul, clock):
    """Rows of one length: attention alone and a block around it, both directions."""
    batch, rows = TOKENS // n, []
    layer = [make(batch, heads, n, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    inputs = {"attention": layer, "block": [make(batch, n, HIDDEN), *weights()]}
    alone = {"naive": measure_decode.naive, "flash": flash, **torch_backends("fa2")}
    contestants = {("attention", name): (attend, "attention") for name, attend in alone.items()}
    contestants |= {("block", name): (partial(block, attend), "block") for name, attend in {"none": none, **alone}.items() if name != "fa2"}
    where, right = ladder.exact_rows(*layer, False)
    for direction in speed.DIRECTIONS:
        for key, outcome in timed(contestants, direction, inputs, matmul, clock, ROUNDS):
            what, name = ("matmul", "matmul") if key == "matmul" else key
            flops = 2 * contenders.SIDE**3 if what == "matmul" else credited(what, name, n, direction)
            row = rated({"direction": direction, "n": n, "batch": batch, "what": what, "contender": name, **outcome}, flops)
            if (direction, what) == ("forward", "attention") and "time_ms" in row:
                row["relative_error"] = ladder.relative_error(alone[name](*layer), where, right)
            rows.append(row)
        free()
    return rows


def peak_bytes(fn):
    """The most memory that fn() held at once beyond what was there before."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    fn()
    return torch.cuda.max_memory_allocated() - before


def long(n, matmul, clock):
    """Rows of one length, forward."""
    layer, rows = [make(1, LONG_HEADS, n, HEAD_DIM) for _ in range(3)], []
    attends = {"naive": measure_decode.naive, "flash": flash, "hopper": partial(flash, backend="hopper"), **torch_backends("cudnn")}
    where, right = ladder.exact_rows(*layer, False)
    for name, outcome in timed({name: (attend, 0) for name, attend in attends.items()}, "forward", [layer], matmul, clock, LONG_ROUNDS):
        free()
        flops = 2 * contenders.SIDE**3 if name == "matmul" else attention_flops(n, n, HEAD_DIM, LONG_HEADS)
        row = rated({"n": n, "contender": name, **outcome}, flops)
        if name in attends and "time_ms" in row:
            row["peak_bytes"] = peak_bytes(partial(attends[name], *layer))
            row["relative_error"] = ladder.relative_error(attends[name](*layer), where, right)
        rows.append(row)
    free()
    return rows


def l2_bytes():
    import torch

    return torch.cuda.get_device_properties(0).L2_cache_size


def cache(n, matmul, clock):
    """Rows of one cache length, for each number of key heads."""
    rows, duplicate = [], measure_decode.copy()
    attends = {"naive": measure_decode.naive, "flash": flash, **torch_backends("fa2"), "decode": measure_decode.ours}
    for kv_heads in SHARED:
        kept = kv_cache_bytes(n, 1, kv_heads, HEAD_DIM, ITEMSIZE)
        q, caches = make(1, HEADS, 1, HEAD_DIM), [(make(1, kv_heads, n, HEAD_DIM), make(1, kv_heads, n, HEAD_DIM))
                                                  for _ in range(max(2, -(-measure_decode.COLD * l2_bytes() // kept)))]
        prepared = {name: partial(measure_decode.in_turn, attend, q, caches) for name, attend in attends.items()}
        outcomes = interleave({"copy": lambda: duplicate, **prepared}, clock, CACHE_ROUNDS, CACHE_SLOT_MS)
        where, right = ladder.exact_rows(q, *caches[0], False)
        for name, outcome in outcomes.items():
            hbm_bytes = 2 * measure_decode.COPY_BYTES if name == "copy" else kept + 2 * HEADS * HEAD_DIM * ITEMSIZE
            row = {"n": n, "kv_heads": kv_heads, "contender": name, "hbm_bytes": hbm_bytes, **outcome}
            if "time_ms" in row:
                reached = hbm_bytes / row["time_ms"]
                row |= {"bytes_per_s": float(f"{reached * 1e3:.5g}"),
                        "of_copy": float(f"{reached * outcomes['copy']['time_ms'] / (2 * measure_decode.COPY_BYTES):.4g}")}
                if name != "copy":
                    row["relative_error"] = ladder.relative_error(attends[name](q, *caches[0]), where, right)
            rows.append(row)
        del q, caches, prepared  # the next ones may need their memory
        free()
    return rows


def heads(head_dim, matmul, clock):
    """Rows of one head dimension, both directions."""
    from flashedu.kernels.tiles import padded

    layer, rows = [make(WIDE_BATCH, WIDE_HEADS, WIDE_N, head_dim) for _ in range(3)], []
    attends = {"flash": flash, **torch_backends("fa2", "cudnn", "efficient")}
    where, right = ladder.exact_rows(*layer, False)
    forward = WIDE_BATCH * attention_flops(WIDE_N, WIDE_N, head_dim, WIDE_HEADS)
    for direction in speed.DIRECTIONS:
        for name, outcome in timed({name: (attend, 0) for name, attend in attends.items()}, direction, [layer], matmul, clock, ROUNDS):
            flops = 2 * contenders.SIDE**3 if name == "matmul" else forward if direction == "forward" else forward * 5 // 2
            row = rated({"direction": direction, "head_dim": head_dim, "contender": name, **({"padded": padded(head_dim)} if name == "flash" else {}), **outcome}, flops)
            if direction == "forward" and name in attends and "time_ms" in row:
                row["relative_error"] = ladder.relative_error(attends[name](*layer), where, right)
            rows.append(row)
        free()
    return rows


def compile_ahead(head_dims):
    """Launch our kernels for each head dimension, several at a time. What fails here fails again where it is timed, and is reported then."""
    import torch

    def launch(head_dim):
        torch.cuda.set_device(0)  # in this thread
        q, k, v = (make(1, WIDE_HEADS, WIDE_N, head_dim).requires_grad_() for _ in range(3))
        flash(q, k, v).sum().backward()

    with ThreadPoolExecutor(8) as threads:
        threads.submit(launch, head_dims[0]).exception()  # alone: it starts Triton
        for head_dim in head_dims[1:]:
            threads.submit(launch, head_dim)
    torch.cuda.synchronize()


MEASURE = {"short": short, "long": long, "cache": cache, "heads": heads}


def show(row):
    """A row in a line."""
    said = " ".join(str(row[key]) for key in ("direction", "head_dim", "n", "kv_heads", "what", "contender") if key in row)
    why = next((f"{key}: {row[key]}" for key in ("out_of_memory", "refused") if key in row), "")
    rate = f"{row['flops_per_s'] / 1e12:7.1f} TFLOP/s" if "flops_per_s" in row else f"{row['of_copy']:7.1%} of a copy" if "of_copy" in row else why
    print(f"{said:44}{row.get('time_ms', float('nan')):12.4f} ms {rate}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder to write the files into")
    parser.add_argument("--parts", nargs="+", choices=list(MEASURE), default=list(MEASURE), help="which of them (default: all)")
    parser.add_argument("--quick", action="store_true", help="two sizes of each")
    options = parser.parse_args()
    sentence = speed.missing()
    if sentence:
        raise SystemExit(sentence)
    matmul = contenders.matmul()
    clock = contenders.device_clock(matmul)
    options.out.mkdir(parents=True, exist_ok=True)
    for part in options.parts:
        sizes, rows = (QUICK if options.quick else SIZES)[part], []
        if part == "heads":
            compile_ahead(sizes)
        for size in sizes:
            found = MEASURE[part](size, matmul, clock)
            for row in found:
                show(row)
            rows += found
        print(write(options.out, SUBJECTS[part], result(WHAT[part], "tools/measure_limits.py", METHOD[part], rows)))


if __name__ == "__main__":
    main()
