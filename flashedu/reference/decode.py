"""Attention with the keys split into parts that know nothing of each other until their states are merged."""
import functools

import numpy as np

from flashedu.arguments import validated
from flashedu.reference.online import merge_states


@validated
def split_kv_attention(q, k, v, splits):
    """softmax(q k^T / sqrt(D)) v for one head: each part of the keys gives a state, and the
    states are merged.

    Takes q (Nq, D), k (Nk, D), v (Nk, Dv), of one dtype, and the number of parts. They are
    nearly equal runs of keys and need not be worked on in any order, nor by one machine: a
    part's state is (m, l, o), its rows' maxima, sums of exp(s - m), and sums of exp(s - m) v.
    With more parts than keys some are empty; their state is the merge's identity, (-inf, 0, 0).
    Returns o (Nq, Dv) and lse (Nq,) of the same dtype. In the package it raises TypeError or
    ValueError for arrays that `naive_attention` refuses, fewer parts than one, or more than
    2**16. Source: Dao, Haziza, Massa and Sizov 2023 (Flash-Decoding).
    """
    n_k, scale = len(k), q.shape[1] ** -0.5
    states = []
    for i in range(splits):  # in a kernel each of them is a program of its own
        run = slice(i * n_k // splits, (i + 1) * n_k // splits)
        s = q @ k[run].T * scale  # (Nq, keys of this part)
        m = s.max(axis=1, initial=-np.inf)
        p = np.exp(s - m[:, None])
        states.append((m, p.sum(axis=1), p @ v[run]))
    m, l, o = functools.reduce(merge_states, states)
    return o / l[:, None], m + np.log(l)
