"""Backward attention: P is recomputed from q, k and the lse of the forward pass, never stored.

With S = scale Q K^T, P = exp(S - lse), dP = dO V^T and delta = rowsum(dO * O):

    dV = P^T dO      dS = P * (dP - delta)      dQ = scale dS K      dK = scale dS^T Q

One kernel owns a tile of queries and sums dQ over the keys; another owns a tile of keys and sums dK and dV over the
queries. Nobody adds to what another program writes, so there are no atomics, and the bits are the same in every run. The
price is that each of the two recomputes S and dP: seven products instead of five.
"""
import math

import torch
import triton

from flashedu.kernels.backward_dkdv import dkdv_kernel
from flashedu.kernels.backward_dq import dq_kernel
from flashedu.kernels.tiles import DKDV, DQ, padded, pick, precision


def flash_backward(q, k, v, o, lse, do, causal=False, scale=None, dlse=None, wide=False):
    """Gradients of attention with respect to q, k and v, from the o and lse of the forward pass.

    Takes q, o, do (B, H, Nq, D), k and v (B, Hkv, Nk, D), any strides, lse (B, H, Nq) as
    `flash_forward` gave it, and dlse (B, H, Nq), the gradient of lse, if lse was used. Rows that
    see no key have gradient 0. Returns dq like q, dk like k, dv like v or, if wide, all in
    float32, as they were summed. Source: Dao 2023, algorithm 2, with dQ in a kernel of its own.
    """
    batch, heads, n_q, d = q.shape
    kv_heads, n_k = k.shape[1:3]
    scale = d**-0.5 if scale is None else scale
    lse, dlse = lse.contiguous(), None if dlse is None else dlse.contiguous()
    lse_2, delta = torch.empty_like(lse), torch.empty_like(lse)
    dq, dk, dv = (torch.empty(x.shape, dtype=torch.float32 if wide else x.dtype, device=x.device) for x in (q, k, v))
    numbers = (heads // kv_heads, scale, scale * math.log2(math.e))
    options = dict(CAUSAL=causal, PRECISION=precision(), D=d, BLOCK_D=padded(d))
    tile = pick(DQ, q)
    dq_kernel[(batch * heads * triton.cdiv(n_q, tile.block_q),)](
        q, k, v, o, do, lse, dlse, lse_2, delta, dq, n_q, n_k, heads, *numbers,
        *q.stride(), *k.stride(), *v.stride(), *o.stride(), *do.stride(), *dq.stride(), **options, **tile.options(),
    )
    tile = pick(DKDV, q)
    dkdv_kernel[(batch * kv_heads * triton.cdiv(n_k, tile.block_k),)](
        q, k, v, do, lse_2, delta, dk, dv, n_q, n_k, kv_heads, *numbers,
        *q.stride(), *k.stride(), *v.stride(), *do.stride(), *dk.stride(), *dv.stride(),
        RAGGED=n_q % tile.block_q != 0, **options, **tile.options(),
    )
    return dq, dk, dv
