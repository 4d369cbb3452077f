"""The gradients of keys and values: a program owns a tile of keys and walks over the queries that see it."""
import triton
import triton.language as tl

from flashedu.kernels.memory import load_tile, store_tile


@triton.jit
def load_rows(ptr, rows, n, fill, RAGGED: tl.constexpr):
    """One number for each row, with `fill` past the last row if RAGGED."""
    if RAGGED:
        return tl.load(ptr + rows, mask=rows < n, other=fill)
    return tl.load(ptr + rows)


@triton.jit
def dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_2_ptr, delta_ptr, dk_ptr, dv_ptr, n_q, n_k, kv_heads, group, scale, scale_log2,
    stride_qb, stride_qh, stride_qn: tl.constexpr, stride_qd: tl.constexpr,
    stride_kb, stride_kh, stride_kn: tl.constexpr, stride_kd: tl.constexpr,
    stride_vb, stride_vh, stride_vn: tl.constexpr, stride_vd: tl.constexpr,
    stride_dob, stride_doh, stride_don: tl.constexpr, stride_dod: tl.constexpr,
    stride_dkb, stride_dkh, stride_dkn: tl.constexpr, stride_dkd: tl.constexpr,
    stride_dvb, stride_dvh, stride_dvn: tl.constexpr, stride_dvd: tl.constexpr,
    CAUSAL: tl.constexpr, RAGGED: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):
    tiles = tl.cdiv(n_k, BLOCK_K)
    head = tl.program_id(0) // tiles  # a key head
    j0 = tl.program_id(0) % tiles * BLOCK_K  # the first tiles, which most queries see, begin first
    b, h = (head // kv_heads).to(tl.int64), (head % kv_heads).to(tl.int64)
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh
    dk_ptr += b * stride_dkb + h * stride_dkh
    dv_ptr += b * stride_dvb + h * stride_dvh
    keys, offset = j0 + tl.arange(0, BLOCK_K), n_k - n_q

    k = load_tile(k_ptr, j0, n_k, stride_kn, stride_kd, D, BLOCK_K, BLOCK_D, True)
    v = load_tile(v_ptr, j0, n_k, stride_vn, stride_vd, D, BLOCK_K, BLOCK_D, True)
    dk = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    start, whole = 0, 0  # queries before `start` see no key of the tile, from `whole` on they see all of them
    if CAUSAL:
        start = tl.maximum(0, j0 - offset) // BLOCK_Q * BLOCK_Q
        whole = tl.maximum(0, j0 + BLOCK_K - 1 - offset)
    for g in range(group):  # the query heads that share this key head
        q_head = q_ptr + b * stride_qb + (h * group + g) * stride_qh
        do_head = do_ptr + b * stride_dob + (h * group + g) * stride_doh
        row_0 = ((b * kv_heads + h) * group + g) * n_q
        for i in range(start, n_q, BLOCK_Q):
            rows = i + tl.arange(0, BLOCK_Q)
            q = load_tile(q_head, i, n_q, stride_qn, stride_qd, D, BLOCK_Q, BLOCK_D, RAGGED)
            s = tl.dot(k, tl.trans(q), input_precision=PRECISION)  # S^T: (BLOCK_K, BLOCK_Q)
            lse_2 = load_rows(lse_2_ptr + row_0, rows, n_q, float("inf"), RAGGED)  # past the last row p = 2**-inf = 0
            p = tl.exp2(s * scale_log2 - lse_2[None, :])
            if CAUSAL:
                if i < whole:  # after exp: where lse is -inf, p is inf
                    p = tl.where(keys[:, None] <= rows[None, :] + offset, p, 0.0)
            do = load_tile(do_head, i, n_q, stride_don, stride_dod, D, BLOCK_Q, BLOCK_D, RAGGED)
            dp = tl.dot(v, tl.trans(do), input_precision=PRECISION)
            delta = load_rows(delta_ptr + row_0, rows, n_q, 0.0, RAGGED)
            ds = p * (dp - delta[None, :])
            dv = tl.dot(p.to(do.dtype), do, dv, input_precision=PRECISION)
            dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    store_tile(dk_ptr, j0, n_k, stride_dkn, stride_dkd, dk * scale, D, BLOCK_K, BLOCK_D)
    store_tile(dv_ptr, j0, n_k, stride_dvn, stride_dvd, dv, D, BLOCK_K, BLOCK_D)
