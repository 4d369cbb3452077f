"""The gradients of attention: once from P as a whole matrix, once by tiles, P recomputed."""
import numpy as np

from flashedu.arguments import validated
from flashedu.reference.softmax import stable_softmax


@validated
def attention_backward(q, k, v, do, causal=False):
    """The gradients of sum(do * o) for o = softmax(q k^T / sqrt(D)) v, holding P and dP, both
    (Nq, Nk), in memory.

    Takes q (Nq, D), k (Nk, D), v (Nk, Dv), do (Nq, Dv), of one dtype; returns dq, dk, dv in the
    shapes and the dtype of q, k, v. Softmax gives dS = P * (dP - delta) with delta, one number
    a row, the sum of P * dP. With causal=True query i sees key j when j <= i + Nk - Nq; a row
    that sees no key has dq = 0 and adds nothing. In the package it raises TypeError for other
    dtypes, ValueError for shapes that do not fit and for NaN or inf. Source: Dao et al. 2022,
    appendix B.2.
    """
    n_q, n_k, scale = len(q), len(k), q.shape[1] ** -0.5
    s = q @ k.T * scale  # (Nq, Nk)
    if causal:
        rows, keys = np.arange(n_q)[:, None], np.arange(n_k)
        s = np.where(keys <= rows + n_k - n_q, s, -np.inf)
    p = stable_softmax(s)
    dv = p.T @ do  # (Nk, Dv)
    dp = do @ v.T  # (Nq, Nk)
    delta = (p * dp).sum(axis=1, keepdims=True)  # (Nq, 1)
    ds = p * (dp - delta)
    dq = ds @ k * scale  # (Nq, D)
    dk = ds.T @ q * scale  # (Nk, D)
    return dq, dk, dv


@validated
def tiled_backward(q, k, v, o, lse, do, block_q, block_k, causal=False):
    """The gradients of sum(do * o) for one head by tiles; P comes back from lse, one tile at a
    time, and no (Nq, Nk) array ever exists.

    Takes q (Nq, D), k (Nk, D), v (Nk, Dv), the forward pass's o (Nq, Dv) and lse (Nq,), and do
    (Nq, Dv), of one dtype; returns dq, dk, dv in the shapes and the dtype of q, k, v. Each pair
    of tiles is visited twice, so that whoever owns a tile of the result finishes it alone: keys
    outside for dk and dv, queries outside for dq. With causal=True tiles that no query sees are
    skipped, and only tiles that the diagonal crosses are masked; a row that sees no key (lse =
    -inf) has dq = 0 and adds nothing. In the package it raises TypeError or ValueError for
    arrays that do not fit together and block sizes that are not positive whole numbers. Source:
    Dao 2023 (FlashAttention-2), algorithm 2, there in one pass.
    """
    (n_q, d), n_k = q.shape, len(k)
    scale, offset = d**-0.5, n_k - n_q
    dq, dk, dv = (np.zeros(x.shape, x.dtype) for x in (q, k, v))
    delta = (do * o).sum(axis=1)  # (Nq,), the sum of P * dP without either of them
    lse = np.where(lse == -np.inf, np.inf, lse)  # no key seen: exp(s - inf) is 0, not NaN

    def p_and_ds(i0, i1, j0, j1):
        s = q[i0:i1] @ k[j0:j1].T * scale  # (block_q, block_k)
        if causal and j1 - 1 > i0 + offset:  # the diagonal crosses this tile
            rows, keys = np.arange(i0, i1)[:, None], np.arange(j0, j1)
            s = np.where(keys <= rows + offset, s, -np.inf)
        p = np.exp(s - lse[i0:i1, None])  # already normalised: no maximum, no sum
        dp = do[i0:i1] @ v[j0:j1].T
        return p, p * (dp - delta[i0:i1, None])

    for j0 in range(0, n_k, block_k):
        j1 = min(j0 + block_k, n_k)
        first = max(0, j0 - offset) // block_q * block_q if causal else 0  # the first tile to see j0
        for i0 in range(first, n_q, block_q):
            i1 = min(i0 + block_q, n_q)
            p, ds = p_and_ds(i0, i1, j0, j1)
            dv[j0:j1] += p.T @ do[i0:i1]
            dk[j0:j1] += ds.T @ q[i0:i1] * scale
    for i0 in range(0, n_q, block_q):
        i1 = min(i0 + block_q, n_q)
        visible = min(n_k, i1 + offset) if causal else n_k  # keys that the tile's last row sees
        for j0 in range(0, visible, block_k):
            j1 = min(j0 + block_k, n_k)
            _, ds = p_and_ds(i0, i1, j0, j1)
            dq[i0:i1] += ds @ k[j0:j1] * scale
    return dq, dk, dv
