"""The forward kernel: exact for every length, width, mask and grouping; a row that sees no key is 0, its lse -inf."""
import importlib.util

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("there is no Triton on this system", allow_module_level=True)

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import Problem, arrays

from flashedu.exactness import attention_bounds
from flashedu.kernels import DEVICE, forward
from flashedu.kernels.forward import flash_forward
from flashedu.kernels.tiles import FORWARD


def worst(problem):
    q, k, v, _ = problem.tensors(DEVICE)
    o, lse = flash_forward(q, k, v, problem.causal, problem.scale)
    assert (o.dtype, o.shape, lse.dtype, lse.shape) == (q.dtype, q.shape, torch.float32, q.shape[:3])
    block_k = forward.pick(FORWARD, q).block_k
    bounds = attention_bounds(*arrays(q, k, v), problem.causal, problem.scale, block_k, problem.dtype)
    return max(bound.ratio(arrays(x)[0]) for bound, x in zip(bounds, (o, lse), strict=True))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_q, n_k", [(1, 1), (1, 129), (129, 1), (15, 17), (17, 15), (63, 65), (65, 63), (127, 64), (64, 127), (129, 128)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_any_length(dtype, n_q, n_k, causal):
    assert worst(Problem((1, 1, 1, n_q, n_k, 16), dtype, causal)) <= 1


@pytest.mark.parametrize("d", [1, 8, 16, 40, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_any_head_dimension(dtype, d):
    assert worst(Problem((1, 1, 1, 17, 35, d), dtype, causal=True, layout="padded")) <= 1


@pytest.mark.parametrize("heads, kv_heads", [(1, 1), (2, 2), (4, 2), (4, 1)])
def test_batches_and_groups(heads, kv_heads):
    assert worst(Problem((2, heads, kv_heads, 15, 33, 8))) <= 1


@pytest.mark.parametrize("magnitude, offset, scale", [(8, 0, None), (1, 30, None), (100, 0, None), (1, 0, 0.05), (1, 0, 2)])
def test_any_magnitude(magnitude, offset, scale):
    assert worst(Problem((1, 1, 1, 40, 70, 16), magnitude=magnitude, offset=offset, scale=scale)) <= 1


@pytest.mark.parametrize("n_q, n_k", [(70, 33), (129, 1), (65, 64)])
def test_rows_that_see_no_key(n_q, n_k):
    q, k, v, _ = Problem((1, 1, 1, n_q, n_k, 8)).tensors(DEVICE)
    o, lse = flash_forward(q, k, v, causal=True)
    blind = n_q - n_k
    assert (o[:, :, :blind] == 0).all() and (lse[:, :, :blind] == -torch.inf).all()
    assert o.isfinite().all() and lse[:, :, blind:].isfinite().all()
    torch.testing.assert_close(o[:, :, blind], v[:, :, 0], rtol=0, atol=0)  # the first row that sees a key sees one alone


def test_equal_scores_give_the_mean():
    """Whole numbers, and 1/64 of their sum: every step is exact."""
    v = torch.arange(64.0, device=DEVICE).reshape(1, 1, 64, 1).expand(1, 1, 64, 16)
    o, lse = flash_forward(torch.ones_like(v), torch.zeros_like(v), v)
    assert (o == 31.5).all()
    assert attention_bounds(*arrays(torch.ones_like(v), torch.zeros_like(v), v))[1].ratio(arrays(lse)[0]) <= 1


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    n_q=st.integers(1, 70), n_k=st.integers(1, 70), d=st.integers(1, 33), causal=st.booleans(), dtype=st.sampled_from(["float32", "float16"]),
    layout=st.sampled_from(["plain", "bnhd", "packed", "padded", "transposed", "expanded"]), magnitude=st.sampled_from([0.1, 1, 8]), seed=st.integers(0, 99),
)
def test_random_problems(n_q, n_k, d, causal, dtype, layout, magnitude, seed):
    assert worst(Problem((1, 2, 1, n_q, n_k, d), dtype, causal, layout, magnitude, seed=seed)) <= 1
