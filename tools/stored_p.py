"""A forward and a backward pass of attention that exist twice: P is written to memory and read back, or recomputed.

STORED is the only difference between the two. Everything else is as in `flashedu.kernels`, with less around it: q, k, v, o
and do are (heads, n, D), contiguous, bfloat16, without a mask, and n is a multiple of every tile.

The forward pass meets a tile of P before it knows the row's lse. So it writes exp(S - m), m the maximum of the row so far,
and m itself, one number for each row and key tile; the backward pass makes P of them: exp(S - m) exp(m - lse).
"""
# first, since it settles whether kernels are compiled or interpreted
import flashedu.kernels  # noqa: F401  # isort: skip
import math

import torch
import triton
import triton.language as tl

FORWARD_BLOCK_K = 64  # of every forward tile: the backward pass must know where m belongs


@triton.jit
def pointers(ptr, start, ROWS: tl.constexpr, D: tl.constexpr):
    """To rows start .. start + ROWS of a matrix (n, D)."""
    return ptr + (start + tl.arange(0, ROWS))[:, None] * D + tl.arange(0, D)[None, :]


@triton.jit
def forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, p_ptr, m_ptr, n, scale_log2,
    STORED: tl.constexpr, D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):
    head = (tl.program_id(0) // (n // BLOCK_Q)).to(tl.int64)
    i = tl.program_id(0) % (n // BLOCK_Q) * BLOCK_Q
    rows = i + tl.arange(0, BLOCK_Q)
    q = tl.load(pointers(q_ptr + head * n * D, i, BLOCK_Q, D))
    m = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, D], tl.float32)
    if STORED:  # a store through a descriptor lets the matrix products overlap, one through pointers does not (ptxas: C7515)
        p_matrix = tl.make_tensor_descriptor(p_ptr + head * n * n, shape=[n, n], strides=[n, 1], block_shape=[BLOCK_Q, BLOCK_K])
    for j in range(0, n, BLOCK_K):
        k = tl.load(pointers(k_ptr + head * n * D, j, BLOCK_K, D))
        s = tl.dot(q, tl.trans(k))
        m_new = tl.maximum(m, tl.max(s, axis=1) * scale_log2)
        alpha = tl.exp2(m - m_new)
        p = tl.exp2(s * scale_log2 - m_new[:, None])
        l = l * alpha + tl.sum(p, axis=1)
        p_16 = p.to(q.dtype)
        v = tl.load(pointers(v_ptr + head * n * D, j, BLOCK_K, D))
        acc = tl.dot(p_16, v, acc * alpha[:, None])
        if STORED:
            p_matrix.store([i, j], p_16)
            tl.store(m_ptr + (head * (n // BLOCK_K) + j // BLOCK_K) * n + rows, m_new)
        m = m_new
    tl.store(pointers(o_ptr + head * n * D, i, BLOCK_Q, D), (acc / l[:, None]).to(q.dtype))
    tl.store(lse_ptr + head * n + rows, m + tl.log2(l))  # in base 2


@triton.jit
def dq_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, do_ptr, lse_ptr, p_ptr, m_ptr, delta_ptr, dq_ptr, n, scale, scale_log2,
    STORED: tl.constexpr, D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_M: tl.constexpr,
):
    tl.static_assert(BLOCK_M % BLOCK_K == 0, "the keys of a tile must share one m")
    head = (tl.program_id(0) // (n // BLOCK_Q)).to(tl.int64)
    i = tl.program_id(0) % (n // BLOCK_Q) * BLOCK_Q
    rows = i + tl.arange(0, BLOCK_Q)
    do = tl.load(pointers(do_ptr + head * n * D, i, BLOCK_Q, D))
    o = tl.load(pointers(o_ptr + head * n * D, i, BLOCK_Q, D))
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1)
    tl.store(delta_ptr + head * n + rows, delta)
    lse = tl.load(lse_ptr + head * n + rows)
    if not STORED:
        q = tl.load(pointers(q_ptr + head * n * D, i, BLOCK_Q, D))
    dq = tl.zeros([BLOCK_Q, D], tl.float32)
    for j in range(0, n, BLOCK_K):
        k = tl.load(pointers(k_ptr + head * n * D, j, BLOCK_K, D))
        v = tl.load(pointers(v_ptr + head * n * D, j, BLOCK_K, D))
        if STORED:
            keys = j + tl.arange(0, BLOCK_K)
            m = tl.load(m_ptr + (head * (n // BLOCK_M) + j // BLOCK_M) * n + rows)
            p = tl.load(p_ptr + head * n * n + rows[:, None] * n + keys[None, :]).to(tl.float32) * tl.exp2(m - lse)[:, None]
        else:
            p = tl.exp2(tl.dot(q, tl.trans(k)) * scale_log2 - lse[:, None])
        dp = tl.dot(do, tl.trans(v))
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq)
    tl.store(pointers(dq_ptr + head * n * D, i, BLOCK_Q, D), (dq * scale).to(do.dtype))


@triton.jit
def dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, p_ptr, m_ptr, delta_ptr, dk_ptr, dv_ptr, n, scale, scale_log2,
    STORED: tl.constexpr, D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_M: tl.constexpr,
):
    tl.static_assert(BLOCK_M % BLOCK_K == 0, "the keys of a tile must share one m")
    head = (tl.program_id(0) // (n // BLOCK_K)).to(tl.int64)
    j = tl.program_id(0) % (n // BLOCK_K) * BLOCK_K
    v = tl.load(pointers(v_ptr + head * n * D, j, BLOCK_K, D))
    keys = j + tl.arange(0, BLOCK_K)
    if not STORED:
        k = tl.load(pointers(k_ptr + head * n * D, j, BLOCK_K, D))
    dk = tl.zeros([BLOCK_K, D], tl.float32)
    dv = tl.zeros([BLOCK_K, D], tl.float32)
    for i in range(0, n, BLOCK_Q):
        rows = i + tl.arange(0, BLOCK_Q)
        q = tl.load(pointers(q_ptr + head * n * D, i, BLOCK_Q, D))
        lse = tl.load(lse_ptr + head * n + rows)
        if STORED:  # P^T: (BLOCK_K, BLOCK_Q), as everything below
            m = tl.load(m_ptr + (head * (n // BLOCK_M) + j // BLOCK_M) * n + rows)
            p = tl.load(p_ptr + head * n * n + rows[None, :] * n + keys[:, None]).to(tl.float32) * tl.exp2(m - lse)[None, :]
        else:
            p = tl.exp2(tl.dot(k, tl.trans(q)) * scale_log2 - lse[None, :])
        do = tl.load(pointers(do_ptr + head * n * D, i, BLOCK_Q, D))
        dv = tl.dot(p.to(do.dtype), do, dv)
        dp = tl.dot(v, tl.trans(do))
        delta = tl.load(delta_ptr + head * n + rows)
        ds = p * (dp - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk)
    tl.store(pointers(dk_ptr + head * n * D, j, BLOCK_K, D), (dk * scale).to(v.dtype))
    tl.store(pointers(dv_ptr + head * n * D, j, BLOCK_K, D), dv.to(v.dtype))


def options(stored, tile, d):
    return dict(STORED=stored, D=d, BLOCK_Q=tile.block_q, BLOCK_K=tile.block_k, num_warps=tile.num_warps, num_stages=tile.num_stages)


def forward(stored, tile, q, k, v):
    """Returns what the backward pass needs: (o, lse, p, m), without storing p and m None."""
    heads, n, d = q.shape
    o, lse = torch.empty_like(q), torch.empty(heads, n, dtype=torch.float32, device=q.device)
    p = m = None
    if stored:
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=q.device))  # for the descriptors
        p = torch.empty(heads, n, n, dtype=q.dtype, device=q.device)
        m = torch.empty(heads, n // tile.block_k, n, dtype=torch.float32, device=q.device)
    forward_kernel[(heads * n // tile.block_q,)](q, k, v, o, lse, p, m, n, d**-0.5 * math.log2(math.e), **options(stored, tile, d))
    return o, lse, p, m


def gradient_of_q(stored, tile, q, k, v, do, o, lse, p, m):
    """Returns dq, and delta for the other kernel."""
    heads, n, d = q.shape
    dq, delta = torch.empty_like(q), torch.empty_like(lse)
    dq_kernel[(heads * n // tile.block_q,)](
        q, k, v, o, do, lse, p, m, delta, dq, n, d**-0.5, d**-0.5 * math.log2(math.e), BLOCK_M=FORWARD_BLOCK_K, **options(stored, tile, d))
    return dq, delta


def gradients_of_k_and_v(stored, tile, q, k, v, do, delta, lse, p, m):
    """Returns dk and dv."""
    heads, n, d = q.shape
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    dkdv_kernel[(heads * n // tile.block_k,)](
        q, k, v, do, lse, p, m, delta, dk, dv, n, d**-0.5, d**-0.5 * math.log2(math.e), BLOCK_M=FORWARD_BLOCK_K, **options(stored, tile, d))
    return dk, dv
