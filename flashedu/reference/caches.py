"""Keys that lie in several places: before all sequences of a batch, in earlier chunks of a prompt, in pages of a cache.

Wherever some of the keys lie, they give their queries a state (m, l, o), and states are merged.
"""
import functools

import numpy as np

from flashedu.arguments import attention_inputs, positive_int, short, validated
from flashedu.reference.online import merge_states


@validated
def attention_state(q, k, v, causal=False):
    """The state (m, l, o) of queries that have seen these keys, and no others: maxima, sums of exp(s - m), sums of exp(s - m) v.

    Takes q (Nq, D), k (Nk, D), v (Nk, Dv), of one dtype; with causal=True query i sees key j when
    j <= i + Nk - Nq. Returns m (Nq,), l (Nq,), o (Nq, Dv), and for a row that sees no key the empty
    state (-inf, 0, 0). In the package it raises TypeError or ValueError for arrays that do not fit.
    Source: as `merge_states`.
    """
    s = q @ k.T * q.shape[1] ** -0.5  # (Nq, Nk)
    if causal:
        s = np.where(np.tri(len(q), len(k), len(k) - len(q), dtype=bool), s, -np.inf)
    m = s.max(axis=1, initial=-np.inf)
    p = np.exp(s - np.where(m == -np.inf, 0, m)[:, None])
    return m, p.sum(axis=1), p @ v


@validated
def shared_prefix_attention(q, k, v, suffixes):
    """Attention of several sequences that begin with the same keys, which are read once for all of them.

    Takes the queries of all sequences one below the other, q (sequences * R, D), the prefix k (Nk, D), v (Nk, Dv), and
    for each sequence the pair (k_i, v_i) of what follows the prefix, of any length. No mask: queries are the last tokens,
    as in decoding. Returns o (sequences * R, Dv). Raises TypeError when suffixes is no list of pairs, ValueError unless
    every sequence has as many queries and values as wide as the prefix. In the package it raises them for arrays that do
    not fit together, too. Source: Juravsky et al. 2024 (Hydragen), section 3.
    """
    pairs = isinstance(suffixes, (list, tuple)) and all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in suffixes)
    if not pairs:
        raise TypeError(f"suffixes must be a list of pairs (k_i, v_i), but it is {short(suffixes)}.")
    if len(suffixes) == 0 or len(q) % len(suffixes):
        raise ValueError(f"q must have the same number of rows for each suffix, but it has {len(q)} rows for {len(suffixes)} suffixes.")
    before, r, outputs = attention_state(q, k, v), len(q) // len(suffixes), []
    for i, (k_i, v_i) in enumerate(suffixes):
        rows = slice(i * r, (i + 1) * r)
        attention_inputs(q[rows], k_i, v_i)
        if v_i.shape[1] != v.shape[1]:
            raise ValueError(f"values must have {v.shape[1]} columns, as those of the prefix, but those of suffix {i} have {v_i.shape[1]}.")
        _, l, o = merge_states(tuple(x[rows] for x in before), attention_state(q[rows], k_i, v_i))
        outputs.append(o / l[:, None])
    return np.concatenate(outputs)


@validated
def chunked_prefill(q, k, v, block_size):
    """Causal attention of a prompt that comes in chunks of `block_size` tokens: what is in the cache, then the chunk itself.

    Takes q, k (N, D) and v (N, Dv) of the whole prompt; returns o (N, Dv). Only the chunk's own keys need a mask, and a
    chunk needs nothing of the earlier ones but their keys and values. Raises ValueError unless q and k have as many rows.
    In the package it raises TypeError or ValueError for other arrays that do not fit, too, and a block_size that is no
    positive whole number. Source: Agrawal et al. 2024 (Sarathi-Serve), section 4.
    """
    if len(q) != len(k):
        raise ValueError(f"q and k must have one row for each token of the prompt, but they have {len(q)} and {len(k)}.")
    outputs = []
    for start in range(0, len(q), block_size):
        own = slice(start, start + block_size)
        _, l, o = merge_states(  # with the empty state, at first
            attention_state(q[own], k[:start], v[:start]), attention_state(q[own], k[own], v[own], causal=True))
        outputs.append(o / l[:, None])
    return np.concatenate(outputs)


@validated
def paged_attention(q, k, v, table, block_size, n):
    """Attention of queries over the n keys of a sequence that lie in pages of `block_size` rows, anywhere in a pool.

    Takes q (Nq, D), the pool k (rows, D), v (rows, Dv) of all sequences, where page p is the rows from p * block_size on,
    and the sequence's pages in their order; its last page may be partly filled. No mask. Returns o (Nq, Dv).
    Raises TypeError or ValueError for a table that does not fit. In the package it raises them for arrays that do not fit
    and for sizes that are not positive whole numbers, too. Source: Kwon et al. 2023 (PagedAttention), section 4.1.
    """
    if np.ndim(table) != 1:
        raise TypeError(f"table must be a list of pages, but it is {short(table)}.")
    pages = [positive_int("a page of table", page, least=0) for page in table]
    if len(pages) != -(-n // block_size) or any((page + 1) * block_size > len(k) for page in pages):
        raise ValueError(f"table must hold {-(-n // block_size)} pages of {block_size} rows, all of them within {len(k)} rows, but it is {short(table)}.")
    starts = [page * block_size for page in pages]
    runs = [slice(start, start + min(block_size, n - place * block_size)) for place, start in enumerate(starts)]  # no more than n in all
    _, l, o = functools.reduce(merge_states, (attention_state(q, k[rows], v[rows]) for rows in runs))
    return o / l[:, None]
