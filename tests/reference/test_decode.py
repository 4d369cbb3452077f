"""Split-KV attention: however many parts the keys are split into, o and lse are those of attention."""
import tracemalloc

import numpy as np
import pytest
from heads import head
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flashedu.exactness import attention_bounds
from flashedu.reference import decode, merge_states, split_kv_attention, tiled_attention

pytestmark = pytest.mark.filterwarnings("error")
random_cases = settings(max_examples=150, deadline=None, derandomize=True, database=None)


def worst(q, k, v, splits):
    o, lse = split_kv_attention(q, k, v, splits)
    assert (o.dtype, o.shape, lse.dtype, lse.shape) == (q.dtype, (len(q), v.shape[1]), q.dtype, (len(q),))
    bounds = attention_bounds(q, k, v, block_k=-(-len(k) // splits))
    return max(bound.ratio(x) for bound, x in zip(bounds, (o, lse), strict=True))


@random_cases
@given(st.tuples(st.integers(1, 20), st.integers(1, 40), st.integers(1, 24), st.integers(1, 24)), st.integers(1, 60), st.floats(-3, 1.5),
       st.sampled_from(["float32", "float64"]), st.integers(0, 10**6))
@example((1, 1, 1, 1), 60, 0.0, "float32", 0)
def test_exact_over_shapes_parts_and_magnitudes(shape, splits, log_scale, dtype, seed):
    assert worst(*head(*shape, dtype=dtype, scale=10**log_scale, seed=seed), splits) <= 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("drift", [60.0, -60.0])
@pytest.mark.parametrize("splits", [1, 3, 15, 16, 17, 100])
def test_it_follows_maxima_that_move(drift, splits, dtype):
    q, k, v = head(5, 16, 4, dtype=dtype)
    q[:, 0], k[:, 0] = 2, drift * np.arange(16)
    assert worst(q, k, v, splits) <= 1


def test_one_part_is_attention_in_one_tile_to_the_bit():
    q, k, v = head(5, 16, 4)
    assert all(map(np.array_equal, split_kv_attention(q, k, v, 1), tiled_attention(q, k, v, 5, 16)))


@pytest.mark.parametrize("n_k, splits", [(7, 3), (3, 5), (1, 9), (40, 7), (64, 8)])
def test_parts_are_nearly_equal_runs_of_keys(n_k, splits, monkeypatch):
    """A key's value says which key it is, and all weigh the same: a part's o / l is the mean of its keys."""
    merged = []

    def merge(a, b):
        merged.extend([a, b] if not merged else [b])
        return merge_states(a, b)

    monkeypatch.setattr(decode, "merge_states", merge)
    q, k, v = np.ones((2, 1)), np.zeros((n_k, 1)), np.arange(n_k, dtype=float)[:, None]
    split_kv_attention(q, k, v, splits)
    sizes = [int(l[0]) for _, l, _ in merged]
    assert len(sizes) == splits and sum(sizes) == n_k and max(sizes) - min(sizes) <= 1
    keys = np.split(np.arange(n_k), np.cumsum(sizes)[:-1])
    assert [float(o[0, 0]) for _, _, o in merged] == [float(part.sum()) for part in keys]
    assert all(m[0] == (0 if size else -np.inf) for (m, _, _), size in zip(merged, sizes, strict=True))


def test_the_scores_of_all_keys_never_exist_together():
    n_q, n_k = 64, 8192
    q, k, v = head(n_q, n_k, 2)
    tracemalloc.start()
    try:
        split_kv_attention(q, k, v, 64)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < n_q * n_k * 4 / 4


def test_inputs_are_not_touched_and_any_strides_will_do():
    q, k, v = head(10, 14, 8)
    views = q[::-2, ::2], k[:, ::2], v[::-1].T[::3].T
    copies = [x.copy() for x in views]
    for x in views:
        x.flags.writeable = False
    assert worst(*views, 4) <= 1
    assert all(np.array_equal(x, y) for x, y in zip(views, copies, strict=True))
