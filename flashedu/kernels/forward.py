"""Forward attention: a program owns a tile of queries and walks over the keys, as in FlashAttention-2."""
import math

import torch
import triton
import triton.language as tl

from flashedu.kernels.memory import load_tile, store_tile
from flashedu.kernels.tiles import FORWARD, padded, pick, precision

LN2 = tl.constexpr(math.log(2))


@triton.jit
def attend(
    acc, l, m, q, k_ptr, v_ptr, rows, start, stop, n_k, offset, scale_log2,
    stride_kn: tl.constexpr, stride_kd: tl.constexpr, stride_vn: tl.constexpr, stride_vd: tl.constexpr,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """Take the keys start .. stop into the state of a tile of queries; only MASKED tiles may hide some."""
    for j in tl.range(start, stop, BLOCK_K, num_stages=1 if MASKED else None):  # few are masked: no pipeline
        k = load_tile(k_ptr, j, n_k, stride_kn, stride_kd, D, BLOCK_K, BLOCK_D, MASKED)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)  # (BLOCK_Q, BLOCK_K)
        if MASKED:
            keys = j + tl.arange(0, BLOCK_K)
            visible = (keys < n_k)[None, :]
            if CAUSAL:
                visible = visible & (keys[None, :] <= rows[:, None] + offset)
            s = tl.where(visible, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, axis=1) * scale_log2)
        safe = tl.where(m_new == float("-inf"), 0.0, m_new) if MASKED else m_new  # rows that have seen no key yet
        alpha = tl.exp2(m - safe)
        p = tl.exp2(s * scale_log2 - safe[:, None])
        l = l * alpha + tl.sum(p, axis=1)
        v = load_tile(v_ptr, j, n_k, stride_vn, stride_vd, D, BLOCK_K, BLOCK_D, MASKED)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision=PRECISION)
        m = m_new
    return acc, l, m


@triton.jit
def forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, n_q, n_k, heads, group, scale_log2,
    stride_qb, stride_qh, stride_qn: tl.constexpr, stride_qd: tl.constexpr,
    stride_kb, stride_kh, stride_kn: tl.constexpr, stride_kd: tl.constexpr,
    stride_vb, stride_vh, stride_vn: tl.constexpr, stride_vd: tl.constexpr,
    stride_ob, stride_oh, stride_on: tl.constexpr, stride_od: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):
    tiles = tl.cdiv(n_q, BLOCK_Q)
    head = tl.program_id(0) // tiles  # of all heads of the batch
    i0 = (tiles - 1 - tl.program_id(0) % tiles) * BLOCK_Q  # the last tiles, which see most keys, begin first
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)  # 64 bits: offsets may exceed 2**31
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h // group * stride_kh  # a group of query heads shares a key head
    v_ptr += b * stride_vb + h // group * stride_vh
    o_ptr += b * stride_ob + h * stride_oh
    rows, offset = i0 + tl.arange(0, BLOCK_Q), n_k - n_q

    q = load_tile(q_ptr, i0, n_q, stride_qn, stride_qd, D, BLOCK_Q, BLOCK_D, True)
    m = tl.full([BLOCK_Q], float("-inf"), tl.float32)  # in base 2: exp(x) = 2**(x log2 e)
    l = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    whole, stop = n_k // BLOCK_K * BLOCK_K, n_k  # keys before `whole` need no mask, none after `stop` is visible
    if CAUSAL:
        whole = tl.minimum(whole, tl.maximum(0, i0 + offset + 1) // BLOCK_K * BLOCK_K)  # what the first row sees
        stop = tl.minimum(n_k, i0 + BLOCK_Q + offset)  # what the last row sees
    acc, l, m = attend(acc, l, m, q, k_ptr, v_ptr, rows, 0, whole, n_k, offset, scale_log2,
                       stride_kn, stride_kd, stride_vn, stride_vd, False, CAUSAL, PRECISION, D, BLOCK_D, BLOCK_K)
    acc, l, m = attend(acc, l, m, q, k_ptr, v_ptr, rows, whole, stop, n_k, offset, scale_log2,
                       stride_kn, stride_kd, stride_vn, stride_vd, True, CAUSAL, PRECISION, D, BLOCK_D, BLOCK_K)

    l_safe = tl.where(l == 0.0, 1.0, l)  # a row that sees no key: o = 0 / 1, lse = -inf + log(1)
    store_tile(o_ptr, i0, n_q, stride_on, stride_od, acc / l_safe[:, None], D, BLOCK_Q, BLOCK_D)
    tl.store(lse_ptr + head.to(tl.int64) * n_q + rows, (m + tl.log2(l_safe)) * LN2, mask=rows < n_q)


def flash_forward(q, k, v, causal=False, scale=None):
    """Attention, and the natural log of each row's sum of exp(scores), without the matrix of scores.

    Takes q (B, H, Nq, D), k and v (B, Hkv, Nk, D), H a multiple of Hkv, D <= 256, any strides,
    float32, float16 or bfloat16; scale is 1/sqrt(D) unless given. With causal=True query i sees
    key j when j <= i + Nk - Nq; a row that sees no key gives o = 0 and lse = -inf. Returns
    o like q and lse (B, H, Nq) in float32. Source: Dao 2023 (FlashAttention-2), algorithm 1.
    """
    batch, heads, n_q, d = q.shape
    kv_heads, n_k = k.shape[1:3]
    scale = d**-0.5 if scale is None else scale
    o = torch.empty((batch, heads, n_q, d), dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, heads, n_q), dtype=torch.float32, device=q.device)
    tile = pick(FORWARD, q)
    forward_kernel[(batch * heads * triton.cdiv(n_q, tile.block_q),)](
        q, k, v, o, lse, n_q, n_k, heads, heads // kv_heads, scale * math.log2(math.e),
        *q.stride(), *k.stride(), *v.stride(), *o.stride(),
        CAUSAL=causal, PRECISION=precision(), D=d, BLOCK_D=padded(d), **tile.options(),
    )
    return o, lse
