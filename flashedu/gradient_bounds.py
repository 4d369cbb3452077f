"""The error that rounding alone may cause in the gradients of attention, around the same oracle as `flashedu.exactness`.

A backward pass knows q, k, v, do, and from the forward pass o and lse, both already rounded. Row by row, with the symbols
of `flashedu.exactness` and G = |dP - Delta|, its steps err by at most

    P      eps P            eps = delta + E(lse) + u (|m| + |lse| + 8)     a score, the lse, exp; |lse| for a change to base 2
    dP     c A              A = |dO||V|^T,  c = u (sqrt(Dv) + 2)           a dot product of length Dv
    Delta  E(Delta) = |dO| E(o) + eps P A + c |dO||o|                      o is off; or P dP is summed instead; a dot product
    dS     P ((eps + 3 u + u_P) G + c A + E(Delta))                        each factor's error, then the cast to 16 bits

and the results are sums over keys or queries, rounded once at the end:

    E(dQ) = scale E(dS) |K| + t scale |dS||K| + u_o |dQ|          t = u (2 T + 2 sqrt(B) + 8): T tiles of B terms each
    E(dK) = scale E(dS)^T |Q| + t scale |dS|^T |Q| + u_o |dK|     likewise over queries
    E(dV) = (eps P + u_P P)^T |dO| + t P^T |dO| + u_o |dV|        P is cast too

E(o) and E(lse) are the forward pass's bounds. The terms that scale with A and not with G are what makes gradients
delicate: dP and Delta may be large and nearly equal. A cast or an exponential that is too small for its type loses up to
2**-25 in float16, as in the forward pass.
"""
import math
from functools import partial

import numpy as np

from flashedu.arguments import gradient_inputs, in_type, layer_inputs, positive_int
from flashedu.exactness import SLACK, Bound, by_head, forward_errors


def gradient_bounds(q, k, v, do, causal=False, scale=None, block_q=None, block_k=None, dtype=None, u=None):
    """Bounds for dq, dk, dv, the gradients of sum(do * o), for q (Nq, D), k (Nk, D), v (Nk, Dv), do (Nq, Dv).

    In torch's layout, q (B, H, Nq, D), k and v with Hkv heads, do (B, H, Nq, Dv), they have the shapes of q, k and v: dk and
    dv are summed over the query heads that share a key head. block_q is the size of the query tiles (by default one tile
    of Nq); the other arguments are those of `flashedu.exactness.attention_bounds`. Returns (Bound, Bound, Bound). Raises
    TypeError or ValueError for what that refuses, and for a do that is not like the output.
    """
    if block_q is not None:
        positive_int("block_q", block_q)
    options = {"causal": causal, "scale": scale, "block_q": block_q, "block_k": block_k, "dtype": dtype, "u": u}
    if getattr(q, "ndim", 2) != 4:
        return _one_head(q, k, v, do, **options)
    layer_inputs(q, k, v, do)
    dq, *shared = by_head(partial(_one_head, group=q.shape[1] // k.shape[1], **options), q, k, v, do)
    return dq, *(Bound(_group_sum(x.exact, k.shape), _group_sum(x.bound, k.shape)) for x in shared)


def _group_sum(x, shape):
    """(B, H, Nk, ...) -> (B, Hkv, Nk, ...)."""
    batch, kv_heads = shape[:2]
    return x.reshape(batch, kv_heads, -1, *x.shape[2:]).sum(axis=2)


def _one_head(q, k, v, do, causal, scale, block_q, block_k, dtype, u, group=1):
    """group: how many heads' dk and dv are added up, each of them more tiles of the same sum."""
    gradient_inputs(q, k, v, do)
    f = forward_errors(q, k, v, causal, scale, block_k, dtype, u)
    r, wide = f.rounding, f.o.dtype
    do = in_type("do", do, q.dtype if dtype is None else dtype)
    q, k, v, do = (x.astype(wide) for x in (q, k, v, do))
    (n_q, d), (n_k, d_v) = q.shape, v.shape
    scale = 1 / np.sqrt(wide.type(d)) if scale is None else scale

    dp, a = do @ v.T, np.abs(do) @ np.abs(v).T  # (Nq, Nk)
    delta = (do * f.o).sum(axis=1, keepdims=True)
    ds, gap = f.p * (dp - delta), np.abs(dp - delta)

    lse = np.where(np.isfinite(f.lse), f.lse, 0)
    eps = (f.delta + f.lse_error + r.u * (np.abs(f.m) + np.abs(lse) + 8))[:, None]
    c = r.u * (math.sqrt(d_v) + 2)
    e_delta = (np.abs(do) * f.o_error).sum(axis=1, keepdims=True)
    e_delta += eps * (f.p * a).sum(axis=1, keepdims=True) + c * (np.abs(do) * np.abs(f.o)).sum(axis=1, keepdims=True)
    e_ds = f.p * ((eps + 3 * r.u + r.u_p) * gap + c * a + e_delta) + f.visible * (r.tiny * gap + r.lost)
    e_p = (eps + r.u_p) * f.p + f.visible * r.lost

    over_keys, over_queries = _sum(r.u, n_k, block_k), _sum(r.u, n_q, block_q, group)
    result = []
    for exact, error, seen in (
        (ds @ k * scale, scale * (e_ds + over_keys * np.abs(ds)) @ np.abs(k), f.visible.any(axis=1)),
        (ds.T @ q * scale, scale * (e_ds + over_queries * np.abs(ds)).T @ np.abs(q), f.visible.any(axis=0)),
        (f.p.T @ do, (e_p + over_queries * f.p).T @ np.abs(do), f.visible.any(axis=0)),
    ):
        result.append(Bound(exact, SLACK * (error + r.u_o * np.abs(exact) + r.lost * seen[:, None])))
    return tuple(result)


def _sum(u, n, block, parts=1):
    """The relative error of a sum of n terms by tiles, of `parts` such sums in all."""
    block = n if block is None else min(block, n)
    return u * (2 * parts * -(-n // block) + 2 * math.sqrt(block) + 8)
