"""Tiled attention is attention: the same output, and the lse, whatever the tiles."""
import math
import tracemalloc

import numpy as np
import pytest
from heads import head
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flashedu.exactness import attention_bounds
from flashedu.machine import Machine
from flashedu.reference import tiled_attention, tiled_on_machine

pytestmark = pytest.mark.filterwarnings("error")
random_cases = settings(max_examples=100, deadline=None, derandomize=True, database=None)


def assert_exact(q, k, v, block_k, causal, o, lse):
    o_bound, lse_bound = attention_bounds(q, k, v, causal=causal, block_k=block_k)
    assert o.shape == (len(q), v.shape[1]) and lse.shape == (len(q),)
    assert o.dtype == lse.dtype == q.dtype
    assert o_bound.ratio(o) <= 1
    assert lse_bound.ratio(lse) <= 1


@random_cases
@given(st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 24), st.integers(1, 24)), st.integers(1, 50),
       st.integers(1, 50), st.booleans(), st.floats(-3, 1.5), st.sampled_from(["float32", "float64"]), st.integers(0, 10**6))
@example((1, 1, 1, 1), 1, 1, True, 0.0, "float32", 0)
@example((40, 3, 4, 4), 7, 2, True, 0.0, "float32", 0)  # most rows see no key
@example((3, 40, 4, 4), 2, 7, True, 0.0, "float64", 0)
@example((1, 40, 4, 4), 50, 50, True, 1.5, "float32", 0)  # one query, tiles larger than the lengths
def test_exact_over_shapes_tiles_and_magnitudes(shape, block_q, block_k, causal, log_scale, dtype, seed):
    q, k, v = head(*shape, dtype=dtype, scale=10**log_scale, seed=seed)
    assert_exact(q, k, v, block_k, causal, *tiled_attention(q, k, v, block_q, block_k, causal))


@random_cases
@given(st.tuples(st.integers(1, 24), st.integers(1, 24), st.integers(1, 9), st.integers(1, 9)), st.integers(1, 30),
       st.integers(1, 30), st.booleans(), st.sampled_from(["float32", "float64"]))
def test_exact_on_the_machine(shape, block_q, block_k, causal, dtype):
    q, k, v = head(*shape, dtype=dtype)
    machine = Machine.for_attention(q, k, v, 10**6)
    tiled_on_machine(machine, block_q, block_k, causal)
    assert_exact(q, k, v, block_k, causal, machine.hbm["o"], machine.hbm["lse"])
    for name, x in (("q", q), ("k", k), ("v", v)):
        assert np.array_equal(machine.hbm[name], x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("block_q, block_k", [(1, 1), (2, 3), (4, 4), (16, 16)])
@pytest.mark.parametrize("n_q, n_k", [(9, 4), (12, 1), (16, 15)])
def test_a_row_that_sees_no_key_is_zero_and_its_lse_minus_infinity(n_q, n_k, block_q, block_k, dtype):
    q, k, v = head(n_q, n_k, 3, 2, dtype)
    o, lse = tiled_attention(q, k, v, block_q, block_k, causal=True)
    blind = n_q - n_k
    assert (o[:blind] == 0).all() and (lse[:blind] == -np.inf).all()
    assert np.isfinite(lse[blind:]).all() and (o[blind:] != 0).all()


def test_lse_is_the_natural_log_of_the_sum_of_exp():
    q, k, v = head(4, 7, 5, dtype="float64")
    _, lse = tiled_attention(q, k, v, 3, 2)
    _, bound = attention_bounds(q, k, v, block_k=2)
    for i in range(4):
        exact = math.log(math.fsum(math.exp(math.fsum(q[i] * k[j]) / math.sqrt(5)) for j in range(7)))
        # twice the bound: `exact` is computed in float64 too
        assert abs(lse[i] - exact) <= 2 * bound.bound[i]


@pytest.mark.parametrize("drift", [60.0, -60.0])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block_k", [1, 3, 16, 20])
def test_maxima_that_move(drift, causal, block_k):
    q, k, v = head(16, 16, 4)
    q[:, 0], k[:, 0] = 2, drift * np.arange(16)
    assert_exact(q, k, v, block_k, causal, *tiled_attention(q, k, v, 5, block_k, causal))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_q, n_k", [(5, 9), (9, 5)])
def test_against_torch(n_q, n_k, causal):
    torch = pytest.importorskip("torch")
    q, k, v = head(n_q, n_k, 8, 5)
    mask = np.arange(n_k)[None, :] <= np.arange(n_q)[:, None] + (n_k - n_q) if causal else np.ones((n_q, n_k), bool)
    s = torch.from_numpy(q).double() @ torch.from_numpy(k).double().T / 8**0.5
    theirs = torch.logsumexp(s.masked_fill(~torch.from_numpy(mask), -torch.inf), dim=1).numpy()
    o, lse = tiled_attention(q, k, v, 2, 3, causal)
    bounds = attention_bounds(q, k, v, causal=causal, block_k=3)
    assert bounds[1].ratio(theirs) <= 1 and bounds[1].ratio(lse) <= 1
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        theirs = torch.nn.functional.scaled_dot_product_attention(
            *(torch.from_numpy(x)[None] for x in (q, k, v)), attn_mask=torch.from_numpy(mask)[None])[0].numpy()
    assert bounds[0].ratio(theirs) <= 1 and bounds[0].ratio(o) <= 1


def test_inputs_are_not_touched_and_any_strides_will_do():
    q, k, v = head(12, 18, 10, 8)
    views = q[::2, ::2], k[::-1, ::2], np.asfortranarray(v)
    copies = [x.copy() for x in views]
    for x in views:
        x.flags.writeable = False
    assert_exact(*copies, 4, True, *tiled_attention(*views, 5, 4, causal=True))
    assert all(np.array_equal(x, y) for x, y in zip(views, copies, strict=True))


def test_it_never_holds_the_scores():
    n = 1024
    q, k, v = head(n, n, 16)
    tracemalloc.start()
    try:
        tiled_attention(q, k, v, 32, 32, causal=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < n * n * 4 / 8  # an eighth of S; o and lse alone take a 64th of it


@pytest.mark.parametrize("causal", [False, True])
def test_scores_that_overflow_are_not_passed_off_as_rows_without_keys(causal):
    q, k, v = (np.float32(x) * np.ones((4, 4), np.float32) for x in (1e30, 1e30, 1))
    with np.errstate(all="ignore"):
        o, lse = tiled_attention(q, k, v, 2, 2, causal)
    assert not (o == 0).any() and not (lse == -np.inf).any()
