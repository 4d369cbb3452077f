"""Naive attention against a sum over keys in Python, and against PyTorch."""
import math

import numpy as np
import pytest
from heads import head
from hypothesis import given, settings
from hypothesis import strategies as st

from flashedu.exactness import attention_bounds
from flashedu.machine import Machine, SramOverflow
from flashedu.reference import naive_attention, naive_on_machine

pytestmark = pytest.mark.filterwarnings("error")
random_cases = settings(max_examples=100, deadline=None, derandomize=True, database=None)


def key_by_key(q, k, v, causal):
    """The definition, one query and one key at a time, with sums that do not round."""
    n_q, n_k, d = len(q), len(k), q.shape[1]
    out = []
    for i in range(n_q):
        last = i + n_k - n_q if causal else n_k - 1
        scores = [math.fsum(float(x) * float(y) for x, y in zip(q[i], k[j], strict=True)) / math.sqrt(d)
                  for j in range(n_k) if j <= last]
        weights = [math.exp(s - max(scores)) for s in scores]
        total = math.fsum(weights)
        out.append([math.fsum(w / total * float(v[j, c]) for j, w in enumerate(weights)) for c in range(v.shape[1])])
    return np.array(out)


SHAPES = [(1, 1, 1, 1), (1, 9, 4, 3), (9, 1, 4, 4), (6, 6, 5, 2), (5, 8, 3, 7), (8, 5, 3, 4), (7, 2, 16, 1)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_against_the_definition(shape, dtype, causal):
    q, k, v = head(*shape, dtype=dtype)
    o = naive_attention(q, k, v, causal)
    assert o.shape == (len(q), v.shape[1]) and o.dtype == q.dtype
    bound, _ = attention_bounds(q, k, v, causal=causal)
    oracle_rounding, _ = attention_bounds(q, k, v, causal=causal, u=2.0**-53)  # the definition is computed in float64
    assert (np.abs(o - key_by_key(q, k, v, causal)) <= bound.bound + oracle_rounding.bound).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_q, n_k", [(5, 8), (8, 5), (6, 6), (4, 1)])
def test_a_causal_row_is_attention_over_the_keys_it_sees(n_q, n_k, dtype):
    q, k, v = head(n_q, n_k, 4, 3, dtype)
    o = naive_attention(q, k, v, causal=True)
    for i in range(n_q):
        visible = max(0, i + 1 + n_k - n_q)
        if visible == 0:
            assert (o[i] == 0).all()
        else:
            bound, _ = attention_bounds(q[i : i + 1], k[:visible], v[:visible])
            assert bound.ratio(o[i : i + 1]) <= 1
    assert np.array_equal(o[-1:], naive_attention(q, k, v)[-1:])  # the last query sees every key


@random_cases
@given(st.tuples(st.integers(1, 33), st.integers(1, 33), st.integers(1, 40), st.integers(1, 40)), st.floats(-3, 1.5),
       st.booleans(), st.sampled_from(["float32", "float64"]), st.integers(0, 10**6))
def test_exact_over_shapes_and_magnitudes(shape, log_scale, causal, dtype, seed):
    q, k, v = head(*shape, dtype=dtype, scale=10**log_scale, seed=seed)
    bound, _ = attention_bounds(q, k, v, causal=causal)
    assert bound.ratio(naive_attention(q, k, v, causal)) <= 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_q, n_k, causal", [(7, 7, False), (7, 7, True), (5, 9, True), (9, 5, True), (1, 6, True)])
def test_against_torch(n_q, n_k, causal, dtype):
    torch = pytest.importorskip("torch")
    q, k, v = head(n_q, n_k, 8, 5, dtype)
    mask = np.arange(n_k)[None, :] <= np.arange(n_q)[:, None] + (n_k - n_q) if causal else np.ones((n_q, n_k), bool)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        theirs = torch.nn.functional.scaled_dot_product_attention(
            *(torch.from_numpy(x)[None] for x in (q, k, v)), attn_mask=torch.from_numpy(mask)[None])[0].numpy()
    bound, _ = attention_bounds(q, k, v, causal=causal)
    ours = naive_attention(q, k, v, causal)
    assert bound.ratio(theirs) <= 1 and bound.ratio(ours) <= 1
    assert (theirs[~mask.any(axis=1)] == 0).all() and (ours[~mask.any(axis=1)] == 0).all()


def test_equal_scores_give_the_mean_exactly():
    v = np.arange(12.0).reshape(4, 3)
    q, k = np.zeros((2, 5)), np.ones((4, 5))
    assert np.array_equal(naive_attention(q, k, v), np.tile(v.mean(axis=0), (2, 1)))


def test_inputs_are_not_touched_and_any_strides_will_do():
    q, k, v = head(12, 18, 10, 8)
    views = q[::2, ::2], k[::-1, ::2], np.asfortranarray(v)
    copies = [x.copy() for x in views]
    for x in views:
        x.flags.writeable = False
    bound, _ = attention_bounds(*copies, causal=True)
    assert bound.ratio(naive_attention(*views, causal=True)) <= 1
    assert all(np.array_equal(x, y) for x, y in zip(views, copies, strict=True))


@pytest.mark.parametrize("n_q, n_k, d, d_v", [(1, 1, 1, 1), (5, 8, 4, 3), (8, 5, 3, 6)])
def test_three_kernels_on_the_machine(n_q, n_k, d, d_v):
    q, k, v = head(n_q, n_k, d, d_v)
    s = np.full((n_q, n_k), np.nan, np.float32)
    room = (n_k * max(d, d_v) + n_k + max(d, d_v)) * 4  # k or v, a row of scores, a row of q or o
    machine = Machine.for_attention(q, k, v, room, s=s, p=s)
    naive_on_machine(machine)
    bound, _ = attention_bounds(q, k, v)
    assert bound.ratio(machine.hbm["o"]) <= 1
    assert bound.ratio(machine.hbm["p"] @ v) <= 1
    assert machine.sram_used == 0
    with pytest.raises(SramOverflow, match="resident: k 0:"):
        naive_on_machine(Machine.for_attention(q, k, v, n_k * d * 4, s=s, p=s))
