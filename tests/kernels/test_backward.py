"""The backward kernels: all gradients exact, also that of lse; rows that see no key have gradient 0; the same bits every time."""
import importlib.util

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("there is no Triton on this system", allow_module_level=True)

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import Problem, arrays, lse_gradient_bounds, ratios, solve

from flashedu.exactness import Bound
from flashedu.gradient_bounds import gradient_bounds
from flashedu.kernels import DEVICE
from flashedu.kernels.backward import flash_backward
from flashedu.kernels.forward import flash_forward


def worst(problem):
    return max(ratios(problem, DEVICE).values())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_q, n_k", [(1, 1), (1, 129), (129, 1), (15, 17), (17, 15), (63, 65), (127, 64), (64, 127)])
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


@pytest.mark.parametrize("n_q, n_k", [(70, 33), (65, 1)])
def test_rows_that_see_no_key(n_q, n_k):
    problem = Problem((1, 1, 1, n_q, n_k, 8), causal=True)
    answer = solve(*problem.tensors(DEVICE), problem)
    assert (answer["dq"][:, :, : n_q - n_k] == 0).all()
    assert all(answer[name].isfinite().all() for name in ("dq", "dk", "dv"))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_q, n_k", [(33, 40), (40, 33)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gradient_of_lse(dtype, n_q, n_k, causal):
    """With it, dq and dk have two terms, whose bounds add up."""
    q, k, v, do = Problem((1, 1, 1, n_q, n_k, 16), dtype).tensors(DEVICE)
    dlse = torch.randn(q.shape[:3], generator=torch.Generator().manual_seed(7)).to(DEVICE)
    o, lse = flash_forward(q, k, v, causal)
    found = flash_backward(q, k, v, o, lse, do, causal, dlse=dlse)
    q, k, v, do, dlse = (x[0, 0] for x in arrays(q, k, v, do, dlse))
    by_o, by_lse = gradient_bounds(q, k, v, do, causal, dtype=dtype), lse_gradient_bounds(q, k, dlse, causal, dtype=dtype)
    both = [Bound(a.exact + b.exact, a.bound + b.bound) for a, b in zip(by_o[:2], by_lse, strict=True)] + [by_o[2]]
    for bound, x in zip(both, found, strict=True):
        assert bound.ratio(arrays(x)[0][0, 0]) <= 1
    for without, x in zip(by_o[:2], found[:2], strict=True):
        assert without.ratio(arrays(x)[0][0, 0]) > 1  # and it matters


def test_gradient_of_lse_alone():
    """do = 0: d lse / d q is the mean of the keys, weighted by P; v has no part in it."""
    q, k, v, _ = Problem((1, 1, 1, 20, 33, 8)).tensors(DEVICE)
    o, lse = flash_forward(q, k, v)
    dq, dk, dv = flash_backward(q, k, v, o, lse, torch.zeros_like(o), dlse=torch.ones_like(lse))
    bounds = lse_gradient_bounds(*(x[0, 0] for x in arrays(q, k)), np.ones(20))
    assert all(bound.ratio(arrays(x)[0][0, 0]) <= 1 for bound, x in zip(bounds, (dq, dk), strict=True))
    assert (dv == 0).all()


def test_wide_gradients_are_the_others_before_they_were_rounded():
    q, k, v, do = Problem((1, 2, 1, 40, 50, 16), "float16").tensors(DEVICE)
    o, lse = flash_forward(q, k, v)
    for wide, narrow in zip(flash_backward(q, k, v, o, lse, do, wide=True), flash_backward(q, k, v, o, lse, do), strict=True):
        assert (wide.dtype, narrow.dtype) == (torch.float32, torch.float16)
        assert torch.equal(wide.half(), narrow)
        assert not torch.equal(wide, narrow.float())


def test_same_bits():
    problem = Problem((1, 4, 2, 40, 50, 16), "float16", causal=True)
    first, again = (solve(*problem.tensors(DEVICE), problem) for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    n_q=st.integers(1, 70), n_k=st.integers(1, 70), d=st.integers(1, 33), causal=st.booleans(), dtype=st.sampled_from(["float32", "float16"]),
    layout=st.sampled_from(["plain", "bnhd", "packed", "padded", "transposed", "expanded"]), magnitude=st.sampled_from([0.1, 1, 8]), seed=st.integers(0, 99),
)
def test_random_problems(n_q, n_k, d, causal, dtype, layout, magnitude, seed):
    assert worst(Problem((1, 2, 1, n_q, n_k, d), dtype, causal, layout, magnitude, seed=seed)) <= 1
