"""Forward attention for Hopper on fp8 (e4m3) numbers with a scale for each block, as in FlashAttention-3: half the bytes, twice the rate.

The kernel is that of `flashedu.kernels.hopper` but for what fp8 asks for: scales, a P that uses the range of e4m3, and
values that lie transposed, since the matrix unit reads fp8 operands along the sum only, and in the order in which a
thread has P (`flashedu.kernels.fp8` makes them so).
"""
import math

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from flashedu.kernels.hopper import LN2, ROWS, masked, scaled
from flashedu.kernels.hopper_fp8_weights import operand, packed
from flashedu.kernels.hopper_launch import descriptor, schedule
from flashedu.kernels.hopper_shared import Work, new_ring

BLOCK_K, SLOTS, REGISTERS = 128, 4, 240
P_SHIFT = gl.constexpr(8.0)  # P, at most 1, is multiplied by 2**8, so that small weights are not lost in e4m3
SMALLEST = gl.constexpr(2.0**-126)  # of a product of scales: 0 times the -inf of a hidden key would be NaN


@gluon.jit
def producer(work, q_ring, k_ring, v_ring, q_desc, k_desc, v_desc, group):
    use = 0
    for r in range(work.count()):
        b, h, i0, n = work.item(r)
        for t in range(n):
            j = (n - 1 - t) * work.BLOCK_K
            k_ring.fill(use, k_desc, b, h // group, j)
            if t == 0:
                for c in gl.static_range(2):
                    q_ring.fill(2 * r + c, q_desc, b, h, i0 + c * ROWS)
            v_ring.fill(use, v_desc, b, h // group, 0, j)  # columns: v is transposed
            use += 1


@gluon.jit
def softmax(s, m, l, factor, GUARD: gl.constexpr):
    """As in `flashedu.kernels.hopper`; `factor` is the product of all scales, for this tile, and P and l are 2**8 as large."""
    m_new = gl.maximum(m, gl.max(s, axis=1) * factor)
    safe = gl.where(m_new == float("-inf"), 0.0, m_new) if GUARD else m_new
    alpha = gl.exp2(m - safe)
    p = gl.exp2(s * factor - (safe - P_SHIFT)[:, None])
    l = l * alpha + gl.sum(p, axis=1)
    return packed(p), m_new, l, alpha


@gluon.jit
def consumer(c: gl.constexpr, work, q_ring, k_ring, v_ring, o_ptr, lse_ptr, q_scale_ptr, k_scale_ptr, v_scale_ptr, group, scale_log2, OUT: gl.constexpr):
    D: gl.constexpr = q_ring.tiles.shape[4]
    BLOCK_K: gl.constexpr = work.BLOCK_K
    S: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_K, 32])
    O: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 32])
    P: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=O, k_width=4)
    STORE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    zeros = gl.zeros([ROWS, BLOCK_K], gl.float32, S)
    k_blocks = gl.cdiv(work.n_k, BLOCK_K)
    use = 0
    for r in range(work.count()):
        b, h, i0, n = work.item(r)
        i0 += c * ROWS
        head = b * work.heads + h
        kv_head = head // group
        k_scales = k_scale_ptr + kv_head * k_blocks
        q_scale = scale_log2
        if i0 < work.n_q:
            q_scale *= gl.load(q_scale_ptr + head * gl.cdiv(work.n_q, ROWS) + i0 // ROWS)
        rows = i0 + gl.arange(0, ROWS, gl.SliceLayout(1, S))
        m = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, S))
        l = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, S))
        acc = gl.zeros([ROWS, D], gl.float32, O)
        q = q_ring.wait(2 * r + c)
        s = warpgroup_mma(q, k_ring.wait(use).permute((1, 0)), zeros, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(0, [s])
        k_ring.free(use)
        if work.CAUSAL or work.RAGGED:
            s = masked(s, (n - 1) * BLOCK_K, rows, work)
        pairs, m, l, _ = softmax(s, m, l, max(q_scale * gl.load(k_scales + n - 1), SMALLEST), work.CAUSAL)
        unmasked = n - max(0, min(i0 + 1 + work.n_k - work.n_q, work.n_k)) // BLOCK_K
        use += 1
        for t in range(1, n):
            factor = max(q_scale * gl.load(k_scales + n - 1 - t), SMALLEST)
            p = operand(pairs, P)
            s = warpgroup_mma(q, k_ring.wait(use).permute((1, 0)), zeros, use_acc=False, is_async=True)
            acc = warpgroup_mma(p, v_ring.wait(use - 1).permute((1, 0)), acc, is_async=True)
            s = warpgroup_mma_wait(1, [s])
            if work.CAUSAL:
                if t < unmasked:
                    s = masked(s, (n - 1 - t) * BLOCK_K, rows, work)
            pairs, m, l, alpha = softmax(s, m, l, factor, work.CAUSAL)
            k_ring.free(use)
            acc = warpgroup_mma_wait(0, [acc])
            v_ring.free(use - 1)
            acc = scaled(acc, alpha)
            use += 1
        q_ring.free(2 * r + c)
        acc = warpgroup_mma_wait(0, [warpgroup_mma(operand(pairs, P), v_ring.wait(use - 1).permute((1, 0)), acc, is_async=True)])
        v_ring.free(use - 1)

        l_safe = gl.where(l == 0.0, 1.0, l)
        row0 = head.to(gl.int64) * work.n_q
        gl.store(lse_ptr + row0 + rows, (m + gl.log2(l_safe) - P_SHIFT) * LN2, mask=rows < work.n_q)
        o = gl.convert_layout(scaled(acc, gl.load(v_scale_ptr + kv_head) / l_safe).to(OUT), STORE)
        i, d = gl.arange(0, ROWS, gl.SliceLayout(1, STORE)), gl.arange(0, D, gl.SliceLayout(0, STORE))
        gl.store(o_ptr + (row0 + i0) * D + (i[:, None] * D + d[None, :]), o, mask=(i0 + i < work.n_q)[:, None])


@gluon.jit(do_not_specialize=["tiles", "heads", "group", "n_q", "n_k"])
def hopper_fp8_kernel(
    q_desc, k_desc, v_desc, o_ptr, lse_ptr, q_scale_ptr, k_scale_ptr, v_scale_ptr, schedule, tiles, heads, group, n_q, n_k, scale_log2,
    CAUSAL: gl.constexpr, RAGGED: gl.constexpr, BLOCK_K: gl.constexpr, SLOTS: gl.constexpr, REGISTERS: gl.constexpr,
):
    OUT: gl.constexpr = o_ptr.dtype.element_ty
    q_ring, k_ring, v_ring = new_ring(q_desc, 2, 1), new_ring(k_desc, SLOTS, 2), new_ring(v_desc, SLOTS, 2)
    work = Work(schedule, tiles, heads, n_q, n_k, CAUSAL, ROWS * 2, BLOCK_K, RAGGED)
    gl.warp_specialize([
        (consumer, (0, work, q_ring, k_ring, v_ring, o_ptr, lse_ptr, q_scale_ptr, k_scale_ptr, v_scale_ptr, group, scale_log2, OUT)),
        (consumer, (1, work, q_ring, k_ring, v_ring, o_ptr, lse_ptr, q_scale_ptr, k_scale_ptr, v_scale_ptr, group, scale_log2, OUT)),
        (producer, (work, q_ring, k_ring, v_ring, q_desc, k_desc, v_desc, group)),
    ], [4, 1], [REGISTERS, 24])


def hopper_fp8_forward(q, k, v, q_scale, k_scale, v_scale, causal=False, scale=None, dtype=torch.bfloat16):
    """Attention of q (B, H, Nq, 128), k (B, Hkv, Nk, 128) and v, all float8_e4m3fn, each to be multiplied by its scale.

    v is what `flashedu.kernels.fp8.transposed` makes of it. q_scale (B, H, ceil(Nq / 64)) has a scale for every 64 queries,
    k_scale (B, Hkv, ceil(Nk / 128)) for every 128 keys, v_scale (B, Hkv) one for each head, float32. Rotate q and k before
    they are rounded (`flashedu.reference.quantize.rotate`) where they have outliers. Returns o (B, H, Nq, 128) of `dtype`
    and lse (B, H, Nq). Source: Shah et al. 2024 (FlashAttention-3), section 3.3.
    """
    batch, heads, n_q, d = q.shape
    kv_heads, n_k = k.shape[1:3]
    scale = d**-0.5 if scale is None else scale
    o = torch.empty((batch, heads, n_q, d), dtype=dtype, device=q.device)
    lse = torch.empty((batch, heads, n_q), dtype=torch.float32, device=q.device)
    block_q = 2 * ROWS.value
    tiles = -(-n_q // block_q)
    programs = min(tiles * batch * heads, torch.cuda.get_device_properties(q.device).multi_processor_count)
    table = schedule(batch * heads, 2 * n_k * d * kv_heads // heads or 1, n_q, n_k, block_q, BLOCK_K, causal, programs, q.device)
    hopper_fp8_kernel[(programs,)](
        descriptor(q, ROWS.value), descriptor(k, BLOCK_K), descriptor(v, d, BLOCK_K), o, lse, q_scale, k_scale, v_scale,
        table, tiles, heads, heads // kv_heads, n_q, n_k, scale * math.log2(math.e),
        CAUSAL=causal, RAGGED=n_k % BLOCK_K != 0, BLOCK_K=BLOCK_K, SLOTS=SLOTS, REGISTERS=REGISTERS, num_warps=4,
    )
    return o, lse
