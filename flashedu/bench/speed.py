"""`python -m flashedu bench`: the speed of our attention kernels beside torch's, on this machine's GPU, all in one run."""
import os
import sys
import time
from functools import partial
from pathlib import Path

from flashedu import results
from flashedu.bench import contenders, table
from flashedu.bench.result import result, write
from flashedu.bench.rounds import MOST_CALLS, interleave
from flashedu.cost import attention_flops

TOKENS, WIDTH = 16384, 2048  # in the batch; heads * head_dim
HEAD_DIMS, LENGTHS = (64, 128, 256), (512, 1024, 2048, 4096, 8192, 16384)
DIRECTIONS = ("forward", "backward")
ROUNDS, SLOT_MS = 5, 10
QUICK = dict(head_dims=(128,), lengths=(1024, 4096), rounds=3)

NOT_RUN = {"not_run": f"compiled for head_dim {contenders.FLEX_HEAD_DIMS} and n {contenders.FLEX_LENGTHS} only"}

METHOD = {
    "shapes": f"q, k, v (batch, heads, n, head_dim), contiguous, bfloat16, random normal, as many query heads as key heads; "
    f"batch * n = {TOKENS:,}, heads * head_dim = {WIDTH:,}.",
    "rounds": "For every problem (direction, head_dim, n, causal) there are several rounds, and in each of them every contender is timed once, "
    "one after the other; each round begins with another contender. A sample is the mean over `calls` calls in a row, "
    f"as many as take about {SLOT_MS} ms, at most {MOST_CALLS}, between two CUDA events; the device is kept busy with two matrix products while they are "
    "queued, so that Python's share is not in it. time_ms is the median of the samples, time_ms_min and time_ms_max are the extremes. "
    "Nothing flushes the L2 cache: q, k and v together are larger than it.",
    "forward": "o from q, k and v that need no gradient. (FlexAttention's is the forward pass of its training graph, so that it is compiled once.)",
    "backward": "The backward pass alone: torch.autograd.grad(o, (q, k, v), do, retain_graph=True) on one graph, for every contender alike; "
    "delta = rowsum(do * o) is part of it. do lies in memory as the contender's own o does.",
    "flops": "Credited FLOPs: 4 n^2 head_dim for each head forward, half of that if causal, 2.5 times as much backward (five matrix products "
    "against two), whoever computes it. flashedu executes 3.5 times as much backward, since its two kernels both recompute S and dP. "
    "flops_per_s = flops / time_ms.",
    "matmul": f"The product of two {contenders.SIDE} x {contenders.SIDE} bfloat16 matrices, a contender in every problem's rounds; of_matmul is the ratio "
    "of flops_per_s to its flops_per_s in the same rounds.",
    "flashedu": 'flashedu.kernels.flash_attention(backend="triton").',
    "fa2, cudnn, efficient": "torch's scaled_dot_product_attention with that backend alone allowed: FLASH_ATTENTION (FlashAttention-2), "
    "CUDNN_ATTENTION, EFFICIENT_ATTENTION.",
    "flex": "torch.compile(flex_attention, dynamic=False), with a causal block mask if causal; compiled before it is timed.",
    "naive": "Separate operations of torch, in bfloat16: s = (q * scale) @ k.mT, -inf where hidden, p = softmax(s, -1), o = p @ v.",
    "relative_error": "||x - x*|| / ||x*|| over the first head of the batch; x is o, or the worst of dq, dk and dv; "
    "x* is naive attention in float32 on the same inputs.",
    "out_of_memory, refused, not_run": "Why a contender has no time: what it raised, with the warnings before it, or what this program decided.",
}


