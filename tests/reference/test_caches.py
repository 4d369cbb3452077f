"""A prefix that is shared, a prompt in chunks, a cache in pages: each is attention over all keys, within the bound of rounding."""
import numpy as np
import pytest

from flashedu.exactness import attention_bounds
from flashedu.reference import attention_state, chunked_prefill, merge_states, paged_attention, shared_prefix_attention


def tensors(*rows, d=32, dtype=np.float32, magnitude=1, seed=0):
    rng = np.random.default_rng(seed)
    return [(magnitude * rng.standard_normal((n, d))).astype(dtype) for n in rows]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_q, n_k", [(1, 1), (7, 50), (50, 50), (50, 7)])
def test_a_state_is_attention_before_the_division(n_q, n_k, causal, dtype):
    q, k, v = tensors(n_q, n_k, n_k, dtype=dtype, magnitude=3)
    m, l, o = attention_state(q, k, v, causal)
    bound, lse_bound = attention_bounds(q, k, v, causal=causal)
    blind = max(0, n_q - n_k) if causal else 0
    assert m.dtype == l.dtype == o.dtype == dtype
    assert (m[:blind] == -np.inf).all() and not l[:blind].any() and not o[:blind].any() and (l[blind:] >= 1).all()
    assert bound.ratio(o / np.where(l == 0, 1, l)[:, None]) <= 1
    assert lse_bound.ratio(np.where(l > 0, m + np.log(np.where(l > 0, l, 1)), -np.inf)) <= 1


@pytest.mark.parametrize("magnitude", [1, 30])
@pytest.mark.parametrize("prefix, lengths, r", [(100, (1, 40, 7), 4), (1, (1,), 1), (300, (20, 20), 3), (5, (200, 1, 1, 60), 2)])
def test_a_shared_prefix_is_read_once_and_changes_nothing(prefix, lengths, r, magnitude):
    q, k, v = tensors(r * len(lengths), prefix, prefix, magnitude=magnitude)
    suffixes = [tuple(tensors(n, n, seed=n, magnitude=magnitude)) for n in lengths]
    o = shared_prefix_attention(q, k, v, suffixes)
    for i, (k_i, v_i) in enumerate(suffixes):
        rows = slice(i * r, (i + 1) * r)
        bound, _ = attention_bounds(q[rows], np.concatenate((k, k_i)), np.concatenate((v, v_i)), block_k=max(prefix, len(k_i)))
        assert bound.ratio(o[rows]) <= 1


def test_the_prefix_is_multiplied_with_all_queries_at_once(monkeypatch):
    import flashedu.reference.caches as caches

    seen, state = [], caches.attention_state
    monkeypatch.setattr(caches, "attention_state", lambda q, k, v: (seen.append((len(q), len(k))), state(q, k, v))[1])
    q, k, v = tensors(12, 100, 100)
    caches.shared_prefix_attention(q, k, v, [tuple(tensors(n, n)) for n in (3, 5, 2)])
    assert seen == [(12, 100), (4, 3), (4, 5), (4, 2)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n, chunk", [(1, 1), (100, 1), (100, 32), (100, 100), (100, 1000)])
def test_a_prompt_in_chunks_is_causal_attention(n, chunk, dtype):
    q, k, v = tensors(n, n, n, dtype=dtype, magnitude=2)
    o = chunked_prefill(q, k, v, chunk)
    bound, _ = attention_bounds(q, k, v, causal=True, block_k=chunk)
    assert o.dtype == dtype and bound.ratio(o) <= 1


def test_what_comes_later_is_not_seen():
    q, k, v = tensors(60, 60, 60)
    before = chunked_prefill(q, k, v, 16)
    k[40:], v[40:] = 7, 7
    assert np.array_equal(chunked_prefill(q, k, v, 16)[:40], before[:40])


@pytest.mark.parametrize("n, page", [(1, 1), (64, 16), (65, 16), (1, 16), (79, 16), (50, 64)])
def test_a_cache_in_pages_is_attention_over_its_keys(n, page):
    (q,), pool, used = tensors(3, magnitude=3), 20 * page, -(-n // page)
    k, v = tensors(pool, pool, seed=1)
    table = np.random.default_rng(2).permutation(20)[:used]
    slots = np.concatenate([np.arange(p * page, (p + 1) * page) for p in table])[:n]
    bound, _ = attention_bounds(q, k[slots], v[slots], block_k=page)
    o = paged_attention(q, k, v, table, page, n)
    assert bound.ratio(o) <= 1
    others = np.setdiff1d(np.arange(pool), slots)
    k[others], v[others] = 1e30, -1e30  # other sequences' pages, and the end of the last page
    assert np.array_equal(paged_attention(q, k, v, list(table), page, n), o)


def test_a_merge_without_weights_would_be_caught():
    """The bound tells a mean of the parts' outputs from the merge, also where scores are small."""
    q, k, v = tensors(4, 64, 64, magnitude=0.5)
    bound, _ = attention_bounds(q, k, v, block_k=32)
    parts = [attention_state(q, k[keys], v[keys]) for keys in (slice(0, 32), slice(32, None))]
    _, l, o = merge_states(*parts)
    assert bound.ratio(o / l[:, None]) <= 1 < bound.ratio(sum(o / l[:, None] for _, l, o in parts) / 2)


Q, K, V = tensors(6, 32, 32)


@pytest.mark.parametrize("call, error, words", [
    (lambda: shared_prefix_attention(Q, K, V, []), ValueError, "it has 6 rows for 0 suffixes"),
    (lambda: shared_prefix_attention(Q, K, V, [(K, V)] * 4), ValueError, "it has 6 rows for 4 suffixes"),
    (lambda: shared_prefix_attention(Q, K, V, [(K[:, :8], V)]), ValueError, "the same head dimension"),
    (lambda: shared_prefix_attention(Q, K, V, [(K.astype(float), V)]), TypeError, "must have one dtype"),
    (lambda: shared_prefix_attention(Q, K, V, [(K, V[:, :1])]), ValueError, "must have 32 columns, as those of the prefix, but those of suffix 0 have 1"),
    (lambda: shared_prefix_attention(Q, K, V, 5), TypeError, "suffixes must be a list of pairs"),
    (lambda: chunked_prefill(Q, K, V, 4), ValueError, "they have 6 and 32"),
    (lambda: chunked_prefill(K, K, V, 0), ValueError, "block_size must be at least 1"),
    (lambda: paged_attention(Q, K, V, [0, 1], 8, 20), ValueError, "table must hold 3 pages of 8 rows"),
    (lambda: paged_attention(Q, K, V, [0, 4], 8, 16), ValueError, "within 32 rows"),
    (lambda: paged_attention(Q, K, V, 3, 8, 8), TypeError, "table must be a list of pages, but it is 3"),
    (lambda: paged_attention(Q, K, V, [-1], 8, 8), ValueError, "a page of table must be at least 0"),
    (lambda: paged_attention(Q, K, V, [0.5], 8, 8), TypeError, "a page of table must be a whole number"),
    (lambda: attention_state(Q, K[:, :8], V), ValueError, "the same head dimension"),
])
def test_refusals(call, error, words):
    with pytest.raises(error, match=words):
        call()
