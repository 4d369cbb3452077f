"""Lazy rescaling: exact whatever the threshold, and rescaled exactly when the reference has fallen too far behind."""
import math

import numpy as np
import pytest
from heads import head
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flashedu.exactness import attention_bounds
from flashedu.reference import lazy_attention, online_attention

pytestmark = pytest.mark.filterwarnings("error")
random_cases = settings(max_examples=150, deadline=None, derandomize=True, database=None)


def one_query(scores, dtype="float32"):
    """q, k, v for which the scores are these, exactly (D = 1)."""
    k = np.array(scores, dtype)[:, None]
    return np.ones((1, 1), dtype), k, np.arange(1, len(k) + 1, dtype=dtype)[:, None]


def count(q, k, block_size, threshold):
    """Row by row, from the definition."""
    rescalings = 0
    for i in range(len(q)):
        reference = None
        for j in range(0, len(k), block_size):
            top = max(float(s) for s in (q @ k[j : j + block_size].T * q.shape[1] ** -0.5)[i])
            if reference is None:
                reference = top
            elif top - reference > threshold:
                rescalings, reference = rescalings + 1, top
    return rescalings


@random_cases
@given(st.tuples(st.integers(1, 20), st.integers(1, 40), st.integers(1, 24), st.integers(1, 24)), st.integers(1, 50), st.floats(0, 20),
       st.floats(-3, 1.5), st.sampled_from(["float32", "float64"]), st.integers(0, 10**6))
@example((2, 40, 4, 4), 1, 0.0, 1.5, "float32", 0)
@example((2, 40, 4, 4), 1, 20.0, 1.5, "float32", 0)
def test_exact_and_counted_over_shapes_thresholds_and_magnitudes(shape, block_size, threshold, log_scale, dtype, seed):
    q, k, v = head(*shape, dtype=dtype, scale=10**log_scale, seed=seed)
    o, rescalings = lazy_attention(q, k, v, block_size, threshold)
    assert o.dtype == q.dtype and o.shape == (shape[0], shape[3]) and type(rescalings) is int
    assert attention_bounds(q, k, v, block_k=block_size)[0].ratio(o) <= 1
    assert rescalings == count(q, k, block_size, threshold)


@random_cases
@given(st.integers(1, 30), st.integers(1, 9), st.integers(0, 10**6))
def test_threshold_0_is_online_softmax_to_the_bit(n_k, block_size, seed):
    q, k, v = head(5, n_k, 4, seed=seed)
    o, rescalings = lazy_attention(q, k, v, block_size, 0)
    assert np.array_equal(o, online_attention(q, k, v, block_size))
    tops = np.array([[s[j : j + block_size].max() for j in range(0, n_k, block_size)] for s in q @ k.T / 2])
    largest = np.maximum.accumulate(tops, axis=1)
    assert rescalings == (largest[:, 1:] > largest[:, :-1]).sum()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("drift", [60.0, 3.0, 0.7, -60.0])
@pytest.mark.parametrize("block_size", [1, 3, 16, 17, 1000])
def test_it_follows_maxima_that_move(drift, block_size, dtype):
    q, k, v = head(5, 16, 4, dtype=dtype)
    q[:, 0], k[:, 0] = 2, drift * np.arange(16)
    o, rescalings = lazy_attention(q, k, v, block_size, 8.0)
    assert attention_bounds(q, k, v, block_k=block_size)[0].ratio(o) <= 1
    assert rescalings == count(q, k, block_size, 8.0)


@pytest.mark.parametrize(
    "scores, threshold, rescalings",
    [
        ([5], 0, 0),
        ([5, 5, 5], 0, 0),  # equal is not above
        ([1, 2, 3], 0, 2),
        ([0, 4], 4, 0),  # by exactly the threshold
        ([0, 4.5], 4, 1),
        ([0, 3, 6, 9, 12], 4, 2),  # 6 is above 0 + 4, 12 above 6 + 4: small rises add up
        ([0, 3, 4, 3, 4], 4, 0),
        ([0, 100, 50, 103, 105], 4, 2),
        ([9, 0, 12, 14], 4, 1),  # 12 is less than 4 above 9, whatever came between
        ([0, -100, -90, -80], 4, 0),  # relative to the reference, not to the block before
    ],
)
def test_counts_by_hand(scores, threshold, rescalings):
    q, k, v = one_query(scores)
    o, counted = lazy_attention(q, k, v, 1, threshold)
    assert counted == rescalings
    assert attention_bounds(q, k, v, block_k=1)[0].ratio(o) <= 1


def test_every_row_decides_for_itself():
    q, k, v = np.array([[1.0], [2.0], [-1.0]]), np.array([[0.0], [3.0], [6.0]]), np.ones((3, 1))
    assert lazy_attention(q, k, v, 1, 4.0)[1] == 1 + 2 + 0


def test_fewer_rescalings_the_larger_the_threshold():
    q, k, v = head(64, 1024, 64, scale=3)
    counts = [lazy_attention(q, k, v, 16, threshold)[1] for threshold in (0, 1, 2, 4, 8)]
    assert counts == sorted(counts, reverse=True) and counts[0] > 2 * counts[2] and counts[2] > 2 * counts[3] > 0


@pytest.mark.parametrize("dtype, largest", [("float32", 88.7), ("float64", 709.7)])
def test_just_below_the_largest_threshold_nothing_overflows(dtype, largest):
    """The reference stays at 0, and all other scores are as far above it as they may be."""
    threshold = largest - math.log(8) - 1
    q, k, v = one_query([0] + [threshold * 0.999] * 7, dtype)
    o, rescalings = lazy_attention(q, k, np.sign(v), 1, threshold)
    assert rescalings == 0 and attention_bounds(q, k, np.sign(v), block_k=1)[0].ratio(o) <= 1
    with pytest.raises(ValueError, match=rf"threshold must be at most \d+\.\d for this v, or sums of exp\(threshold\) overflow {dtype}"):
        lazy_attention(q, k, np.sign(v), 1, threshold + 2)
    with pytest.raises(ValueError, match="threshold must be at most"):
        lazy_attention(q, k, v * v.dtype.type(1e6), 1, threshold)


def test_threshold_0_is_never_too_large():
    q, k, v = one_query([0, 1])
    assert np.isfinite(lazy_attention(q, k, v * np.float32(1e38), 1, 0)[0]).all()


def test_scores_that_overflow_are_not_hidden():
    q, k, v = (np.float32(x) * np.ones((4, 4), np.float32) for x in (1e30, -1e30, 1))
    with np.errstate(all="ignore"):
        assert np.isnan(lazy_attention(q, k, v, 2, 4)[0]).all()


def test_inputs_are_not_touched_and_any_strides_will_do():
    q, k, v = head(10, 14, 8)
    views = q[::-2, ::2], k[:, ::2], v[::-1].T[::3].T
    copies = [x.copy() for x in views]
    for x in views:
        x.flags.writeable = False
    o, rescalings = lazy_attention(*views, 4, 0.5)
    assert attention_bounds(*copies, block_k=4)[0].ratio(o) <= 1 and rescalings == count(*copies[:2], 4, 0.5)
    assert all(np.array_equal(x, y) for x, y in zip(views, copies, strict=True))