def flops_of(direction, n, head_dim, causal):
    """Credited FLOPs of one pass over the whole batch."""
    forward = attention_flops(n, n, head_dim, WIDTH // head_dim) * (TOKENS // n) // (2 if causal else 1)
    return forward if direction == "forward" else forward * 5 // 2


def rows_of(problem, outcomes, errors):
    """The result's rows for one problem: {direction, head_dim, n, causal} and the outcomes of `interleave`, matmul among them."""
    matmul_flops = 2 * contenders.SIDE**3
    matmul_rate = matmul_flops / outcomes["matmul"]["time_ms"] * 1e3
    rows = []
    for name, outcome in outcomes.items():
        flops = matmul_flops if name == "matmul" else flops_of(**problem)
        row = {**problem, "batch": TOKENS // problem["n"], "heads": WIDTH // problem["head_dim"], "contender": name, "flops": flops, **outcome}
        if "time_ms" in outcome:
            rate = flops / outcome["time_ms"] * 1e3
            row |= {"flops_per_s": float(f"{rate:.5g}"), "of_matmul": float(f"{rate / matmul_rate:.4g}")}
        if name in errors:
            row["relative_error"] = errors[name]
        rows.append(row)
    return rows


def measure_problem(n, head_dim, causal, names, rounds, matmul, clock):
    """Rows of one size, both directions."""
    import torch

    q, k, v, do = contenders.random_inputs(TOKENS // n, WIDTH // head_dim, n, head_dim)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    attends = {name: attend for name, attend in contenders.attentions(n, head_dim, causal).items() if name in names}
    right = contenders.exact(q, k, v, do, causal)
    measured = []
    for direction in DIRECTIONS:
        prepared = {"matmul": lambda: matmul}
        for name, attend in attends.items():
            if direction == "backward":
                prepared[name] = partial(contenders.backward_alone, attend, leaves, do)
            else:
                inputs = leaves if name == "flex" else (q, k, v)  # flex: one graph to compile, not two
                prepared[name] = partial(partial, attend, *inputs)
        outcomes = interleave(prepared, clock, rounds, SLOT_MS)
        if direction == "backward":
            errors = {name: contenders.relative_errors(contenders.both_passes(attends[name], leaves, do), right)
                      for name in attends if "time_ms" in outcomes[name]}
        measured.append((direction, {name: outcomes.get(name, NOT_RUN) for name in ("matmul", *names)}))
    torch.cuda.empty_cache()
    return [
        row for direction, outcomes in measured
        for row in rows_of(dict(direction=direction, head_dim=head_dim, n=n, causal=causal), outcomes,
                           {name: error[direction] for name, error in errors.items()})
    ]


def missing():
    """One sentence that says why the benchmark cannot run here, or None."""
    try:
        import torch
    except ImportError:
        return "bench needs a CUDA GPU and torch, which is not installed here."
    from flashedu.kernels import DEVICE

    if not torch.cuda.is_available():
        return "bench needs a CUDA GPU, and torch sees none on this machine."
    if DEVICE != "cuda":
        why = "Triton is not installed" if DEVICE is None else "TRITON_INTERPRET has switched Triton's interpreter on"
        return f"bench needs our kernels on the GPU, but {why}."
    return None


def unwritable(out):
    """One sentence that says why a result cannot be written into the folder `out`, or None; it need not exist yet."""
    if out is None:
        return None
    there = next((path for path in (out.absolute(), *out.absolute().parents) if os.path.exists(path)), out)
    if os.path.isdir(there) and os.access(there, os.W_OK):
        return None
    return f"bench cannot write its result: {there} is no folder that can be written to, so name another one with --out."


def sweep(head_dims, lengths, measure):
    """The rows of measure(n, head_dim, causal) for every size; says on stderr how far it is."""
    begin, rows = time.perf_counter(), []
    for head_dim in head_dims:
        for n in lengths:
            for causal in (False, True):
                rows += measure(n, head_dim, causal)
                print(f"{time.perf_counter() - begin:6.1f} s: head_dim {head_dim}, n {n}, causal {causal}", file=sys.stderr, flush=True)
    return rows


def show(measured, subject, ours, out):
    """Print a result's tables, and write it into the folder `out` if there is one."""
    print(table.text(measured, ours))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        print(f"\nwritten to {write(out, subject, measured)}")


def run(head_dims=HEAD_DIMS, lengths=LENGTHS, rounds=ROUNDS, without=(), out=None):
    """Measure, print the tables, write the result into the folder `out` if there is one; returns the exit status."""
    sentence = unwritable(out) or missing()
    if sentence:
        print(sentence, file=sys.stderr)
        return 2
    matmul = contenders.matmul()
    clock = contenders.device_clock(matmul)
    names = [name for name in contenders.NAMES if name not in without]
    rows = sweep(head_dims, lengths, partial(measure_problem, names=names, rounds=rounds, matmul=matmul, clock=clock))
    what = "Time of attention, forward and backward, on one GPU: the Triton kernels of this package beside torch's attention, interleaved."
    show(result(what, "flashedu/bench/speed.py", METHOD, rows), "attention_speed", "flashedu", out)
    return 1 if any(row["contender"] == "flashedu" and "time_ms" not in row for row in rows) else 0


def add_arguments(parser):
    """The options of the command."""
    parser.add_argument("--quick", action="store_true", help="two lengths at head dimension 128, without flex, in seconds")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write the result (default: the package's own flashedu/results for a whole one, nowhere for a part)")
    parser.add_argument("--head-dims", type=int, nargs="+", choices=HEAD_DIMS, default=HEAD_DIMS, metavar="D")
    parser.add_argument("--lengths", type=int, nargs="+", choices=LENGTHS, default=LENGTHS, metavar="N")
    names = list(dict.fromkeys((*contenders.NAMES, *contenders.RUNGS)))
    parser.add_argument("--without", nargs="+", choices=names, default=[], metavar="CONTENDER", help=f"any of {', '.join(names)}")


def folder(options):
    """Where a result is written: into the package if it is whole, and a part of it only where --out says."""
    whole = set(options.head_dims) == set(HEAD_DIMS) and set(options.lengths) == set(LENGTHS) and not options.without
    return options.out or (Path(results.__file__).parent if whole else None)


def main(options):
    """Run the command with parsed options."""
    if options.quick:
        return run(**QUICK, without=[*options.without, "flex"], out=options.out)
    return run(options.head_dims, options.lengths, ROUNDS, options.without, folder(options))
