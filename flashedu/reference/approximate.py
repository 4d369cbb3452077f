"""Three well-known approximations of attention, beside which the exact one can be measured: each computes another function."""
import numpy as np

from flashedu.arguments import validated
from flashedu.reference.softmax import stable_softmax


@validated
def window_attention(q, k, v, reach):
    """Attention in which a query sees only the keys at most `reach` places before or after its own.

    Takes q (N, D), k (N, D), v (N, Dv), of one dtype, and reach >= 0; returns (N, Dv) of the same
    dtype. Exact when reach >= N - 1. In the package it raises TypeError or ValueError for arrays that
    do not fit together, q and k of different lengths among them, and a reach that is no whole number
    or negative. Source: Beltagy, Peters and Cohan 2020 (Longformer), section 3.1.
    """
    scale = q.shape[1] ** -0.5
    o = np.empty((len(q), v.shape[1]), q.dtype)
    for i in range(len(q)):
        run = slice(max(0, i - reach), i + reach + 1)
        o[i] = stable_softmax(k[run] @ q[i] * scale) @ v[run]
    return o


@validated
def pooled_attention(q, k, v, rank):
    """Attention over `rank` means of keys and values in the place of all of them: the N x N weights have at most that rank.

    The keys, and the values with them, fall into `rank` nearly equal runs; softmax(q K^T / sqrt(D) +
    log sizes) V, where K and V are the means of the runs, so that a run weighs as much as its keys.
    Takes q (Nq, D), k (Nk, D), v (Nk, Dv), of one dtype; returns (Nq, Dv) of the same dtype. Exact
    when the keys of each run are equal, as with rank = Nk. In the package it raises TypeError or
    ValueError for arrays that do not fit together and unless rank is a whole number from 1 to Nk.
    Source: Wang et al. 2020 (Linformer), section 4, where a projection of keys and values is learned
    or a mean.
    """
    edges = np.arange(rank) * len(k) // rank
    sizes = np.diff(edges, append=len(k)).astype(q.dtype)
    k, v = (np.add.reduceat(x, edges, axis=0) / sizes[:, None] for x in (k, v))  # (rank, D), (rank, Dv)
    return stable_softmax(q @ k.T * q.shape[1] ** -0.5 + np.log(sizes)) @ v


@validated
def linear_attention(q, k, v):
    """Attention whose weights are products phi(q) . phi(k) in the place of exp(q . k / sqrt(D)), divided by their sum.

    o_i = phi(q_i) [sum_j phi(k_j) v_j^T] / phi(q_i) . [sum_j phi(k_j)], with phi(x) = elu(x) + 1: both
    brackets are the same for all queries, so no (Nq, Nk) matrix exists. Takes q (Nq, D), k (Nk, D),
    v (Nk, Dv), of one dtype; returns (Nq, Dv) of the same dtype, and 0 for a query all of whose weights
    underflow. In the package it raises TypeError for other dtypes, ValueError for shapes that do not
    fit and for NaN or inf. Source: Katharopoulos, Vyas, Pappas and Fleuret 2020, section 3.2.
    """
    q, k = (np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (q, k))  # phi
    total = q @ k.sum(axis=0)  # (Nq,)
    return q @ (k.T @ v) / np.where(total == 0, 1, total)[:, None]
