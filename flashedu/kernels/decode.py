"""Attention of few queries over many keys: programs share the keys of a head, and a second kernel merges what they found.

With one query for each head there is no tile of queries to give to a program, so the keys are split. The queries of all
heads that share a key head are the rows of one tile: a key is read once for all of them.
"""
import math

import torch
import triton
import triton.language as tl

from flashedu.arguments import positive_int
from flashedu.kernels.device import DEVICE
from flashedu.kernels.forward import LN2, attend
from flashedu.kernels.inputs import checked, kernel_inputs
from flashedu.kernels.memory import store_tile
from flashedu.kernels.tiles import DECODE, padded, pick, precision
from flashedu.splits import splits_for

MERGED = 64  # parts that a program merges at a time


@triton.jit(do_not_specialize=["splits"])  # it changes as a cache grows: no program for each kind of number
def decode_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, n_q, n_k, kv_heads, group, splits, scale_log2,
    stride_qb, stride_qh, stride_qn, stride_qd: tl.constexpr,
    stride_kb, stride_kh, stride_kn: tl.constexpr, stride_kd: tl.constexpr,
    stride_vb, stride_vh, stride_vn: tl.constexpr, stride_vd: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):
    rows_of_head, row_tiles = group * n_q, tl.cdiv(group * n_q, BLOCK_Q)  # rows are (head of the group, query)
    start = tl.program_id(0) % row_tiles * BLOCK_Q
    part = tl.program_id(0) // row_tiles % splits
    kv_head = (tl.program_id(0) // row_tiles // splits).to(tl.int64)  # of the whole batch; 64 bits: offsets may exceed 2**31
    b, h = kv_head // kv_heads, kv_head % kv_heads
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh

    rows, columns = start + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_D)
    i, head = (rows % n_q).to(tl.int64), h * group + rows // n_q
    q_ptrs = q_ptr + b * stride_qb + (head * stride_qh + i * stride_qn)[:, None] + columns.to(tl.int64)[None, :] * stride_qd
    q = tl.load(q_ptrs, mask=(rows < rows_of_head)[:, None] & (columns < D)[None, :], other=0.0)  # (BLOCK_Q, BLOCK_D)

    tiles = tl.cdiv(n_k, BLOCK_K)
    first = (part * (tiles // splits) + tl.minimum(part, tiles % splits)) * BLOCK_K  # some parts have one tile more
    stop = ((part + 1) * (tiles // splits) + tl.minimum(part + 1, tiles % splits)) * BLOCK_K
    whole = tl.maximum(0, n_k - n_q + 1 if CAUSAL else n_k) // BLOCK_K * BLOCK_K  # keys before it need no mask
    whole = tl.minimum(tl.maximum(whole, first), stop)

    m = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    acc, l, m = attend(acc, l, m, q, k_ptr, v_ptr, i, first, whole, n_k, n_k - n_q, scale_log2,
                       stride_kn, stride_kd, stride_vn, stride_vd, False, CAUSAL, PRECISION, D, BLOCK_D, BLOCK_K)
    acc, l, m = attend(acc, l, m, q, k_ptr, v_ptr, i, whole, stop, n_k, n_k - n_q, scale_log2,
                       stride_kn, stride_kd, stride_vn, stride_vd, True, CAUSAL, PRECISION, D, BLOCK_D, BLOCK_K)

    l_safe = tl.where(l == 0.0, 1.0, l)  # a part without a key that a row sees: o = 0, lse = -inf
    before = (part * (tl.num_programs(0) // row_tiles // splits) + kv_head) * rows_of_head  # rows of other parts and heads
    store_tile(o_ptr + before * D, start, rows_of_head, D, 1, acc / l_safe[:, None], D, BLOCK_Q, BLOCK_D)
    tl.store(lse_ptr + before + rows, (m + tl.log2(l_safe)) * LN2, mask=rows < rows_of_head)


@triton.jit(do_not_specialize=["splits"])
def merge_kernel(
    parts_ptr, part_lses_ptr, o_ptr, lse_ptr, splits,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
):
    """One row of queries: a part that has been divided by its sum is the state (m, l, o) = (lse, 1, o)."""
    row, rows = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    columns = tl.arange(0, BLOCK_D)
    m = tl.full([1], float("-inf"), tl.float32)
    l = tl.zeros([1], tl.float32)
    acc = tl.zeros([BLOCK_D], tl.float32)
    for j in range(0, splits, BLOCK_S):  # always in the same order: the same bits in every run
        parts = j + tl.arange(0, BLOCK_S)
        places = parts.to(tl.int64) * rows + row
        lse = tl.load(part_lses_ptr + places, mask=parts < splits, other=float("-inf"))
        o = tl.load(parts_ptr + places[:, None] * D + columns[None, :], mask=(parts < splits)[:, None] & (columns < D)[None, :], other=0.0)
        m_new = tl.maximum(m, tl.max(lse, axis=0))
        safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        alpha = tl.exp(m - safe)
        w = tl.exp(lse - safe)
        l = l * alpha + tl.sum(w, axis=0)
        acc = acc * alpha + tl.sum(w[:, None] * o, axis=0)
        m = m_new
    l_safe = tl.where(l == 0.0, 1.0, l)
    tl.store(o_ptr + row * D + columns, (acc / l_safe).to(o_ptr.dtype.element_ty), mask=columns < D)
    tl.store(lse_ptr + row + tl.arange(0, 1), m + tl.log(l_safe))


@checked(kernel_inputs)
def decode_attention(q, k, v, causal=False, scale=None, splits=None, tile=None):
    """Attention for few queries, such as the one of a decoding step, over many keys, and its lse.

    Takes and returns what `flashedu.kernels.forward.flash_forward` does: q (B, H, Nq, D), k and v (B, Hkv,
    Nk, D), H a multiple of Hkv, D <= 256, any strides; o like q and lse (B, H, Nq) in float32. The Nq * H / Hkv
    rows that share a key head are one tile, which reads each key once (several tiles, if they are many). splits
    is the number of parts that the keys are split into, by default that of `splits_for`. They are merged
    in their order: the same bits in every run. Raises TypeError or ValueError for splits that is no positive
    whole number; in the package also for one above 2**16, for other tensors, and for bfloat16 without a GPU,
    which the interpreter cannot multiply. Source: Dao, Haziza, Massa and Sizov 2023 (Flash-Decoding).
    """
    batch, heads, n_q, d = q.shape
    kv_heads, n_k = k.shape[1:3]
    group = heads // kv_heads
    tile, width = pick(DECODE, q) if tile is None else tile, padded(d)
    block_q = min(tile.block_q, max(16, triton.next_power_of_2(group * n_q)))
    row_tiles = batch * kv_heads * triton.cdiv(group * n_q, block_q)
    if splits is None:
        multiprocessors = 1 if DEVICE == "cpu" else torch.cuda.get_device_properties(q.device).multi_processor_count
        splits = splits_for(row_tiles, triton.cdiv(n_k, tile.block_k), multiprocessors)
    splits = positive_int("splits", splits)
    o = torch.empty((batch, heads, n_q, d), dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, heads, n_q), dtype=torch.float32, device=q.device)
    parts, part_lses = o, lse  # one part needs no merging
    if splits > 1:
        parts, part_lses = (torch.empty((splits, *x.shape), dtype=torch.float32, device=q.device) for x in (o, lse))
    decode_kernel[(row_tiles * splits,)](
        q, k, v, parts, part_lses, n_q, n_k, kv_heads, group, splits, float(d**-0.5 if scale is None else scale) * math.log2(math.e),
        *q.stride(), *k.stride(), *v.stride(),
        CAUSAL=causal and n_q > 1, PRECISION=precision(), D=d, BLOCK_D=width, **tile._replace(block_q=block_q).options(),
    )
    if splits > 1:
        merge_kernel[(batch * heads * n_q,)](parts, part_lses, o, lse, splits, D=d, BLOCK_D=width, BLOCK_S=MERGED, num_warps=width // 16)
    return o, lse
