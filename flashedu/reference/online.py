"""Softmax without seeing the row: a running maximum, a running sum, and the factor that repairs them.

A state is a tuple (m, l, o) with one row per query: the running maximum m (R,), the running sum l (R,) of
exp(score - m), and the unnormalised output o (R, Dv) = sum of exp(score - m) * v. The empty state is (-inf, 0, 0).
"""
import numpy as np

from flashedu.arguments import validated


@validated
def update_normalizer(m, l, scores):
    """Take a block of scores into the running maximum and sum: m' = max(m, scores), l' = l e^(m
    - m') + sum e^(scores - m').

    Takes m (R,), l (R,), scores (R, B), of one dtype; m = -inf, l = 0 means that nothing has
    been seen, and -inf among the scores marks a masked key. Returns (m', l'), both (R,); a row
    that has seen only -inf stays (-inf, 0). In the package it raises TypeError for other dtypes,
    ValueError for unequal numbers of rows, NaN, +inf or a negative l. Source: Milakov and
    Gimelshein 2018, algorithm 3.
    """
    m_new = np.maximum(m, scores.max(axis=1))
    safe = np.where(m_new == -np.inf, 0, m_new)  # nothing seen yet: -inf - (-inf) would be NaN
    l_new = l * np.exp(m - safe) + np.exp(scores - safe[:, None]).sum(axis=1)
    return m_new, l_new


@validated
def merge_states(a, b):
    """The state of two disjoint sets of keys together, from the states of each.

    Takes two states (m, l, o) with shapes (R,), (R,), (R, Dv), of one dtype; returns one of the
    same shapes. Both are brought to the larger maximum and added: m = max(m_a, m_b),
    l = e^(m_a - m) l_a + e^(m_b - m) l_b, o likewise. The operation is associative and
    commutative, and (-inf, 0, 0) is its identity. In the package it raises TypeError or
    ValueError for what is no state and for two that differ in shape or dtype. Source: Milakov
    and Gimelshein 2018, section 3.1, for m and l; Rabe and Staats 2021, section 4, for o.
    """
    (m_a, l_a, o_a), (m_b, l_b, o_b) = a, b
    m = np.maximum(m_a, m_b)
    safe = np.where(m == -np.inf, 0, m)  # both empty: -inf - (-inf) would be NaN
    w_a, w_b = np.exp(m_a - safe), np.exp(m_b - safe)
    l = w_a * l_a + w_b * l_b
    o = w_a[:, None] * o_a + w_b[:, None] * o_b
    return m, l, o


@validated
def online_attention(q, k, v, block_size):
    """softmax(q k^T / sqrt(D)) v for one head, seeing the keys block by block and never a whole
    row of scores.

    Takes q (Nq, D), k (Nk, D), v (Nk, Dv), of one dtype, and the number of keys in a block (the
    last block may be shorter, and block_size may exceed Nk); returns (Nq, Dv) of the same
    dtype. Extra memory is O(Nq * (block_size + Dv)). In the package it raises TypeError or
    ValueError for what `naive_attention` refuses and for a block_size that is no whole number
    of at least 1. Source: Rabe and Staats 2021; Dao et al. 2022, section 3.1.
    """
    n_q, n_k, scale = len(q), len(k), q.shape[1] ** -0.5
    m = np.full(n_q, -np.inf, q.dtype)  # running maximum
    l = np.zeros(n_q, q.dtype)  # running sum of exp(s - m)
    o = np.zeros((n_q, v.shape[1]), q.dtype)  # running sum of exp(s - m) v, not yet divided by l
    for start in range(0, n_k, block_size):
        k_j, v_j = k[start : start + block_size], v[start : start + block_size]
        s = q @ k_j.T * scale  # (Nq, B)
        m_new = np.maximum(m, s.max(axis=1))
        alpha = np.exp(m - m_new)  # repairs what was summed under the old maximum
        p = np.exp(s - m_new[:, None])
        l = l * alpha + p.sum(axis=1)
        o = o * alpha[:, None] + p @ v_j
        m = m_new
    return o / l[:, None]
