"""Online softmax that rescales only when it must: the reference maximum may lag behind the true one."""
import numpy as np

from flashedu.arguments import validated


@validated
def lazy_attention(q, k, v, block_size, threshold):
    """softmax(q k^T / sqrt(D)) v for one head, block by block; a row is rescaled only when its
    maximum rises by more than threshold.

    Takes q (Nq, D), k (Nk, D), v (Nk, Dv), of one dtype, the number of keys in a block, and the
    threshold in natural log units. l and o are sums of exp(s - m), m being the row's reference
    maximum. It moves, to the block's maximum, only when that exceeds it by more than threshold;
    until then exp(s - m) may reach exp(threshold), which l divides out again: the result is
    exact. Returns o (Nq, Dv) of the same dtype, and how many (row, block) pairs were rescaled;
    a row's first block needs no rescaling. Threshold 0 is ordinary online softmax. In the
    package it raises TypeError or ValueError for what `online_attention` refuses, and when
    threshold is negative or so large that the sums could overflow. Source: Zadouri et al. 2026
    (FlashAttention-4), conditional rescaling, where a warp skips the product if none of its
    rows moves.
    """
    n_q, n_k, scale = len(q), len(k), q.shape[1] ** -0.5
    m = np.full(n_q, -np.inf, q.dtype)  # reference maximum: at most threshold below the true one
    l = np.zeros(n_q, q.dtype)  # running sum of exp(s - m)
    o = np.zeros((n_q, v.shape[1]), q.dtype)  # running sum of exp(s - m) v
    rescalings = 0
    for start in range(0, n_k, block_size):
        k_j, v_j = k[start : start + block_size], v[start : start + block_size]
        s = q @ k_j.T * scale  # (Nq, B)
        top = s.max(axis=1)
        moves = top > m + threshold  # each row decides for itself
        rescalings += int((moves & (m > -np.inf)).sum())
        m_new = np.where(moves, top, m)
        alpha = np.exp(m - m_new)  # 1 where the reference stays: a kernel skips that product
        p = np.exp(s - m_new[:, None])  # at most exp(threshold)
        l = l * alpha + p.sum(axis=1)
        o = o * alpha[:, None] + p @ v_j
        m = m_new
    return o / l[:, None], rescalings
