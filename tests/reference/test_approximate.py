"""Each approximation against its definition, written as weights on all pairs, and exact where it should be."""
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashedu.exactness import attention_bounds
from flashedu.reference import linear_attention, pooled_attention, window_attention

pytestmark = pytest.mark.filterwarnings("error")
random_cases = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def head(n_q, n_k, d, d_v=3, dtype="float64", seed=0):
    rng = np.random.default_rng([seed, n_q, n_k, d])
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in ((n_q, d), (n_k, d), (n_k, d_v)))


def weighted(weights, v):
    """sum_j w_ij v_j / sum_j w_ij."""
    return weights @ v / weights.sum(axis=1, keepdims=True)


def exponentials(q, k):
    return np.exp(q @ k.T / np.sqrt(q.shape[1]))


@random_cases
@given(st.integers(1, 30), st.integers(1, 9), st.integers(0, 35), st.integers(0, 10**6))
def test_a_window_is_a_mask(n, d, reach, seed):
    q, k, v = head(n, n, d, seed=seed)
    near = np.array([[abs(i - j) <= reach for j in range(n)] for i in range(n)])
    np.testing.assert_allclose(window_attention(q, k, v, reach), weighted(near * exponentials(q, k), v), rtol=1e-12, atol=1e-13)


@random_cases
@given(st.integers(1, 12), st.integers(1, 40), st.data(), st.integers(0, 10**6))
def test_pooling_is_attention_over_means_that_weigh_as_many_keys(n_q, n_k, data, seed):
    rank = data.draw(st.integers(1, n_k))
    q, k, v = head(n_q, n_k, 5, seed=seed)
    runs = [[j for j in range(n_k) if run * n_k // rank <= j < (run + 1) * n_k // rank] for run in range(rank)]
    assert [j for run in runs for j in run] == list(range(n_k)) and {len(run) for run in runs} <= {n_k // rank, n_k // rank + 1}
    means = [np.array([x[run].mean(axis=0) for run in runs]) for x in (k, v)]
    weights = exponentials(q, means[0]) * [len(run) for run in runs]
    np.testing.assert_allclose(pooled_attention(q, k, v, rank), weighted(weights, means[1]), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("n_q, n_k, d", [(1, 1, 1), (7, 20, 4), (20, 7, 33)])
def test_linear_attention_is_weights_that_are_products_of_features(n_q, n_k, d):
    q, k, v = head(n_q, n_k, d)
    phi = lambda x: [1 + y if y > 0 else np.exp(y) for y in x]  # noqa: E731
    weights = np.array([[np.dot(phi(a), phi(b)) for b in k] for a in q])
    np.testing.assert_allclose(linear_attention(q, k, v), weighted(weights, v), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_they_are_exact_where_nothing_is_given_up(dtype):
    q, k, v = head(50, 50, 16, dtype=dtype)
    bound, _ = attention_bounds(q, k, v)
    for o in (window_attention(q, k, v, 49), pooled_attention(q, k, v, 50)):
        assert o.dtype == dtype and bound.ratio(o) <= 1
    equal = np.repeat(k[:8], [6, 6, 6, 7, 6, 6, 6, 7], axis=0)  # the runs of rank 8
    bound, _ = attention_bounds(q, equal, v)
    assert bound.ratio(pooled_attention(q, equal, v, 8)) <= 1
    bound, _ = attention_bounds(q, 0 * k, v)  # all weights equal, whatever they are made of
    assert bound.ratio(linear_attention(q, 0 * k, v)) <= 1


def test_elsewhere_they_are_other_functions():
    q, k, v = head(200, 200, 16, dtype="float32")
    bound, _ = attention_bounds(q, k, v)
    for o in (window_attention(q, k, v, 20), pooled_attention(q, k, v, 100), linear_attention(q, k, v)):
        assert o.dtype == np.float32 and bound.ratio(o) > 1000


def test_features_that_underflow_give_zero_and_no_nan():
    q, k, v = head(4, 5, 3, dtype="float32")
    assert np.array_equal(linear_attention(0 * q - 200, k, v), np.zeros((4, 3)))
