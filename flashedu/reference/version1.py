"""Tiled attention in the loop order of the first FlashAttention: keys outside, queries inside."""
import numpy as np

from flashedu.arguments import validated


@validated
def fa1_on_machine(machine, block_q, block_k):
    """Attention on a counting machine in version 1's loop order, for one head.

    HBM holds q (Nq, D), k (Nk, D), v (Nk, Dv) and the state of every row: o (Nq, Dv) = 0,
    m (Nq,) = -inf, l (Nq,) = 0. Each tile of keys and values is loaded once, and every tile of
    queries visits it: q and its state are loaded, updated and stored, o normalised each time.
    In the end HBM holds o, m, l, and lse (Nq,). The bytes are `flashedu.cost.fa1_traffic`, the
    peak is `flashedu.cost.tiled_sram`. Raises SramOverflow when the tiles of q, k, v, s and the
    state do not fit together. In the package it raises TypeError or ValueError when HBM lacks
    one of these arrays or a block size is no positive whole number. Source: Dao et al. 2022
    (FlashAttention), algorithm 1.
    """
    (n_q, d), n_k = machine.shape("q"), machine.shape("k")[0]
    for j0 in range(0, n_k, block_k):
        j1 = min(j0 + block_k, n_k)
        k, v = machine.load("k", j0, j1), machine.load("v", j0, j1)
        for i0 in range(0, n_q, block_q):
            i1 = min(i0 + block_q, n_q)
            q, o, m, l = (machine.load(name, i0, i1) for name in ("q", "o", "m", "l"))
            s = machine.alloc((i1 - i0, j1 - j0))
            s[:] = q @ k.T * d**-0.5
            m_new = np.maximum(m, s.max(axis=1))
            kept = l * np.exp(m - m_new)  # what the earlier keys' sum is worth now
            s[:] = np.exp(s - m_new[:, None])  # P overwrites S
            l[:] = kept + s.sum(axis=1)
            o[:] = (o * kept[:, None] + s @ v) / l[:, None]
            m[:] = m_new
            for name, tile in (("o", o), ("m", m), ("l", l)):
                machine.store(name, i0, i1, tile)
            if j1 == n_k:  # the last keys
                m[:] = m + np.log(l)  # now the row's lse
                machine.store("lse", i0, i1, m)
            for tile in (q, o, m, l, s):
                machine.free(tile)
        machine.free(k)
        machine.free(v)
