"""Right answers to the exercises of chapters 7 and 8: other ways to count, to split, to weigh and to merge, other precisions."""
import itertools
import math
from fractions import Fraction

import numpy as np
from right_answers import answer, logsumexp, stacked

# attention_intensity


@answer("attention_intensity")
def intensity_array_by_array(n_q, n_k, head_dim, heads, kv_heads, itemsize):
    q = o = heads * n_q * head_dim
    k = v = kv_heads * n_k * head_dim
    scores = values = heads * n_q * n_k * head_dim
    return 2 * (scores + values) / (itemsize * (q + k + v + o))


@answer("attention_intensity")
def intensity_cancelled(n_q, n_k, head_dim, heads, kv_heads, itemsize):
    """head_dim cancels."""
    return 2.0 / itemsize / (kv_heads / (heads * n_q) + 1 / n_k)


@answer("attention_intensity")
def intensity_in_fractions(n_q, n_k, head_dim, heads, kv_heads, itemsize):
    return float(Fraction(2 * n_q * n_k * heads, (heads * n_q + kv_heads * n_k) * itemsize))


@answer("attention_intensity")
def intensity_by_groups(n_q, n_k, head_dim, heads, kv_heads, itemsize):
    """One key head and the query heads that share it; a NumPy number is a number."""
    rows = np.float64(heads // kv_heads * n_q)
    return 4 * rows * n_k * head_dim / (itemsize * head_dim * (rows + n_k + n_k + rows))


# kv_cache_bytes


@answer("kv_cache_bytes")
def cache_layer_by_layer(n, layers, kv_heads, head_dim, itemsize):
    return sum(itemsize * n * kv_heads * head_dim for _ in range(layers) for _ in ("k", "v"))


@answer("kv_cache_bytes")
def cache_token_by_token(n, layers, kv_heads, head_dim, itemsize):
    token = layers * kv_heads * (head_dim + head_dim) * itemsize
    return token * n


@answer("kv_cache_bytes")
def cache_in_numpy(n, layers, kv_heads, head_dim, itemsize):
    return np.prod(np.array([2, n, layers, kv_heads, head_dim, itemsize], np.int64))


@answer("kv_cache_bytes")
def cache_by_shape(n, layers, kv_heads, head_dim, itemsize):
    return math.prod((layers, 2, kv_heads, n, head_dim)) * itemsize


# attention_flop_share


@answer("attention_flop_share")
def share_product_by_product(n, hidden, ffn, heads, kv_heads, head_dim):
    inner, kv_inner = heads * head_dim, kv_heads * head_dim
    products = [(n, hidden, inner), (n, hidden, kv_inner), (n, hidden, kv_inner), (n, inner, hidden), (n, hidden, ffn), (n, hidden, ffn), (n, ffn, hidden)]
    attention = heads * ((n, head_dim, n), (n, n, head_dim))
    count = sum(2 * a * b * c for a, b, c in attention)
    return count / (count + sum(2 * a * b * c for a, b, c in products))


@answer("attention_flop_share")
def share_of_one_token(n, hidden, ffn, heads, kv_heads, head_dim):
    """FLOPs for each token, in multiply-adds: the weights once, and n keys and values."""
    weights = hidden * (2 * (heads + kv_heads) * head_dim + 3 * ffn)
    return 2 * n * heads * head_dim / (2 * n * heads * head_dim + weights)


@answer("attention_flop_share")
def share_by_ratio(n, hidden, ffn, heads, kv_heads, head_dim):
    rest_by_attention = (hidden / n) * (1 + kv_heads / heads + 1.5 * ffn / (heads * head_dim))
    return 1 / (1 + rest_by_attention)


@answer("attention_flop_share")
def share_in_floats(n, hidden, ffn, heads, kv_heads, head_dim):
    n, hidden, ffn, heads, kv_heads, head_dim = map(float, (n, hidden, ffn, heads, kv_heads, head_dim))
    flops = np.array([4 * n * n * head_dim * heads, 4 * n * hidden * head_dim * heads, 4 * n * hidden * head_dim * kv_heads, 6 * n * hidden * ffn])
    return (flops / flops.sum())[0]


# split_kv_attention


def _part(q, k, v):
    """The state of some keys; of none, the identity."""
    if len(k) == 0:
        return np.full(len(q), -np.inf, q.dtype), np.zeros(len(q), q.dtype), np.zeros((len(q), v.shape[1]), q.dtype)
    s = q @ k.T * q.shape[1] ** -0.5
    m = s.max(axis=1)
    p = np.exp(s - m[:, None])
    return m, p.sum(axis=1), p @ v


@answer("split_kv_attention")
def a_running_state(q, k, v, splits):
    state = _part(q, k[:0], v[:0])
    for k_i, v_i in zip(np.array_split(k, splits), np.array_split(v, splits)):
        state = stacked(state, _part(q, k_i, v_i))
    m, l, o = state
    return o / l[:, None], m + np.log(l)


@answer("split_kv_attention")
def outputs_weighted_by_lse(q, k, v, splits):
    """Each part is divided by its own sum; its weight is then exp of its lse."""
    size = -(-len(k) // splits)  # the last parts may be shorter, or empty
    lses, outputs = [], []
    for i in range(splits):
        k_i, v_i = k[i * size : (i + 1) * size], v[i * size : (i + 1) * size]
        m, l, o = _part(q, k_i, v_i)
        with np.errstate(divide="ignore"):
            lses.append(m + np.log(l))
        outputs.append(o / np.where(l == 0, 1, l)[:, None])
    lses = np.stack(lses, axis=1)  # (Nq, splits)
    lse = logsumexp(lses)
    return np.einsum("is,sid->id", np.exp(lses - lse), np.stack(outputs)), lse[:, 0]


@answer("split_kv_attention")
def merged_in_a_tree(q, k, v, splits):
    """Neighbours in pairs, from the last part backwards; the last part takes the rest of the keys; lists are fine, too."""
    each = len(k) // splits
    states = [_part(q, k[i * each : (i + 1) * each if i < splits - 1 else None], v[i * each : (i + 1) * each if i < splits - 1 else None]) for i in range(splits)][::-1]
    while len(states) > 1:
        states = [stacked(*states[i : i + 2]) if i + 1 < len(states) else states[i] for i in range(0, len(states), 2)]
    m, l, o = states[0]
    return [o / l.reshape(-1, 1), m + np.log(l)]


@answer("split_kv_attention")
def all_parts_at_once(q, k, v, splits):
    """One merge of all states, in base 2; parts without keys are left out."""
    log2_e, bounds = 1.4426950408889634, [i * len(k) // splits for i in range(splits + 1)]
    ms, ls, os = [], [], []
    for start, stop in itertools.pairwise(bounds):
        if start < stop:
            s = (q * (q.shape[1] ** -0.5 * log2_e)) @ k[start:stop].T
            ms.append(s.max(axis=1))
            p = np.exp2(s - ms[-1][:, None])
            ls.append(p.sum(axis=1))
            os.append(p @ v[start:stop])
    top = np.max(ms, axis=0)
    weights = [np.exp2(m - top) for m in ms]
    l = sum(w * x for w, x in zip(weights, ls))
    o = sum(w[:, None] * x for w, x in zip(weights, os))
    return o / l[:, None], (top + np.log2(l)) / log2_e


@answer("split_kv_attention")
def every_so_manyth_key(q, k, v, splits):
    """Parts that are no runs, in float64 inside: whose keys they are does not matter."""
    wide = [x.astype(np.float64) for x in (q, k, v)]
    m, l, o = _part(wide[0], wide[1][:0], wide[2][:0])
    for i in range(splits):
        m, l, o = stacked(_part(wide[0], wide[1][i::splits], wide[2][i::splits]), (m, l, o))
    return (o / l[:, None]).astype(q.dtype), (m + np.log(l)).astype(q.dtype)
