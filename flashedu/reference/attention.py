"""Attention as it is written in a textbook: S and P are whole matrices."""
import numpy as np

from flashedu.arguments import validated
from flashedu.reference.softmax import stable_softmax


@validated
def naive_attention(q, k, v, causal=False):
    """softmax(q k^T / sqrt(D)) v for one head, holding S and P, both (Nq, Nk), in memory.

    Takes q (Nq, D), k (Nk, D), v (Nk, Dv), all float32 or all float64; returns (Nq, Dv) of the
    same dtype. With causal=True, query i sees key j when j <= i + Nk - Nq (the last query sees
    every key); a row that sees no key is 0. In the package it raises TypeError for other dtypes,
    ValueError for shapes that do not fit and for NaN or inf. Source: Vaswani et al. 2017, section
    3.2.1.
    """
    n_q, n_k, scale = len(q), len(k), q.shape[1] ** -0.5
    s = q @ k.T * scale  # (Nq, Nk)
    if causal:
        rows, keys = np.arange(n_q)[:, None], np.arange(n_k)
        s = np.where(keys <= rows + n_k - n_q, s, -np.inf)
    p = stable_softmax(s)  # (Nq, Nk)
    return p @ v


@validated
def naive_on_machine(machine):
    """Attention as three kernels on a counting machine, with S and P travelling through HBM
    between them.

    HBM holds q (Nq, D), k (Nk, D), v (Nk, Dv), o (Nq, Dv) and also s and p (Nq, Nk). Each
    kernel works on one row of queries at a time and keeps k (or v) in SRAM whole, so q, k, v
    are read once and s, p are written once and read once: the bytes are those of
    `flashedu.cost.naive_traffic` with one head, the least that three separate kernels can move.
    Raises SramOverflow when k or v does not fit. In the package it raises TypeError for what is
    no Machine with q, k, v and o, ValueError for arrays there that naive attention refuses.
    """
    n_q, (n_k, d), (_, d_v) = machine.shape("q")[0], machine.shape("k"), machine.shape("v")
    k = machine.load("k", 0, n_k)
    for i in range(n_q):  # kernel 1: S = q k^T
        q_i = machine.load("q", i, i + 1)
        s = machine.alloc((1, n_k))
        s[:] = q_i @ k.T * d**-0.5
        machine.store("s", i, i + 1, s)
        machine.free(q_i)
        machine.free(s)
    machine.free(k)
    for i in range(n_q):  # kernel 2: P = softmax(S)
        s = machine.load("s", i, i + 1)
        s[:] = stable_softmax(s)
        machine.store("p", i, i + 1, s)
        machine.free(s)
    v = machine.load("v", 0, n_k)
    for i in range(n_q):  # kernel 3: O = P v
        p = machine.load("p", i, i + 1)
        o = machine.alloc((1, d_v))
        o[:] = p @ v
        machine.store("o", i, i + 1, o)
        machine.free(p)
        machine.free(o)
    machine.free(v)
