"""Right answers to chapter 5's NumPy exercises: other derivations, loop orders, bases, tile sizes, precisions."""
import numpy as np
from right_answers import answer, logsumexp


def _p(q, k, causal, i=slice(None), j=slice(None), lse=None, base_two=False):
    """P for queries i and keys j, from the lse of the whole rows (computed here, or given)."""
    n_q, n_k = len(q), len(k)
    hidden = np.arange(n_k)[None, :] > np.arange(n_q)[:, None] + (n_k - n_q)
    s = q[i] @ k[j].T / np.sqrt(q.dtype.type(q.shape[1]))
    if causal:
        s = np.where(hidden[i, j], -np.inf, s)
    lse = logsumexp(s) if lse is None else lse[i, None]
    safe = np.where(lse == -np.inf, 0, lse)
    if base_two:
        log2_e = q.dtype.type(1 / np.log(2))
        return np.exp2(s * log2_e - safe * log2_e)
    return np.exp(s - safe)


# attention_backward


@answer("attention_backward")
def delta_from_the_output(q, k, v, do, causal=False):
    p, scale = _p(q, k, causal), q.shape[1] ** -0.5
    delta = np.sum(do * (p @ v), axis=1)
    ds = scale * p * (do @ v.T - delta[:, None])
    return ds @ k, np.transpose(ds) @ q, np.transpose(p) @ do


@answer("attention_backward")
def jacobian_of_every_row(q, k, v, do, causal=False):
    p = _p(q, k, causal)
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for i, row in enumerate(p):
        jacobian = np.diag(row) - np.outer(row, row)
        ds = jacobian @ (v @ do[i]) / np.sqrt(q.dtype.type(q.shape[1]))
        dq[i] = ds @ k
        dk += np.outer(ds, q[i])
        dv += np.outer(row, do[i])
    return dq, dk, dv


@answer("attention_backward")
def with_einsum_backwards(q, k, v, do, causal=False):
    p, scale = _p(q, k, causal, base_two=True), q.dtype.type(1 / q.shape[1] ** 0.5)
    dp = np.einsum("ic,jc->ij", do, v)
    ds = p * dp - p * np.einsum("ij,ij->i", p, dp)[:, None]
    return [np.einsum("ij,jc->ic", ds, scale * k), np.einsum("ij,ic->jc", ds, scale * q), np.einsum("ij,ic->jc", p, do)]


@answer("attention_backward")
def gradients_in_float64(q, k, v, do, causal=False):
    wide = [x.astype(np.float64) for x in (q, k, v, do)]
    return tuple(x.astype(q.dtype) for x in delta_from_the_output(*wide, causal))


@answer("attention_backward")
def only_what_is_seen(q, k, v, do, causal=False):
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for i in range(len(q)):
        n = min(len(k), max(0, i + 1 + len(k) - len(q))) if causal else len(k)
        if n:
            s = k[:n] @ q[i] * q.shape[1] ** -0.5
            p = np.exp(s - s.max())
            p = p / p.sum()
            dp = v[:n] @ do[i]
            ds = p * (dp - p @ dp)
            dq[i] = ds @ k[:n] * q.shape[1] ** -0.5
            dk[:n] += ds[:, None] * q[i] * q.shape[1] ** -0.5
            dv[:n] += p[:, None] * do[i]
    return dq, dk, dv


# tiled_backward


def _tile(q, k, v, o, lse, do, i, j, causal, base_two=False):
    rows, keys = np.arange(len(q))[i, None], np.arange(len(k))[None, j]
    s = q[i] @ k[j].T * q.dtype.type(q.shape[1] ** -0.5)
    safe = np.where(np.isfinite(lse[i]), lse[i], 0)[:, None]
    with np.errstate(over="ignore"):
        p = np.exp2((s - safe) * q.dtype.type(np.log2(np.e))) if base_two else np.exp(s - safe)
    seen = np.isfinite(lse[i])[:, None] & (keys - (len(k) - len(q)) <= rows if causal else True)
    p = np.where(seen, p, 0)  # after exp, by choice and not by product
    ds = p * (do[i] @ v[j].T - (do[i] * o[i]).sum(axis=1)[:, None]) * q.dtype.type(q.shape[1] ** -0.5)
    return p, ds


@answer("tiled_backward")
def one_pass_keys_outside(q, k, v, o, lse, do, block_q, block_k, causal=False, base_two=False):
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for j0 in range(0, len(k), block_k):
        j = slice(j0, j0 + block_k)
        for i0 in range(0, len(q), block_q):
            i = slice(i0, i0 + block_q)
            p, ds = _tile(q, k, v, o, lse, do, i, j, causal, base_two)
            dq[i] += ds @ k[j]
            dk[j] += ds.T @ q[i]
            dv[j] += p.T @ do[i]
    return dq, dk, dv


@answer("tiled_backward")
def one_pass_queries_outside_from_the_end(q, k, v, o, lse, do, block_q, block_k, causal=False):
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for i0 in reversed(range(0, len(q), block_q)):
        i, mine = slice(i0, i0 + block_q), 0
        for j0 in reversed(range(0, len(k), block_k)):
            j = slice(j0, j0 + block_k)
            p, ds = _tile(q, k, v, o, lse, do, i, j, causal)
            mine = mine + ds @ k[j]
            dk[j] = dk[j] + ds.T @ q[i]
            dv[j] = dv[j] + p.T @ do[i]
        dq[i] = mine
    return dq, dk, dv


@answer("tiled_backward")
def backwards_in_base_two(q, k, v, o, lse, do, block_q, block_k, causal=False):
    return one_pass_keys_outside(q, k, v, o, lse, do, block_q, block_k, causal, base_two=True)


@answer("tiled_backward")
def other_tiles_than_asked_for(q, k, v, o, lse, do, block_q, block_k, causal=False):
    return one_pass_keys_outside(q, k, v, o, lse, do, max(1, block_q // 2), max(1, block_k // 2), causal)


@answer("tiled_backward")
def tiled_gradients_in_float64(q, k, v, o, lse, do, block_q, block_k, causal=False):
    wide = [x.astype(np.float64) for x in (q, k, v, o, lse, do)]
    return tuple(x.astype(q.dtype) for x in one_pass_keys_outside(*wide, block_q, block_k, causal))


@answer("tiled_backward")
def key_after_key(q, k, v, o, lse, do, block_q, block_k, causal=False):
    """Tiles of a single key, delta as the sum of P dP in a pass of its own, the gradients in another."""
    delta, scale = np.zeros_like(lse), q.shape[1] ** -0.5
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for again in (False, True):
        for j in range(len(k)):
            first = max(0, j - (len(k) - len(q))) if causal else 0
            p = np.exp(q[first:] @ k[j] * scale - lse[first:])
            dp = do[first:] @ v[j]
            if not again:
                delta[first:] += p * dp
                continue
            ds = p * (dp - delta[first:])
            dq[first:] += np.outer(ds, k[j]) * scale
            dk[j], dv[j] = ds @ q[first:] * scale, p @ do[first:]
    return dq, dk, dv
