"""`python -m flashedu bench --ladder`: forward attention in all its versions, from naive to cuDNN, on this machine's GPU, in one run."""
import itertools
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from flashedu.bench import contenders, speed
from flashedu.bench.result import result
from flashedu.bench.rounds import interleave

SLOW = ("naive", "version1")
ROUNDS, SLOW_ROUNDS, LIMIT_MS = 9, 3, 1000
QUICK = dict(head_dims=(128,), lengths=(4096, 16384), rounds=3)
ROWS = 256  # whose error is looked at

NOT_RUN = {"not_run": "it needs a GPU of compute capability 9.0 (Hopper)"}

METHOD = {
    **{word: speed.METHOD[word] for word in ("shapes", "rounds", "matmul")},
    "slow": f"{' and '.join(SLOW)} leave the matrix units idle for most of the time, so they have rounds of their own after the others', at most "
    f"{SLOW_ROUNDS}, and nobody profits from the device's rest. A contender of which one call takes more than {LIMIT_MS} ms is not timed.",
    "flops": "Credited FLOPs: 4 n^2 head_dim for each head, half of that if causal, whoever computes it. flops_per_s = flops / time_ms.",
    "naive": speed.METHOD["naive"],
    "version1": "flashedu.kernels.version1.version1_forward: keys outside, queries inside; the state of the rows passes through memory for every pair "
    "of tiles, and there is one program for each head of the batch. The tiles are those of version2.",
    "version2": 'flashedu.kernels.flash_attention(backend="triton"): queries outside, keys inside, one program for each tile of queries.',
    "version3": 'flashedu.kernels.flash_attention(backend="hopper"): warps that load and warps that compute, and softmax during matrix products.',
    "fa2, cudnn": "torch's scaled_dot_product_attention with that backend alone allowed: FLASH_ATTENTION (FlashAttention-2), CUDNN_ATTENTION.",
    "relative_error": f"||o - o*|| / ||o*|| over at most {ROWS} rows, spread evenly, of the last head of the batch; o* is naive attention in float64 "
    "on the same inputs.",
    "out_of_memory, refused, not_run": speed.METHOD["out_of_memory, refused, not_run"],
}


def compile_ahead(head_dims, lengths, names):
    """Launch each of our kernels, several at a time: Triton compiles one for seconds, and mostly outside Python's lock.

    What fails here fails again where it is timed, and is reported then.
    """
    import torch

    def launch(kernel):
        name, head_dim, causal = kernel
        torch.cuda.set_device(0)  # in this thread
        for n in {min(lengths), max(lengths)}:  # a launch with a multiple of 16 may be another kernel's
            q = torch.zeros(1, speed.WIDTH // head_dim, n, head_dim, device="cuda", dtype=torch.bfloat16)
            contenders.versions(causal)[name](q, q, q)

    ours = [name for name in contenders.versions(False) if name in names]
    kernels = list(itertools.product(ours, head_dims, (False, True)))
    with ThreadPoolExecutor() as threads:
        for first in kernels[:1]:
            threads.submit(launch, first).exception()  # alone: it starts Triton
        for kernel in kernels[1:]:
            threads.submit(launch, kernel)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def exact_rows(q, k, v, causal):
    """(rows, o): some rows of the last head of the batch, and their output (rows, D) by naive attention in float64."""
    import torch

    n, head_dim = q.shape[2:]
    q, k, v = (x[-1, -1].double() for x in (q, k, v))
    rows = torch.linspace(0, n - 1, min(n, ROWS), device=q.device).long()
    s = q[rows] @ k.mT * head_dim**-0.5  # (rows, N)
    if causal:
        s = s.masked_fill(torch.arange(n, device=q.device) > rows[:, None], float("-inf"))
    return rows, torch.softmax(s, -1) @ v


def relative_error(o, rows, right):
    """||o - o*|| / ||o*|| over the rows that `exact_rows` returned."""
    return float(f"{float((o[-1, -1, rows].double() - right).norm() / right.norm()):.3g}")


def measure_problem(n, head_dim, causal, names, rounds, matmul, clock):
    """Rows of one size."""
    import torch

    q, k, v, _ = contenders.random_inputs(speed.TOKENS // n, speed.WIDTH // head_dim, n, head_dim)
    attends = {name: attend for name, attend in contenders.rungs(n, causal).items() if name in names}
    prepared = {name: partial(partial, attend, q, k, v) for name, attend in attends.items()}
    slow = {name: prepared.pop(name) for name in SLOW if name in prepared}
    outcomes = interleave({"matmul": lambda: matmul, **prepared}, clock, rounds, speed.SLOT_MS)
    outcomes |= interleave(slow, clock, min(rounds, SLOW_ROUNDS), speed.SLOT_MS, LIMIT_MS)
    rows, right = exact_rows(q, k, v, causal)
    errors = {name: relative_error(attends[name](q, k, v), rows, right) for name in attends if "time_ms" in outcomes[name]}
    torch.cuda.empty_cache()
    return speed.rows_of(dict(direction="forward", head_dim=head_dim, n=n, causal=causal),
                         {name: outcomes.get(name, NOT_RUN) for name in ("matmul", *names)}, errors)


def run(head_dims=speed.HEAD_DIMS, lengths=speed.LENGTHS, rounds=ROUNDS, without=(), out=None):
    """Measure, print the tables, write the result into the folder `out` if there is one; returns the exit status."""
    sentence = speed.unwritable(out) or speed.missing()
    if sentence:
        print(sentence, file=sys.stderr)
        return 2
    names = [name for name in contenders.RUNGS if name not in without]
    compile_ahead(head_dims, lengths, names)
    matmul = contenders.matmul()
    clock = contenders.device_clock(matmul)
    rows = speed.sweep(head_dims, lengths, partial(measure_problem, names=names, rounds=rounds, matmul=matmul, clock=clock))
    what = "Time of forward attention on one GPU: naive, the three versions of flash attention as this package has them, and torch's, interleaved."
    speed.show(result(what, "flashedu/bench/ladder.py", METHOD, rows), "ladder", "version3", out)
    return 1 if any(row["contender"].startswith("version") and row.keys() & {"refused", "out_of_memory"} for row in rows) else 0


def add_arguments(parser):
    """The option that chooses this benchmark; the others are those of `flashedu.bench.speed`."""
    parser.add_argument("--ladder", action="store_true", help="forward only: naive, versions 1, 2 and 3, and torch's")


def main(options):
    """Run the command with parsed options."""
    if options.quick:
        return run(**QUICK, without=options.without, out=options.out)
    return run(options.head_dims, options.lengths, ROUNDS, options.without, speed.folder(options))
