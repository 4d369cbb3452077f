"""The algebra of online softmax: however the keys are split, ordered and grouped, the state is the same."""
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashedu.exactness import attention_bounds, softmax_bound, state_bounds, unit_roundoff
from flashedu.reference import merge_states, naive_attention, online_attention, stable_softmax, update_normalizer

pytestmark = pytest.mark.filterwarnings("error")
random_cases = settings(max_examples=100, deadline=None, derandomize=True, database=None)
DTYPES = st.sampled_from(["float32", "float64"])
SEEDS = st.integers(0, 10**6)
LOG_SCALES = st.floats(-3, 1.5)  # logits of 0.001 to 30


def keys(n, rows, width, dtype, log_scale, seed):
    """Scores (rows, n) and values (n, width); every fourth score or so is masked."""
    rng = np.random.default_rng(seed)
    s = 10**log_scale * rng.standard_normal((rows, n))
    s[rng.random(s.shape) < 0.25] = -np.inf
    return s.astype(dtype), rng.standard_normal((n, width)).astype(dtype)


def leaf(s, v, j):
    """The state of key j alone, which needs no arithmetic: (score, 1, value), or the empty state where it is masked."""
    seen = s[:, j] > -np.inf
    return s[:, j].copy(), seen.astype(s.dtype), np.where(seen[:, None], v[j], 0).astype(s.dtype)


def empty(rows, width, dtype):
    return np.full(rows, -np.inf, dtype), np.zeros(rows, dtype), np.zeros((rows, width), dtype)


def assert_is_state_of(parts, got):
    """got is the state of all parts: m exactly, l and o within what rounding allows."""
    m, l, o = state_bounds(parts, unit_roundoff(got[1].dtype))
    assert np.array_equal(got[0], m)
    assert l.ratio(got[1]) <= 1
    assert o.ratio(got[2]) <= 1
    assert {x.dtype for x in got} == {parts[0][0].dtype}


