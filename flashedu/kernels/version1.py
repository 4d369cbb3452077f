"""Forward attention in the loop order of the first FlashAttention: keys outside, queries inside, the rows' state in HBM.

It is here to be read beside `flashedu.kernels.forward`, whose tiles it uses, and to be timed against it.
"""
import torch
import triton
import triton.language as tl

from flashedu.kernels.inputs import checked, kernel_inputs
from flashedu.kernels.memory import load_tile, store_tile
from flashedu.kernels.tiles import FORWARD, padded, pick, precision


@triton.jit
def version1_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, m_ptr, l_ptr, n_q, n_k, heads, group, scale,
    stride_qb, stride_qh, stride_qn: tl.constexpr, stride_qd: tl.constexpr,
    stride_kb, stride_kh, stride_kn: tl.constexpr, stride_kd: tl.constexpr,
    stride_vb, stride_vh, stride_vn: tl.constexpr, stride_vd: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):
    head = tl.program_id(0).to(tl.int64)  # one program works through a whole head; 64 bits: offsets may exceed 2**31
    b, h = head // heads, head % heads
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h // group * stride_kh  # a group of query heads shares a key head
    v_ptr += b * stride_vb + h // group * stride_vh
    o_ptr += head * n_q * D  # o (n_q, D), m and l (n_q,) of this head
    m_ptr += head * n_q
    l_ptr += head * n_q

    for j in tl.range(0, n_k, BLOCK_K, num_stages=1):  # one stage: no load may run ahead of the stores before it
        k = load_tile(k_ptr, j, n_k, stride_kn, stride_kd, D, BLOCK_K, BLOCK_D, True)
        v = load_tile(v_ptr, j, n_k, stride_vn, stride_vd, D, BLOCK_K, BLOCK_D, True)
        keys = j + tl.arange(0, BLOCK_K)
        first = 0
        if CAUSAL:
            first = tl.maximum(0, j + n_q - n_k) // BLOCK_Q * BLOCK_Q  # the tile of the first row that sees key j
        tl.debug_barrier()  # the state that this program's threads have stored is now seen by all of them
        for i in tl.range(first, n_q, BLOCK_Q, num_stages=1):
            rows = i + tl.arange(0, BLOCK_Q)
            q = load_tile(q_ptr, i, n_q, stride_qn, stride_qd, D, BLOCK_Q, BLOCK_D, True)
            m = tl.load(m_ptr + rows, mask=rows < n_q, other=float("-inf"))
            l = tl.load(l_ptr + rows, mask=rows < n_q, other=0.0)

            s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale  # (BLOCK_Q, BLOCK_K)
            visible = (keys < n_k)[None, :]
            if CAUSAL:
                visible = visible & (keys[None, :] <= rows[:, None] + n_k - n_q)
            s = tl.where(visible, s, float("-inf"))
            m_new = tl.maximum(m, tl.max(s, axis=1))
            safe = tl.where(m_new == float("-inf"), 0.0, m_new)  # rows that have seen no key yet
            p = tl.exp(s - safe[:, None])
            kept = l * tl.exp(m - safe)  # what the sum over the earlier keys is worth now
            l_new = kept + tl.sum(p, axis=1)
            o = load_tile(o_ptr, i, n_q, D, 1, D, BLOCK_Q, BLOCK_D, True)
            o = tl.dot(p.to(v.dtype), v, o * kept[:, None], input_precision=PRECISION)
            o /= tl.where(l_new == 0.0, 1.0, l_new)[:, None]

            tl.debug_barrier()  # several threads may hold one row's m and l: all have read them before one writes
            store_tile(o_ptr, i, n_q, D, 1, o, D, BLOCK_Q, BLOCK_D)
            tl.store(m_ptr + rows, m_new, mask=rows < n_q)
            tl.store(l_ptr + rows, l_new, mask=rows < n_q)


@checked(kernel_inputs)
def version1_forward(q, k, v, causal=False, scale=None):
    """Attention and its lse in version 1's loop order; takes and returns what `flashedu.kernels.forward.flash_forward` does.

    For every pair of tiles the rows' state moves from memory and back: m and l, their maximum and sum of
    exp(scores - m), and o in float32, divided by l each time. There are batch * heads programs, no more.
    With causal=True, tiles of queries that see no key of a tile are skipped. In the package it raises
    TypeError or ValueError for anything else. Source: Dao et al. 2022 (FlashAttention), algorithm 1.
    """
    batch, heads, n_q, d = q.shape
    kv_heads, n_k = k.shape[1:3]
    o = torch.zeros((batch, heads, n_q, d), dtype=torch.float32, device=q.device)
    m = torch.full((batch, heads, n_q), float("-inf"), dtype=torch.float32, device=q.device)
    l = torch.zeros_like(m)
    version1_kernel[(batch * heads,)](
        q, k, v, o, m, l, n_q, n_k, heads, heads // kv_heads, float(d**-0.5 if scale is None else scale),
        *q.stride(), *k.stride(), *v.stride(),
        CAUSAL=causal, PRECISION=precision(), D=d, BLOCK_D=padded(d), **pick(FORWARD, q).options(),
    )
    return o.to(q.dtype), m + torch.log(l)
