"""Forward attention for Hopper in Gluon, as in FlashAttention-3: one warp loads, the others compute, and neither waits for the other."""
import math

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from flashedu.kernels.hopper_shared import Work, new_ring

LN2 = gl.constexpr(math.log(2))
ROWS = gl.constexpr(64)  # queries of one consumer: the rows of a warpgroup's product


@gluon.jit
def producer(work, q_ring, k_ring, v_ring, q_desc, k_desc, v_desc, group, CONSUMERS: gl.constexpr):
    """One warp: for each item its queries, then its keys and values from the last tile to the first."""
    use = 0
    for r in range(work.count()):
        b, h, i0, n = work.item(r)
        for t in range(n):
            j = (n - 1 - t) * work.BLOCK_K
            k_ring.fill(use, k_desc, b, h // group, j)
            if t == 0:
                for c in gl.static_range(CONSUMERS):
                    q_ring.fill(r * CONSUMERS + c, q_desc, b, h, i0 + c * ROWS)
            v_ring.fill(use, v_desc, b, h // group, j)
            use += 1


@gluon.jit
def masked(s, j, rows, work):
    """Scores of the keys from j on, those that a row does not see replaced by -inf."""
    keys = gl.arange(0, work.BLOCK_K, gl.SliceLayout(0, s.type.layout))[None, :]
    if work.CAUSAL:
        visible = j + keys < gl.minimum(work.n_k, rows + 1 + work.n_k - work.n_q)[:, None]
    else:
        visible = keys < work.n_k - j
    return gl.where(visible, s, float("-inf"))


@gluon.jit
def softmax(s, m, l, scale_log2, GUARD: gl.constexpr, P: gl.constexpr, dtype: gl.constexpr):
    """Take scores into m and l; returns P for the next product, and the factor for what was summed."""
    m_new = gl.maximum(m, gl.max(s, axis=1) * scale_log2)
    safe = gl.where(m_new == float("-inf"), 0.0, m_new) if GUARD else m_new
    alpha = gl.exp2(m - safe)
    p = gl.exp2(s * scale_log2 - safe[:, None])
    l = l * alpha + gl.sum(p, axis=1)
    return gl.convert_layout(p.to(dtype), P), m_new, l, alpha


@gluon.jit
def scaled(x, factor):
    return x * gl.convert_layout(factor, gl.SliceLayout(1, x.type.layout))[:, None]


@gluon.jit
def attend(acc, p, m, l, use, start, unmasked, n, q, k_ring, v_ring, rows, work, scale_log2, zeros, P: gl.constexpr):
    """The key tiles start .. n: S of this tile and P V of the one before are in flight together, then comes softmax."""
    for t in range(start, n):
        s = warpgroup_mma(q, k_ring.wait(use).permute((1, 0)), zeros, use_acc=False, is_async=True)
        acc = warpgroup_mma(p, v_ring.wait(use - 1), acc, is_async=True)
        s = warpgroup_mma_wait(1, [s])
        if work.CAUSAL:
            if t < unmasked:
                s = masked(s, (n - 1 - t) * work.BLOCK_K, rows, work)
        p, m, l, alpha = softmax(s, m, l, scale_log2, work.CAUSAL, P, q.dtype)
        k_ring.free(use)
        acc = warpgroup_mma_wait(0, [acc])
        v_ring.free(use - 1)
        acc = scaled(acc, alpha)
        use += 1
    return acc, p, m, l, use


@gluon.jit
def consumer(c: gl.constexpr, work, q_ring, k_ring, v_ring, o_ptr, lse_ptr, scale_log2, CONSUMERS: gl.constexpr):
    """One warpgroup: the c-th 64 queries of each item."""
    D: gl.constexpr = q_ring.tiles.shape[4]
    BLOCK_K: gl.constexpr = work.BLOCK_K
    dtype: gl.constexpr = q_ring.tiles.dtype
    S: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_K, 16])
    O: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16])
    P: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=O, k_width=2)
    STORE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])  # 16 bytes a thread, rows whole
    zeros = gl.zeros([ROWS, BLOCK_K], gl.float32, S)
    use = 0
    for r in range(work.count()):
        b, h, i0, n = work.item(r)
        i0 += c * ROWS
        rows = i0 + gl.arange(0, ROWS, gl.SliceLayout(1, S))
        m = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, S))
        l = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, S))
        acc = gl.zeros([ROWS, D], gl.float32, O)
        q = q_ring.wait(r * CONSUMERS + c)
        t = n - work.key_tiles(i0 + ROWS)  # tiles that only the consumers below see
        for _ in range(t):
            k_ring.wait(use)
            k_ring.free(use)
            v_ring.wait(use)
            v_ring.free(use)
            use += 1
        s = warpgroup_mma(q, k_ring.wait(use).permute((1, 0)), zeros, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(0, [s])
        k_ring.free(use)
        if work.CAUSAL or work.RAGGED:
            s = masked(s, (n - 1 - t) * BLOCK_K, rows, work)
        p, m, l, _ = softmax(s, m, l, scale_log2, work.CAUSAL, P, dtype)
        unmasked = n - max(0, min(i0 + 1 + work.n_k - work.n_q, work.n_k)) // BLOCK_K  # the first tile that all rows see
        acc, p, m, l, use = attend(acc, p, m, l, use + 1, t + 1, unmasked, n, q, k_ring, v_ring, rows, work, scale_log2, zeros, P)
        q_ring.free(r * CONSUMERS + c)  # the producer may load the next item's queries
        acc = warpgroup_mma_wait(0, [warpgroup_mma(p, v_ring.wait(use - 1), acc, is_async=True)])
        v_ring.free(use - 1)

        l_safe = gl.where(l == 0.0, 1.0, l)  # a row that sees no key: o = 0 / 1, lse = -inf + log(1)
        row0 = (b * work.heads + h).to(gl.int64) * work.n_q
        gl.store(lse_ptr + row0 + rows, (m + gl.log2(l_safe)) * LN2, mask=rows < work.n_q)
        o = gl.convert_layout(scaled(acc, 1 / l_safe).to(dtype), STORE)
        i, d = gl.arange(0, ROWS, gl.SliceLayout(1, STORE)), gl.arange(0, D, gl.SliceLayout(0, STORE))
        gl.store(o_ptr + (row0 + i0) * D + (i[:, None] * D + d[None, :]), o, mask=(i0 + i < work.n_q)[:, None])


@gluon.jit(do_not_specialize=["tiles", "heads", "group", "n_q", "n_k"])
def hopper_kernel(
    q_desc, k_desc, v_desc, o_ptr, lse_ptr, schedule, tiles, heads, group, n_q, n_k, scale_log2,
    CAUSAL: gl.constexpr, RAGGED: gl.constexpr, BLOCK_K: gl.constexpr, CONSUMERS: gl.constexpr, SLOTS: gl.constexpr, REGISTERS: gl.constexpr,
):
    q_ring = new_ring(q_desc, CONSUMERS, 1)
    k_ring = new_ring(k_desc, SLOTS, CONSUMERS)
    v_ring = new_ring(v_desc, SLOTS, CONSUMERS)
    work = Work(schedule, tiles, heads, n_q, n_k, CAUSAL, ROWS * CONSUMERS, BLOCK_K, RAGGED)
    if CONSUMERS == 2:
        gl.warp_specialize([
            (consumer, (0, work, q_ring, k_ring, v_ring, o_ptr, lse_ptr, scale_log2, CONSUMERS)),
            (consumer, (1, work, q_ring, k_ring, v_ring, o_ptr, lse_ptr, scale_log2, CONSUMERS)),
            (producer, (work, q_ring, k_ring, v_ring, q_desc, k_desc, v_desc, group, CONSUMERS)),
        ], [4, 1], [REGISTERS, 24])
    else:
        gl.warp_specialize([
            (consumer, (0, work, q_ring, k_ring, v_ring, o_ptr, lse_ptr, scale_log2, CONSUMERS)),
            (consumer, (1, work, q_ring, k_ring, v_ring, o_ptr, lse_ptr, scale_log2, CONSUMERS)),
            (consumer, (2, work, q_ring, k_ring, v_ring, o_ptr, lse_ptr, scale_log2, CONSUMERS)),
            (producer, (work, q_ring, k_ring, v_ring, q_desc, k_desc, v_desc, group, CONSUMERS)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 24])
