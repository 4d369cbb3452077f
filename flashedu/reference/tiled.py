"""Tiled attention in the loop order of FlashAttention-2: queries outside, keys inside."""
import numpy as np

from flashedu.arguments import validated


@validated
def tiled_attention(q, k, v, block_q, block_k, causal=False):
    """Attention for one head by tiles of block_q queries and block_k keys; no (Nq, Nk) array
    ever exists.

    Takes q (Nq, D), k (Nk, D), v (Nk, Dv), of one dtype; block sizes need not divide the
    lengths and may exceed them. Returns o (Nq, Dv) and lse (Nq,), the natural log of each row's
    sum of exp(scores). With causal=True query i sees key j when j <= i + Nk - Nq, tiles above
    the diagonal are skipped, and only tiles that the diagonal crosses are masked; a row that
    sees no key gives o = 0 and lse = -inf. In the package it raises TypeError or ValueError for
    arrays that `naive_attention` refuses and block sizes that are not positive whole numbers.
    Source: Dao 2023 (FlashAttention-2), algorithm 1.
    """
    (n_q, d), (n_k, d_v) = q.shape, v.shape
    scale, offset = d**-0.5, n_k - n_q
    o = np.zeros((n_q, d_v), q.dtype)
    lse = np.full(n_q, -np.inf, q.dtype)
    for i0 in range(0, n_q, block_q):
        i1 = min(i0 + block_q, n_q)
        m = np.full(i1 - i0, -np.inf, q.dtype)
        l = np.zeros(i1 - i0, q.dtype)
        acc = np.zeros((i1 - i0, d_v), q.dtype)
        visible = min(n_k, i1 + offset) if causal else n_k  # keys that the tile's last row sees
        for j0 in range(0, visible, block_k):
            j1 = min(j0 + block_k, n_k)
            s = q[i0:i1] @ k[j0:j1].T * scale  # (block_q, block_k)
            if causal and j1 - 1 > i0 + offset:  # the diagonal crosses this tile
                rows, keys = np.arange(i0, i1)[:, None], np.arange(j0, j1)
                s = np.where(keys <= rows + offset, s, -np.inf)
            m_new = np.maximum(m, s.max(axis=1))
            safe = np.where(m_new == -np.inf, 0, m_new)  # rows that have seen no key yet
            alpha = np.exp(m - safe)
            p = np.exp(s - safe[:, None])
            l = l * alpha + p.sum(axis=1)
            acc = acc * alpha[:, None] + p @ v[j0:j1]
            m = m_new
        seen = m > -np.inf
        o[i0:i1][seen] = acc[seen] / l[seen, None]
        lse[i0:i1][seen] = m[seen] + np.log(l[seen])
    return o, lse


@validated
def tiled_on_machine(machine, block_q, block_k, causal=False):
    """Tiled attention on a counting machine (`flashedu.machine.Machine`), for one head.

    HBM holds q (Nq, D), k (Nk, D), v (Nk, Dv); o (Nq, Dv) and lse (Nq,) are stored there. For
    each tile of queries: q is loaded once, then each tile of keys and values that the tile can
    see, then o and lse are stored, once. The bytes are `flashedu.cost.tiled_traffic`, the peak
    is `flashedu.cost.tiled_sram`. Raises SramOverflow when the tiles of q, k, v, s, the output
    and the row statistics do not fit together. In the package it raises TypeError without q, k,
    v and o in HBM, and TypeError or ValueError for block sizes that are not positive whole
    numbers. Source: Dao 2023, algorithm 1.
    """
    (n_q, d), (n_k, d_v) = machine.shape("q"), machine.shape("v")
    scale, offset = d**-0.5, n_k - n_q
    for i0 in range(0, n_q, block_q):
        i1 = min(i0 + block_q, n_q)
        q = machine.load("q", i0, i1)
        m = machine.alloc((i1 - i0,), fill=-np.inf)
        l = machine.alloc((i1 - i0,))
        acc = machine.alloc((i1 - i0, d_v))
        visible = min(n_k, i1 + offset) if causal else n_k
        for j0 in range(0, visible, block_k):
            j1 = min(j0 + block_k, n_k)
            k, v = machine.load("k", j0, j1), machine.load("v", j0, j1)
            s = machine.alloc((i1 - i0, j1 - j0))
            s[:] = q @ k.T * scale
            if causal and j1 - 1 > i0 + offset:
                rows, keys = np.arange(i0, i1)[:, None], np.arange(j0, j1)
                s[:] = np.where(keys <= rows + offset, s, -np.inf)
            m_new = np.maximum(m, s.max(axis=1))
            safe = np.where(m_new == -np.inf, 0, m_new)
            alpha = np.exp(m - safe)
            s[:] = np.exp(s - safe[:, None])  # P overwrites S
            l[:] = l * alpha + s.sum(axis=1)
            acc[:] = acc * alpha[:, None] + s @ v
            m[:] = m_new
            for tile in (k, v, s):
                machine.free(tile)
        seen = m > -np.inf
        acc[seen] = acc[seen] / l[seen, None]
        m[seen] = m[seen] + np.log(l[seen])  # now the row's lse; -inf where no key was seen
        machine.store("o", i0, i1, acc)
        machine.store("lse", i0, i1, m)
        for tile in (q, m, l, acc):
            machine.free(tile)
