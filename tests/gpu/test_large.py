"""On a GPU: long sequences in linear memory, and offsets that 32 bits cannot hold."""
import gc
import importlib.util

import numpy as np
import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("there is no Triton on this system", allow_module_level=True)

import torch
from problems import HUGE, Problem, arrays, bounds, far_apart, solve

from flashedu.exactness import Bound, attention_bounds
from flashedu.gradient_bounds import gradient_bounds
from flashedu.kernels import DEVICE

LONG = 131_072


def fits(bytes_):
    free = torch.cuda.mem_get_info()[0]
    if free < 1.1 * bytes_:
        pytest.skip(f"needs {1.1 * bytes_ / 1e9:.0f} GB of free GPU memory, and {free / 1e9:.0f} GB are free")


def numbers(*shape, seed=0):
    return torch.randn(shape, dtype=torch.bfloat16, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(seed))


# ---- long sequences

def peak_bytes(n, causal):
    """The most memory taken beside the inputs, and the size of what the two passes must have: their results and each row's statistics."""
    problem = Problem((1, 2, 1, n, n, 64), "bfloat16", causal)
    q, k, v, do = numbers(1, 2, n, 64), numbers(1, 1, n, 64, seed=1), numbers(1, 1, n, 64, seed=2), numbers(1, 2, n, 64, seed=3)
    gc.collect()  # what an earlier test left in a cycle would be given back in between
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    answer = solve(q, k, v, do, problem)
    torch.cuda.synchronize()
    needed = sum(x.numel() * x.element_size() for x in answer.values()) + 2 * answer["lse"].numel() * 4  # lse in base 2, and delta
    return torch.cuda.max_memory_allocated() - before, needed


@pytest.mark.parametrize("causal", [False, True])
def test_memory_is_linear(causal):
    (half, _), (peak, needed) = peak_bytes(LONG // 2, causal), peak_bytes(LONG, causal)
    print(f"{half:,} and {peak:,} bytes beside the inputs")
    assert needed <= peak <= needed + 2**20
    assert peak <= 2 * half + 2**20
    assert peak < LONG * LONG / 100  # one byte for each score would be 100 times as much


@pytest.mark.parametrize("causal", [False, True])
def test_long_by_rows(causal):
    """do is 0 but for some rows: their outputs and dq are judged, and all of dk and dv, which are sums over these rows."""
    heads, rows = 2, [0, 1, 127, 128, LONG // 2 - 1, LONG // 2, LONG - 1000, LONG - 1]
    q, k, v = numbers(1, heads, LONG, 64), numbers(1, 1, LONG, 64, seed=1), numbers(1, 1, LONG, 64, seed=2)
    do = torch.zeros_like(q)
    do[:, :, rows] = numbers(1, heads, len(rows), 64, seed=3)
    answer = solve(q, k, v, do, Problem((1, heads, 1, LONG, LONG, 64), "bfloat16", causal))
    o, lse, dq, dk, dv = arrays(*(answer[name] for name in ("o", "lse", "dq", "dk", "dv")))
    (q, do), (k, v) = arrays(q, do), (x[0, 0] for x in arrays(k, v))
    sums = [[np.zeros(k.shape), np.zeros(k.shape)] for _ in "kv"]
    for h in range(heads):
        for i in rows:
            seen = i + 1 if causal else LONG
            inputs, options = (q[0, h, i : i + 1], k[:seen], v[:seen]), {"block_k": 64, "dtype": "bfloat16"}
            o_bound, lse_bound = attention_bounds(*inputs, **options)
            dq_bound, *shared = gradient_bounds(*inputs, do[0, h, i : i + 1], **options)
            found = [o_bound.ratio(o[0, h, i : i + 1]), lse_bound.ratio(lse[0, h, i : i + 1]), dq_bound.ratio(dq[0, h, i : i + 1])]
            assert max(found) <= 1, f"row {i} of head {h}: {found}"
            for (exact, bound), part in zip(sums, shared, strict=True):
                exact[:seen] += part.exact
                bound[:seen] += part.bound
    for name, (exact, bound), value in zip(("dk", "dv"), sums, (dk, dv), strict=True):
        ratio = Bound(exact, bound).ratio(value[0, 0])
        print(f"{name}: {ratio:.3f}")
        assert ratio <= 1
    dq[:, :, rows] = 0
    assert not dq.any(), "a row without do has a gradient"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [(LONG, 40), (40, LONG)])
def test_long_one_way(lengths, causal, judged):
    judged([Problem((1, 1, 1, *lengths, 64), dtype, causal) for dtype in ("bfloat16", "float16")])


# ---- offsets beyond 32 bits

def on_the_gpu(length):
    fits(2 * length)
    return torch.empty(length, dtype=torch.bfloat16, device=DEVICE)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("axis, apart, shape", [
    (0, 2**30 + 8, (3, 2, 1, 100, 70, 64)),
    (1, 2**30 + 8, (1, 3, 3, 100, 70, 64)),
    (2, 2**24 + 8, (1, 2, 1, 200, 150, 40)),  # an offset within a tile has 32 bits, that of the tile has not
    (2, 2**26 + 8, (1, 2, 1, 70, 70, 40)),  # neither has
    (3, 2**26 + 8, (1, 2, 1, 100, 70, 40)),
], ids=["batch", "heads", "tiles", "rows", "columns"])
def test_offsets_beyond_32_bits(axis, apart, shape, causal):
    problem = Problem(shape, "bfloat16", causal)
    near = problem.tensors(DEVICE)
    tensors = far_apart(near, axis, apart, on_the_gpu)
    answer = solve(*tensors, problem)
    found = {name: bound.ratio(arrays(answer[name])[0]) for name, bound in bounds(*near, problem).items()}
    assert max(found.values()) <= 1, found


@pytest.mark.parametrize("lengths", [(2**20, 16), (16, 2**20)])
def test_results_beyond_32_bits(lengths):
    """More than 2**31 elements in o, lse and dq, or in dk and dv: the last head is where they end."""
    n_q, n_k = lengths
    heads = HUGE // max(lengths) + 1
    fits((5 * 2 + 3 * 4) * heads * max(lengths))
    q, k, v, do = ((numbers if n > 16 else same_heads)(1, heads, n, 1, seed=seed) for seed, n in enumerate((n_q, n_k, n_k, n_q)))
    problem = Problem((1, heads, heads, n_q, n_k, 1), "bfloat16")
    answer = solve(q, k, v, do, problem)
    for h in (0, heads - 1):
        one = [x[:, h : h + 1] for x in (q, k, v, do)]
        found = {name: bound.ratio(arrays(answer[name][:, h : h + 1])[0]) for name, bound in bounds(*one, problem).items()}
        assert max(found.values()) <= 1, f"head {h}: {found}"


def same_heads(batch, heads, n, d, seed):
    return numbers(batch, 1, n, d, seed=seed).expand(batch, heads, n, d)