def equal(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@random_cases
@given(DTYPES, LOG_SCALES, SEEDS)
def test_merge_is_commutative_to_the_bit(dtype, log_scale, seed):
    a, b = (leaf(*keys(1, 5, 3, dtype, log_scale, [seed, i]), 0) for i in range(2))
    assert equal(merge_states(a, b), merge_states(b, a))


@random_cases
@given(DTYPES, LOG_SCALES, SEEDS)
def test_the_empty_state_is_the_identity_to_the_bit(dtype, log_scale, seed):
    s, v = keys(2, 5, 3, dtype, log_scale, seed)
    a, nothing = merge_states(leaf(s, v, 0), leaf(s, v, 1)), empty(5, 3, dtype)
    assert equal(merge_states(a, nothing), a)
    assert equal(merge_states(nothing, a), a)
    assert equal(merge_states(nothing, nothing), nothing)


@random_cases
@given(DTYPES, LOG_SCALES, SEEDS)
def test_merge_is_associative(dtype, log_scale, seed):
    s, v = keys(3, 5, 3, dtype, log_scale, seed)
    a, b, c = parts = [leaf(s, v, j) for j in range(3)]
    assert_is_state_of(parts, merge_states(merge_states(a, b), c))
    assert_is_state_of(parts, merge_states(a, merge_states(b, c)))


@random_cases
@given(st.data(), st.integers(1, 40), DTYPES, LOG_SCALES, SEEDS)
def test_any_split_in_any_order_and_grouping_gives_the_same_state(data, n, dtype, log_scale, seed):
    s, v = keys(n, 3, 2, dtype, log_scale, seed)
    leaves = [leaf(s, v, j) for j in data.draw(st.permutations(range(n)))]
    parts = list(leaves)
    while len(parts) > 1:  # merge two neighbours, anywhere, until one state is left: every binary tree can come up
        i = data.draw(st.integers(0, len(parts) - 2))
        parts[i : i + 2] = [merge_states(parts[i], parts[i + 1])]
    assert_is_state_of(leaves, parts[0])


@random_cases
@given(st.data(), st.integers(1, 40), DTYPES, LOG_SCALES, SEEDS)
def test_the_normalizer_does_not_depend_on_the_blocks(data, n, dtype, log_scale, seed):
    s, v = keys(n, 3, 1, dtype, log_scale, seed)
    cuts = sorted(data.draw(st.sets(st.integers(1, n), max_size=n)) | {0, n})
    m, l, _ = empty(3, 1, dtype)
    for start, stop in itertools.pairwise(cuts):
        m, l = update_normalizer(m, l, s[:, start:stop])
    exact_m, exact_l, _ = state_bounds([leaf(s, v, j) for j in range(n)], unit_roundoff(dtype))
    assert np.array_equal(m, exact_m) and m.dtype == l.dtype == s.dtype
    assert exact_l.ratio(l) <= 1


def test_update_normalizer_of_a_masked_block_changes_nothing():
    m, l, scores = np.array([2.0, -np.inf]), np.array([3.0, 0.0]), np.full((2, 4), -np.inf)
    assert equal(update_normalizer(m, l, scores), (m, l))


def test_update_normalizer_by_hand():
    m, l = update_normalizer(np.array([0.0, 5.0]), np.array([1.0, 2.0]), np.array([[0.0, 0.0], [5.0, -np.inf]]))
    assert equal((m, l), ([0, 5], [3, 3]))


def test_the_state_gives_softmax():
    s = np.random.default_rng(3).normal(0, 4, (4, 9)).astype(np.float32)
    m, l = update_normalizer(np.full(4, -np.inf, np.float32), np.zeros(4, np.float32), s)
    assert softmax_bound(s).ratio(np.exp(s - m[:, None]) / l[:, None]) <= 1
    assert softmax_bound(s).ratio(stable_softmax(s)) <= 1


@random_cases
@given(st.tuples(st.integers(1, 20), st.integers(1, 40), st.integers(1, 24), st.integers(1, 24)), st.integers(1, 50),
       LOG_SCALES, DTYPES, SEEDS)
def test_online_attention_is_exact(shape, block_size, log_scale, dtype, seed):
    (n_q, n_k, d, d_v), rng = shape, np.random.default_rng(seed)
    q, k, v = (rng.standard_normal(x).astype(dtype) for x in ((n_q, d), (n_k, d), (n_k, d_v)))
    q *= q.dtype.type(10**log_scale)
    o = online_attention(q, k, v, block_size)
    assert o.dtype == q.dtype and o.shape == (n_q, d_v)
    assert attention_bounds(q, k, v, block_k=block_size)[0].ratio(o) <= 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("drift", [60.0, -60.0])
@pytest.mark.parametrize("block_size", [1, 3, 16, 17, 1000])
def test_online_attention_follows_maxima_that_move(drift, block_size, dtype):
    """Rising maxima rescale in every block, falling ones never."""
    rng = np.random.default_rng(9)
    q, k, v = (rng.standard_normal((n, 4)).astype(dtype) for n in (5, 16, 16))
    q[:, 0], k[:, 0] = 2, drift * np.arange(16)
    assert attention_bounds(q, k, v, block_k=block_size)[0].ratio(online_attention(q, k, v, block_size)) <= 1


def test_one_block_is_naive_attention():
    rng = np.random.default_rng(2)
    q, k, v = (rng.integers(-2, 3, (n, 4)).astype(float) for n in (3, 6, 6))
    bound, _ = attention_bounds(q, k, v)
    assert bound.ratio(online_attention(q, k, v, 6)) <= 1
    assert bound.ratio(naive_attention(q, k, v)) <= 1
    assert np.array_equal(online_attention(q, k, v, 6), online_attention(q, k, v, 10**30))


def test_inputs_are_not_touched_and_any_strides_will_do():
    rng = np.random.default_rng(4)
    q, k, v = (rng.standard_normal((n, 8)).astype(np.float32) for n in (10, 14, 14))
    views = q[::-2, ::2], k[:, ::2], v[::-1].T[::3].T
    copies = [x.copy() for x in views]
    for x in views:
        x.flags.writeable = False
    assert attention_bounds(*copies, block_k=4)[0].ratio(online_attention(*views, 4)) <= 1
    assert all(np.array_equal(x, y) for x, y in zip(views, copies, strict=True))
    a, b = (empty(2, 3, "float32") for _ in range(2))
    for part in (*a, *b):
        part.flags.writeable = False
    merge_states(a, b)
    update_normalizer(a[0], a[1], np.broadcast_to(np.float32(1), (2, 5)))
