"""Measures attention on fp8 numbers on a Hopper GPU: its speed beside the same kernel on bfloat16, and its error.

    python tools/measure_fp8.py --out flashedu/results

It needs a GPU of compute capability 9.0, torch and triton.
"""
import argparse
from functools import partial
from pathlib import Path

import numpy as np

from flashedu.bench import contenders, ladder, speed
from flashedu.bench.result import result, write
from flashedu.bench.rounds import interleave
from flashedu.reference import naive_attention
from flashedu.reference.quantize import outlier_inputs, rotate

HEAD_DIM, LENGTHS, ROUNDS = 128, (4096, 8192, 16384), 9
STEADY_MS, STEADY_ROUNDS, STEADY_CALLS = 150, 3, 1000
NAMES = ("fp8", "version3", "cudnn")
ERROR_ROWS, ERROR_LENGTH, SEEDS = 256, 16384, 4  # of the experiment in chapter 6
Q_ROWS, K_ROWS = 64, 128  # a scale each

METHOD = {
    **{word: speed.METHOD[word] for word in ("shapes", "rounds", "matmul")},
    "fp8": "flashedu.kernels.hopper_fp8.hopper_fp8_forward. The inputs were rounded to e4m3 and v transposed beforehand, outside the time: a model does that where "
    "it writes q, k and v. Its output is bfloat16.",
    "version3": 'flashedu.kernels.flash_attention(backend="hopper") on bfloat16.',
    "cudnn": "torch's scaled_dot_product_attention with CUDNN_ATTENTION alone allowed, on bfloat16.",
    "flops": "Credited FLOPs: 4 n^2 head_dim for each head, half of that if causal. flops_per_s = flops / time_ms; of_matmul compares with a bfloat16 product.",
    "experiment": "speed: times, each contender for some milliseconds after the others. steady: times again, each contender alone for so long that the device has "
    f"the clock that this contender's power allows: {STEADY_MS} ms of calls that are not timed, then as many that are, in {STEADY_ROUNDS} rounds; time_ms is the median of "
    "these. errors: the root of the mean square of o - o*, o* naive attention in float64, on the inputs of Shah et al. 2024 (section 4.3), "
    "every element N(0, 1) and one in a thousand with N(0, 100) added: "
    f"{ERROR_ROWS} queries, {ERROR_LENGTH:,} keys, one head for each of {SEEDS} seeds.",
    "scales": f"one: one scale a tensor. blocks: one for every {Q_ROWS} queries and every {K_ROWS} keys, and one for all values of a head.",
    "rotated": "Whether q and k were multiplied by random signs and a Hadamard matrix before they were rounded.",
}


def fp8_inputs(q, k, v, whole=False):
    """What `hopper_fp8_forward` takes, from q, k, v (B, H, N, 128): numbers and scales, one scale a tensor if `whole`."""
    from flashedu.kernels.fp8 import quantized, transposed

    (q8, q_scale), (k8, k_scale) = quantized(q, Q_ROWS), quantized(k, K_ROWS)
    if whole:
        shapes = q_scale.shape, k_scale.shape
        (q8, q_scale), (k8, k_scale) = quantized(q, q.shape[2]), quantized(k, k.shape[2])
        q_scale, k_scale = (scale.expand(shape).contiguous() for scale, shape in zip((q_scale, k_scale), shapes))
    v8, v_scale = quantized(v, v.shape[2])
    return q8, k8, transposed(v8), q_scale, k_scale, v_scale[:, :, 0].contiguous()


def fp8_call(q, k, v, causal):
    """A call of the fp8 kernel without arguments; what it reads is made here."""
    from flashedu.kernels.hopper_fp8 import hopper_fp8_forward

    return partial(hopper_fp8_forward, *fp8_inputs(q, k, v), causal)


def measure_speed(n, head_dim, causal, matmul, clock):
    """Rows of one size."""
    import torch

    q, k, v, _ = contenders.random_inputs(speed.TOKENS // n, speed.WIDTH // head_dim, n, head_dim)
    attends = contenders.rungs(n, causal)
    calls = {"fp8": fp8_call(q, k, v, causal), **{name: partial(attends[name], q, k, v) for name in NAMES[1:]}}
    timed = {"matmul": lambda: matmul, **{name: lambda call=call: call for name, call in calls.items()}}
    outcomes = {"speed": interleave(timed, clock, ROUNDS, speed.SLOT_MS), "steady": interleave(timed, contenders.device_clock(), STEADY_ROUNDS, STEADY_MS, most_calls=STEADY_CALLS)}
    rows, right = ladder.exact_rows(q, k, v, causal)
    results = {name: call() for name, call in calls.items()}
    errors = {name: ladder.relative_error(o[0] if name == "fp8" else o, rows, right) for name, o in results.items()}
    torch.cuda.empty_cache()
    problem = dict(direction="forward", head_dim=head_dim, n=n, causal=causal)
    return [{"experiment": experiment, **row} for experiment, found in outcomes.items() for row in speed.rows_of(problem, found, errors)]


def measure_errors():
    """Rows of the errors on inputs with outliers, all seeds as heads of one call."""
    import torch

    draws = [outlier_inputs(ERROR_ROWS, ERROR_LENGTH, HEAD_DIM, seed) for seed in range(SEEDS)]
    exact = np.stack([naive_attention(*(x.astype(np.float64) for x in draw)) for draw in draws])

    def row(name, scales, rotated, attend, dtype):
        turned = [(*rotate(q, k, 1), v) if rotated else (q, k, v) for q, k, v in draws]
        tensors = [torch.from_numpy(np.stack(x))[None].cuda() for x in zip(*turned)]
        o = attend(*(x.to(dtype) for x in tensors))[0].double().cpu().numpy()
        errors = np.sqrt(((o - exact) ** 2).mean((1, 2)))
        return {"experiment": "errors", "contender": name, "scales": scales, "rotated": rotated, "n": ERROR_LENGTH, "head_dim": HEAD_DIM,
                "rms_errors": [float(f"{error:.3g}") for error in errors], "rms_error": float(f"{np.sqrt((errors**2).mean()):.3g}")}

    from flashedu.kernels import flash_attention
    from flashedu.kernels.hopper_fp8 import hopper_fp8_forward

    def by_fp8(whole, q, k, v):
        return hopper_fp8_forward(*fp8_inputs(q, k, v, whole), dtype=torch.float16)[0]

    rows = [row("fp8", "one" if whole else "blocks", rotated, partial(by_fp8, whole), torch.float32) for whole in (True, False) for rotated in (False, True)]
    return [*rows, row("version3, float16", None, False, partial(flash_attention, backend="hopper"), torch.float16)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder to write the file into")
    options = parser.parse_args()
    sentence = speed.missing()
    if sentence:
        raise SystemExit(sentence)
    matmul = contenders.matmul()
    clock = contenders.device_clock(matmul)
    rows = speed.sweep((HEAD_DIM,), LENGTHS, partial(measure_speed, matmul=matmul, clock=clock)) + measure_errors()
    what = "Attention on fp8 (e4m3) numbers on one Hopper GPU: its time beside bfloat16, and its error with and without a rotation of q and k."
    options.out.mkdir(parents=True, exist_ok=True)
    print(write(options.out, "fp8", result(what, "tools/measure_fp8.py", METHOD, rows)))
    for row in rows:
        print({name: cell for name, cell in row.items() if name not in ("direction", "batch", "heads", "flops")})


if __name__ == "__main__":
    main()
