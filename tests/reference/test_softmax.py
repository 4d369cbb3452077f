"""Softmax against the definition, summed exactly, and against what every softmax must do."""
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashedu.exactness import softmax_bound
from flashedu.reference import stable_softmax

pytestmark = pytest.mark.filterwarnings("error")
random_cases = settings(max_examples=100, deadline=None, derandomize=True, database=None)


def by_definition(row):
    """exp(x_i) / sum exp(x_j) as 1 / sum exp(x_j - x_i): no maximum, and sums without rounding."""
    return [0.0 if x == -math.inf else 1 / math.fsum(math.exp(y - x) for y in row) for x in row]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 1), (4, 9), (2, 3, 5), (2, 1, 3, 4)])
def test_against_the_definition(shape, dtype):
    x = np.random.default_rng(shape).normal(0, 3, shape).astype(dtype)
    p = stable_softmax(x)
    assert p.dtype == x.dtype and p.shape == x.shape
    bound = softmax_bound(x)
    expected = np.array([by_definition(row.tolist()) for row in x.reshape(-1, shape[-1])]).reshape(shape)
    # the definition is computed in float64: it is off by what one exp, one division and one difference round
    oracle_rounding = 2.0**-53 * (2 * np.abs(x).max() + 4) * expected
    assert (np.abs(p - expected) <= bound.bound + oracle_rounding).all()


@random_cases
@given(st.integers(1, 60), st.floats(-3, 3), st.sampled_from(["float32", "float64"]), st.floats(0, 1), st.integers(0, 10**6))
def test_exact_over_lengths_magnitudes_and_masks(n, log_scale, dtype, masked, seed):
    rng = np.random.default_rng(seed)
    x = (10**log_scale * rng.standard_normal((3, n))).astype(dtype)
    x[rng.random(x.shape) < masked] = -np.inf
    p = stable_softmax(x)
    assert softmax_bound(x).ratio(p) <= 1
    assert (p[x == -np.inf] == 0).all()
    u = np.finfo(dtype).eps / 2
    sums = p.astype(np.float64).sum(axis=-1)
    seen = (x > -np.inf).any(axis=-1)
    assert (sums[~seen] == 0).all()
    assert (np.abs(sums[seen] - 1) < 2 * n * u).all()  # n - 1 roundings in each of two sums, one in the quotient


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_row_of_nothing_gives_zeros_and_leaves_the_others_alone(dtype):
    x = np.array([[-np.inf, -np.inf], [0, 0], [-np.inf, 5]], dtype)
    assert np.array_equal(stable_softmax(x), np.array([[0, 0], [0.5, 0.5], [0, 1]], dtype))


@pytest.mark.parametrize("offset", [-1e4, 700.0, 1e4])
def test_a_common_offset_changes_nothing(offset):
    x = np.arange(8.0).reshape(2, 4)  # whole numbers: adding the offset is exact
    assert np.array_equal(stable_softmax(x + offset), stable_softmax(x))


def test_huge_logits_do_not_overflow():
    assert np.array_equal(stable_softmax(np.array([1e30, 0, -1e30], np.float32)), [1, 0, 0])
    assert np.array_equal(stable_softmax(np.full(4, 3e38, np.float32)), np.full(4, 0.25))


def test_the_input_is_not_touched_and_any_strides_will_do():
    base = np.random.default_rng(1).standard_normal((8, 12)).astype(np.float32)
    for view in (base[::2, ::3], base[::-1, ::-1], base.T, np.broadcast_to(base[0], (3, 12))):
        before = view.copy()
        view.flags.writeable = False
        assert softmax_bound(before).ratio(stable_softmax(view)) <= 1
        assert np.array_equal(view, before)
