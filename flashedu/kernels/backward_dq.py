"""The gradient of the queries: a program owns a tile of queries and walks over the keys, as the forward kernel does."""
import math

import triton
import triton.language as tl

from flashedu.kernels.memory import load_tile, store_tile

LOG2E = tl.constexpr(math.log2(math.e))


@triton.jit
def sum_dq(
    dq, q, do, lse_2, delta, k_ptr, v_ptr, rows, start, stop, n_k, offset, scale_log2,
    stride_kn: tl.constexpr, stride_kd: tl.constexpr, stride_vn: tl.constexpr, stride_vd: tl.constexpr,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """Add what the keys start .. stop contribute to dq of a tile of queries; only MASKED tiles may hide some of them."""
    for j in tl.range(start, stop, BLOCK_K, num_stages=1 if MASKED else None):
        k = load_tile(k_ptr, j, n_k, stride_kn, stride_kd, D, BLOCK_K, BLOCK_D, MASKED)
        v = load_tile(v_ptr, j, n_k, stride_vn, stride_vd, D, BLOCK_K, BLOCK_D, MASKED)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)  # (BLOCK_Q, BLOCK_K)
        p = tl.exp2(s * scale_log2 - lse_2[:, None])
        if MASKED:  # after exp: where lse is -inf, p is inf
            keys = j + tl.arange(0, BLOCK_K)
            visible = (keys < n_k)[None, :]
            if CAUSAL:
                visible = visible & (keys[None, :] <= rows[:, None] + offset)
            p = tl.where(visible, p, 0.0)
        dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq


@triton.jit(do_not_specialize=["n_k"])  # as a constant, one key makes ptxas 12.8 die (D = 64, causal, float16)
def dq_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, do_ptr, lse_ptr, dlse_ptr, lse_2_ptr, delta_ptr, dq_ptr, n_q, n_k, heads, group, scale, scale_log2,
    stride_qb, stride_qh, stride_qn: tl.constexpr, stride_qd: tl.constexpr,
    stride_kb, stride_kh, stride_kn: tl.constexpr, stride_kd: tl.constexpr,
    stride_vb, stride_vh, stride_vn: tl.constexpr, stride_vd: tl.constexpr,
    stride_ob, stride_oh, stride_on: tl.constexpr, stride_od: tl.constexpr,
    stride_dob, stride_doh, stride_don: tl.constexpr, stride_dod: tl.constexpr,
    stride_dqb, stride_dqh, stride_dqn: tl.constexpr, stride_dqd: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):
    tiles = tl.cdiv(n_q, BLOCK_Q)
    head = tl.program_id(0) // tiles
    i0 = (tiles - 1 - tl.program_id(0) % tiles) * BLOCK_Q
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h // group * stride_kh
    v_ptr += b * stride_vb + h // group * stride_vh
    o_ptr += b * stride_ob + h * stride_oh
    do_ptr += b * stride_dob + h * stride_doh
    dq_ptr += b * stride_dqb + h * stride_dqh
    rows, offset = i0 + tl.arange(0, BLOCK_Q), n_k - n_q
    inside, row_of_all = rows < n_q, head.to(tl.int64) * n_q + rows

    do = load_tile(do_ptr, i0, n_q, stride_don, stride_dod, D, BLOCK_Q, BLOCK_D, True)
    o = load_tile(o_ptr, i0, n_q, stride_on, stride_od, D, BLOCK_Q, BLOCK_D, True)
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1)
    if dlse_ptr is not None:  # the gradient of lse with respect to S is P
        delta -= tl.load(dlse_ptr + row_of_all, mask=inside, other=0.0)
    lse_2 = tl.load(lse_ptr + row_of_all, mask=inside, other=0.0) * LOG2E  # in base 2
    tl.store(delta_ptr + row_of_all, delta, mask=inside)  # for the kernel of dK and dV, as is lse_2
    tl.store(lse_2_ptr + row_of_all, lse_2, mask=inside)
    q = load_tile(q_ptr, i0, n_q, stride_qn, stride_qd, D, BLOCK_Q, BLOCK_D, True)
    dq = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    whole, stop = n_k // BLOCK_K * BLOCK_K, n_k
    if CAUSAL:
        whole = tl.minimum(whole, tl.maximum(0, i0 + offset + 1) // BLOCK_K * BLOCK_K)
        stop = tl.minimum(n_k, i0 + BLOCK_Q + offset)
    dq = sum_dq(dq, q, do, lse_2, delta, k_ptr, v_ptr, rows, 0, whole, n_k, offset, scale_log2, stride_kn, stride_kd, stride_vn, stride_vd,
                False, CAUSAL, PRECISION, D, BLOCK_D, BLOCK_K)
    dq = sum_dq(dq, q, do, lse_2, delta, k_ptr, v_ptr, rows, whole, stop, n_k, offset, scale_log2, stride_kn, stride_kd, stride_vn, stride_vd,
                True, CAUSAL, PRECISION, D, BLOCK_D, BLOCK_K)
    store_tile(dq_ptr, i0, n_q, stride_dqn, stride_dqd, dq * scale, D, BLOCK_Q, BLOCK_D)
