"""Right answers in Triton, written independently of the package's kernels: other grids, tiles, loops, bases and layouts."""
import flashedu.kernels  # noqa: F401  # isort: skip  first: it settles where kernels run
import torch
import triton
import triton.language as tl

RIGHT = {}
INF = tl.constexpr(float("inf"))
LOG2E = tl.constexpr(1.4426950408889634)


def answer(exercise):
    def keep(fn):
        RIGHT.setdefault(exercise, {})[fn.__name__] = fn
        return fn

    return keep


def wide_enough(d):
    return max(16, triton.next_power_of_2(d))


# softmax


@triton.jit
def row_kernel(x_ptr, y_ptr, n, B: tl.constexpr):
    c = tl.arange(0, B)
    x = tl.load(x_ptr + tl.program_id(0) * n + c, mask=c < n, other=-INF).to(tl.float32)
    p = tl.where(x == -INF, 0.0, tl.exp(x - tl.max(x, axis=0)))
    total = tl.sum(p, axis=0)
    tl.store(y_ptr + tl.program_id(0) * n + c, (p / tl.maximum(total, 1e-30)).to(y_ptr.dtype.element_ty), mask=c < n)


@answer("triton_softmax")
def contiguous_rows(x):
    x = x.contiguous()
    y = torch.zeros_like(x)
    row_kernel[(len(x),)](x, y, x.shape[1], B=triton.next_power_of_2(x.shape[1]))
    return y


@triton.jit
def looping_kernel(x_ptr, y_ptr, n, stride_m, stride_n, B: tl.constexpr):
    i = tl.program_id(0)
    m, l = tl.full([1], -INF, tl.float32), tl.zeros([1], tl.float32)
    for start in range(0, n, B):
        c = start + tl.arange(0, B)
        x = tl.load(x_ptr + i * stride_m + c * stride_n, mask=c < n, other=-INF).to(tl.float32) * LOG2E
        m_new = tl.maximum(m, tl.max(x, axis=0))
        safe = tl.where(m_new == -INF, 0.0, m_new)
        l = l * tl.exp2(m - safe) + tl.sum(tl.exp2(x - safe), axis=0)
        m = m_new
    safe, l = tl.where(m == -INF, 0.0, m), tl.where(l == 0.0, 1.0, l)
    for start in range(0, n, B):
        c = start + tl.arange(0, B)
        x = tl.load(x_ptr + i * stride_m + c * stride_n, mask=c < n, other=-INF).to(tl.float32) * LOG2E
        tl.store(y_ptr + i * n + c, (tl.exp2(x - safe) / l).to(y_ptr.dtype.element_ty), mask=c < n)


@answer("triton_softmax")
def in_blocks(x):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    looping_kernel[(len(x),)](x, y, x.shape[1], *x.stride(), B=64)
    return y


@triton.jit
def many_rows_kernel(x_ptr, y_ptr, rows, n, stride_m, stride_n, R: tl.constexpr, B: tl.constexpr):
    r = (tl.program_id(0) * R + tl.arange(0, R))[:, None]
    c = tl.arange(0, B)[None, :]
    mask = (r < rows) & (c < n)
    x = tl.load(x_ptr + r * stride_m + c * stride_n, mask=mask, other=-INF).to(tl.float32)
    m = tl.max(x, axis=1)
    m = tl.where(m == -INF, 0.0, m)
    p = tl.exp(x - m[:, None])
    l = tl.sum(p, axis=1)
    y = p / tl.where(l == 0.0, 1.0, l)[:, None]
    tl.store(y_ptr + r * n + c, y.to(y_ptr.dtype.element_ty), mask=mask)


@answer("triton_softmax")
def several_rows_a_program(x):
    y = x.new_empty(x.shape)
    many_rows_kernel[lambda meta: (triton.cdiv(len(x), meta["R"]),)](x, y, *x.shape, *x.stride(), R=4, B=triton.next_power_of_2(x.shape[1]))
    return y


@triton.jit
def persistent_kernel(x_ptr, y_ptr, rows, n, B: tl.constexpr):
    c = tl.arange(0, B)
    for i in range(tl.program_id(0), rows, tl.num_programs(0)):
        x = tl.load(x_ptr + i * n + c, mask=c < n, other=-INF)
        m = tl.max(x, axis=0)
        p = tl.exp(x - tl.where(m > -INF, m, 0.0))
        tl.store(y_ptr + i * n + c, p / tl.maximum(tl.sum(p, axis=0), 1e-20), mask=c < n)


@answer("triton_softmax")
def float32_copies(x):
    wide = x.to(torch.float32).contiguous()
    y = torch.full(x.shape, 7.0, device=x.device)
    persistent_kernel[(3,)](wide, y, *x.shape, triton.next_power_of_2(x.shape[1]))
    return y.to(x.dtype)


@triton.jit
def part_of_row(x_ptr, m_ptr, l_ptr, n, stride_m, stride_n, B: tl.constexpr):
    r, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    c = part * B + tl.arange(0, B)
    x = tl.load(x_ptr + r * stride_m + c * stride_n, mask=c < n, other=-INF).to(tl.float32)
    m = tl.max(x, axis=0)
    tl.store(m_ptr + r * parts + part, m)
    tl.store(l_ptr + r * parts + part, tl.sum(tl.exp(x - tl.where(m == -INF, 0.0, m)), axis=0))


@triton.jit
def exp_of_difference(x_ptr, lse_ptr, y_ptr, n, stride_m, stride_n, B: tl.constexpr):
    r, c = tl.program_id(0), tl.program_id(1) * B + tl.arange(0, B)
    x = tl.load(x_ptr + r * stride_m + c * stride_n, mask=c < n, other=-INF).to(tl.float32)
    lse = tl.load(lse_ptr + r)
    tl.store(y_ptr + r * n + c, tl.where(lse == -INF, 0.0, tl.exp(x - lse)).to(y_ptr.dtype.element_ty), mask=c < n)


@answer("triton_softmax")
def parts_of_rows(x):
    grid = len(x), triton.cdiv(x.shape[1], 128)
    m, l = torch.empty(grid, device=x.device), torch.empty(grid, device=x.device)
    part_of_row[grid](x, m, l, x.shape[1], *x.stride(), B=128)
    top = m.amax(1).nan_to_num(neginf=0.0)
    lse = top + (l * torch.exp(m - top[:, None])).sum(1).log()
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    exp_of_difference[grid](x, lse, y, x.shape[1], *x.stride(), B=128)
    return y


# forward


@triton.jit
def one_loop_kernel(q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, H, G, nq, nk, scale, CAUSAL: tl.constexpr, D: tl.constexpr, W: tl.constexpr, Q: tl.constexpr, K: tl.constexpr):
    bh = tl.program_id(1)
    kv = (bh // H) * (H // G) + bh % H // G
    r, c, d = tl.program_id(0) * Q + tl.arange(0, Q), tl.arange(0, K), tl.arange(0, W)
    q_mask = (r < nq)[:, None] & (d < D)[None, :]
    q = tl.load(q_ptr + (bh * nq + r[:, None]) * D + d[None, :], mask=q_mask, other=0.0)
    m, l, acc = tl.full([Q], -INF, tl.float32), tl.zeros([Q], tl.float32), tl.zeros([Q, W], tl.float32)
    for j in range(0, nk, K):
        kv_mask = (j + c < nk)[:, None] & (d < D)[None, :]
        at = (kv * nk + j + c[:, None]) * D + d[None, :]
        k, v = tl.load(k_ptr + at, mask=kv_mask, other=0.0), tl.load(v_ptr + at, mask=kv_mask, other=0.0)
        s = tl.dot(q, k.T, input_precision="ieee") * scale
        seen = (j + c < nk)[None, :]
        if CAUSAL:
            seen = seen & ((j + c)[None, :] - nk <= r[:, None] - nq)
        s = tl.where(seen, s, -INF)
        m_new = tl.maximum(m, tl.max(s, axis=1))
        safe = tl.where(m_new == -INF, 0.0, m_new)
        p, alpha = tl.exp(s - safe[:, None]), tl.exp(m - safe)
        l, m = l * alpha + tl.sum(p, axis=1), m_new
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
    l = tl.where(l == 0.0, 1.0, l)
    tl.store(o_ptr + (bh * nq + r[:, None]) * D + d[None, :], (acc / l[:, None]).to(o_ptr.dtype.element_ty), mask=q_mask)
    tl.store(lse_ptr + bh * nq + r, m + tl.log(l), mask=r < nq)


def one_loop(q, k, v, causal, block_q, block_k):
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    (b, h, nq, d), nk = q.shape, k.shape[2]
    o, lse = torch.empty_like(q), torch.empty(b, h, nq, device=q.device)
    grid = (triton.cdiv(nq, block_q), b * h)
    one_loop_kernel[grid](q, k, v, o, lse, h, h // k.shape[1], nq, nk, d**-0.5, causal, d, wide_enough(d), block_q, block_k)
    return o, lse


@answer("flash_forward")
def one_masked_loop(q, k, v, causal=False):
    return one_loop(q, k, v, causal, 64, 64)


@answer("flash_forward")
def unequal_tiles(q, k, v, causal=False):
    return one_loop(q, k, v, causal, 16, 128)


@triton.jit
def strided_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, H, KV, nq, nk, scale, qb, qh, qn, qd, kb, kh, kn, kd, vb, vh, vn, vd,
    CAUSAL: tl.constexpr, D: tl.constexpr, W: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
):
    """Scores transposed, base 2, everything float32 inside; causal stops at the diagonal."""
    tiles = (nq + Q - 1) // Q
    bh, i = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    b, h = bh // H, bh % H
    r, d = i * Q + tl.arange(0, Q), tl.arange(0, W)
    qt = tl.load(q_ptr + b * qb + h * qh + r[None, :] * qn + d[:, None] * qd, mask=(d < D)[:, None] & (r < nq)[None, :], other=0.0).to(tl.float32) * (scale * LOG2E)
    m, l, acc = tl.full([Q], -1e30, tl.float32), tl.zeros([Q], tl.float32), tl.zeros([W, Q], tl.float32)
    end = nk
    if CAUSAL:
        end = min(nk, (i + 1) * Q + nk - nq)
    for j in range(0, end, K):
        c = j + tl.arange(0, K)
        inside = (c < nk)[:, None] & (d < D)[None, :]
        k = tl.load(k_ptr + b * kb + h // (H // KV) * kh + c[:, None] * kn + d[None, :] * kd, mask=inside, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + b * vb + h // (H // KV) * vh + c[:, None] * vn + d[None, :] * vd, mask=inside, other=0.0).to(tl.float32)
        st = tl.dot(k, qt, input_precision="ieee")
        hidden = (c >= nk)[:, None]
        if CAUSAL:
            hidden = hidden | (c[:, None] > r[None, :] + nk - nq)
        st = tl.where(hidden, -INF, st)
        m_new = tl.maximum(m, tl.max(st, axis=0))
        p = tl.exp2(st - m_new[None, :])
        alpha = tl.exp2(m - m_new)
        l = l * alpha + tl.sum(p, axis=0)
        acc = tl.dot(v.T, p, acc * alpha[None, :], input_precision="ieee")
        m = m_new
    empty = l == 0.0
    out = tl.where(empty[None, :], 0.0, acc / tl.where(empty, 1.0, l)[None, :])
    tl.store(o_ptr + (bh * nq + r[None, :]) * D + d[:, None], out.to(o_ptr.dtype.element_ty), mask=(d < D)[:, None] & (r < nq)[None, :])
    tl.store(lse_ptr + bh * nq + r, tl.where(empty, -INF, m / LOG2E + tl.log(l)), mask=r < nq)


@answer("flash_forward")
def transposed_scores(q, k, v, causal=False):
    (b, h, nq, d), (_, kv, nk, _) = q.shape, k.shape
    o, lse = q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)
    strided_kernel[(b * h * triton.cdiv(nq, 32),)](q, k, v, o, lse, h, kv, nq, nk, d**-0.5, *q.stride(), *k.stride(), *v.stride(), causal, d, wide_enough(d), 32, 32)
    return o, lse


@triton.jit
def split_kernel(q_ptr, k_ptr, v_ptr, o_ptr, m_ptr, l_ptr, nq, nk, scale, CAUSAL: tl.constexpr, D: tl.constexpr, W: tl.constexpr, Q: tl.constexpr, K: tl.constexpr):
    """A tile of queries and every second tile of keys: an unnormalised state, without tl.dot for the scores."""
    i, part, bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    r, d = i * Q + tl.arange(0, Q), tl.arange(0, W)
    q = tl.load(q_ptr + (bh * nq + r[:, None]) * D + d[None, :], mask=(r < nq)[:, None] & (d < D)[None, :], other=0.0)
    m, l, o = tl.full([Q], -INF, tl.float32), tl.zeros([Q], tl.float32), tl.zeros([Q, W], tl.float32)
    for j in range(part * K, nk, 2 * K):
        c = j + tl.arange(0, K)
        k = tl.load(k_ptr + (bh * nk + c[:, None]) * D + d[None, :], mask=(c < nk)[:, None] & (d < D)[None, :], other=0.0)
        v = tl.load(v_ptr + (bh * nk + c[:, None]) * D + d[None, :], mask=(c < nk)[:, None] & (d < D)[None, :], other=0.0)
        s = tl.sum(q[:, None, :].to(tl.float32) * k[None, :, :].to(tl.float32), axis=2) * scale
        seen = (c < nk)[None, :] & (r < nq)[:, None]
        if CAUSAL:
            seen = seen & (c[None, :] <= r[:, None] + nk - nq)
        s = tl.where(seen, s, -INF)
        m_new = tl.maximum(m, tl.max(s, axis=1))
        safe = tl.where(m_new == -INF, 0.0, m_new)
        p, alpha = tl.exp(s - safe[:, None]), tl.exp(m - safe)
        l, m = l * alpha + tl.sum(p, axis=1), m_new
        o = o * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
    at = (bh * 2 + part) * nq + r
    tl.store(o_ptr + at[:, None] * D + d[None, :], o, mask=(r < nq)[:, None] & (d < D)[None, :])
    tl.store(m_ptr + at, m, mask=r < nq)
    tl.store(l_ptr + at, l, mask=r < nq)


@answer("flash_forward")
def two_parts_merged(q, k, v, causal=False):
    group = q.shape[1] // k.shape[1]
    q, k, v = q.contiguous(), k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    (b, h, nq, d), nk = q.shape, k.shape[2]
    o = torch.empty(b, h, 2, nq, d, device=q.device)
    m, l = torch.empty(b, h, 2, nq, device=q.device), torch.empty(b, h, 2, nq, device=q.device)
    split_kernel[(triton.cdiv(nq, 16), 2, b * h)](q, k, v, o, m, l, nq, nk, d**-0.5, causal, d, wide_enough(d), 16, 32)
    top = m.amax(2, keepdim=True)
    weight = torch.exp(m - top.nan_to_num(neginf=0.0))
    total = (weight * l).sum(2)
    out = (weight[..., None] * o).sum(2) / total.clamp_min(1e-30)[..., None]
    return out.to(q.dtype), top[:, :, 0] + total.log()


@triton.jit
def row_of_queries(q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, G, nq, nk, scale, CAUSAL: tl.constexpr, D: tl.constexpr, W: tl.constexpr, N: tl.constexpr):
    """A program a query, from the last key to the first, without tl.dot."""
    i, bh = tl.program_id(0), tl.program_id(1)
    d, c = tl.arange(0, W), tl.arange(0, N)
    q = tl.load(q_ptr + (bh * nq + i) * D + d, mask=d < D, other=0.0).to(tl.float32)
    m, l, acc = tl.full([1], -INF, tl.float32), tl.zeros([1], tl.float32), tl.zeros([W], tl.float32)
    stop = nk
    if CAUSAL:
        stop = i + 1 + nk - nq
    for j in range((nk - 1) // N * N, -1, -N):
        if j < stop:
            inside = (j + c < nk)[:, None] & (d < D)[None, :]
            at = (bh // G * nk + j + c[:, None]) * D + d[None, :]
            k, v = tl.load(k_ptr + at, mask=inside, other=0.0).to(tl.float32), tl.load(v_ptr + at, mask=inside, other=0.0).to(tl.float32)
            s = tl.where(j + c < stop, tl.sum(k * q[None, :], axis=1) * scale, -INF)
            m_new = tl.maximum(m, tl.max(s, axis=0))
            p, alpha = tl.exp(s - m_new), tl.exp(m - m_new)
            l, acc, m = l * alpha + tl.sum(p, axis=0), acc * alpha + tl.sum(p[:, None] * v, axis=0), m_new
    l = tl.where(l == 0.0, 1.0, l)
    tl.store(o_ptr + (bh * nq + i) * D + d, (acc / l).to(o_ptr.dtype.element_ty), mask=d < D)
    tl.store(lse_ptr + bh * nq + i + tl.arange(0, 1), m + tl.log(l))


@answer("flash_forward")
def a_program_a_query(q, k, v, causal=False):
    q, k, v = (x.contiguous() for x in (q, k, v))
    (b, h, nq, d), nk = q.shape, k.shape[2]
    o, lse = torch.empty_like(q), torch.empty(b, h, nq, device=q.device)
    row_of_queries[nq, b * h](q, k, v, o, lse, h // k.shape[1], nq, nk, d**-0.5, causal, d, wide_enough(d), 256)
    return o, lse


# backward


@triton.jit
def dq_of_tile(q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, H, G, nq, nk, scale, CAUSAL: tl.constexpr, D: tl.constexpr, W: tl.constexpr, Q: tl.constexpr, K: tl.constexpr):
    bh = tl.program_id(1)
    kv = (bh // H) * (H // G) + bh % H // G
    r, d = tl.program_id(0) * Q + tl.arange(0, Q), tl.arange(0, W)
    mine = (r < nq)[:, None] & (d < D)[None, :]
    at = (bh * nq + r[:, None]) * D + d[None, :]
    q, do = tl.load(q_ptr + at, mask=mine, other=0.0), tl.load(do_ptr + at, mask=mine, other=0.0)
    lse, delta = tl.load(lse_ptr + bh * nq + r, mask=r < nq, other=0.0), tl.load(delta_ptr + bh * nq + r, mask=r < nq, other=0.0)
    dq = tl.zeros([Q, W], tl.float32)
    for j in range(0, nk, K):
        c = j + tl.arange(0, K)
        inside = (c < nk)[:, None] & (d < D)[None, :]
        k = tl.load(k_ptr + (kv * nk + c[:, None]) * D + d[None, :], mask=inside, other=0.0)
        v = tl.load(v_ptr + (kv * nk + c[:, None]) * D + d[None, :], mask=inside, other=0.0)
        seen = (c < nk)[None, :] & (r < nq)[:, None]
        if CAUSAL:
            seen = seen & (c[None, :] <= r[:, None] + nk - nq)
        p = tl.where(seen, tl.exp(tl.dot(q, k.T, input_precision="ieee") * scale - lse[:, None]), 0.0)
        ds = tl.where(seen, p * (tl.dot(do, v.T, input_precision="ieee") - delta[:, None]), 0.0)
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee") * scale
    tl.store(dq_ptr + at, dq.to(dq_ptr.dtype.element_ty), mask=mine)


@triton.jit
def dkdv_of_tile(q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, H, G, nq, nk, scale, CAUSAL: tl.constexpr, D: tl.constexpr, W: tl.constexpr, Q: tl.constexpr, K: tl.constexpr):
    """dk and dv of one tile of keys for one query head; the group is summed outside."""
    bh = tl.program_id(1)
    kv = (bh // H) * (H // G) + bh % H // G
    c, d = tl.program_id(0) * K + tl.arange(0, K), tl.arange(0, W)
    mine = (c < nk)[:, None] & (d < D)[None, :]
    k = tl.load(k_ptr + (kv * nk + c[:, None]) * D + d[None, :], mask=mine, other=0.0)
    v = tl.load(v_ptr + (kv * nk + c[:, None]) * D + d[None, :], mask=mine, other=0.0)
    dk, dv = tl.zeros([K, W], tl.float32), tl.zeros([K, W], tl.float32)
    for i in range(0, nq, Q):
        r = i + tl.arange(0, Q)
        inside = (r < nq)[:, None] & (d < D)[None, :]
        at = (bh * nq + r[:, None]) * D + d[None, :]
        q, do = tl.load(q_ptr + at, mask=inside, other=0.0), tl.load(do_ptr + at, mask=inside, other=0.0)
        lse, delta = tl.load(lse_ptr + bh * nq + r, mask=r < nq, other=0.0), tl.load(delta_ptr + bh * nq + r, mask=r < nq, other=0.0)
        seen = (c < nk)[None, :] & (r < nq)[:, None]
        if CAUSAL:
            seen = seen & (c[None, :] <= r[:, None] + nk - nq)
        s = tl.dot(q, k.T, input_precision="ieee") * (scale * LOG2E)
        p = tl.where(seen, tl.exp2(s - lse[:, None] * LOG2E), 0.0)
        ds = tl.where(seen, p * (tl.dot(do, v.T, input_precision="ieee") - delta[:, None]), 0.0)
        dv += tl.dot(p.to(do.dtype).T, do, input_precision="ieee")
        dk += tl.dot(ds.to(q.dtype).T, q, input_precision="ieee")
    at = (bh * nk + c[:, None]) * D + d[None, :]
    tl.store(dk_ptr + at, dk * scale, mask=mine)
    tl.store(dv_ptr + at, dv, mask=mine)


def two_kernels(q, k, v, o, lse, do, causal, block_q, block_k):
    dtype, kv_shape = q.dtype, k.shape
    delta = (do.float() * o.float()).sum(-1)
    q, k, v, do, lse = (x.contiguous() for x in (q, k, v, do, lse))
    (b, h, nq, d), (_, kv, nk, _) = q.shape, k.shape
    dq = torch.empty_like(q)
    dk, dv = (torch.empty(b, h, nk, d, device=q.device) for _ in range(2))
    rest = (h, h // kv, nq, nk, d**-0.5, causal, d, wide_enough(d), block_q, block_k)
    dq_of_tile[(triton.cdiv(nq, block_q), b * h)](q, k, v, do, lse, delta, dq, *rest)
    dkdv_of_tile[(triton.cdiv(nk, block_k), b * h)](q, k, v, do, lse, delta, dk, dv, *rest)
    return dq, *(x.view(b, kv, h // kv, nk, d).sum(2).to(dtype).view(kv_shape) for x in (dk, dv))


@answer("flash_backward")
def two_kernels_and_a_sum(q, k, v, o, lse, do, causal=False):
    return two_kernels(q, k, v, o, lse, do, causal, 64, 64)


@answer("flash_backward")
def two_kernels_small_tiles(q, k, v, o, lse, do, causal=False):
    return two_kernels(q, k, v, o, lse, do, causal, 16, 32)


@triton.jit
def whole_head_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, do_ptr, lse_ptr, dq_ptr, dk_ptr, dv_ptr, H, G, nq, nk, scale,
    qb, qh, qn, qd, kb, kh, kn, kd, vb, vh, vn, vd, ob, oh, on, od, gb, gh, gn, gd,
    CAUSAL: tl.constexpr, D: tl.constexpr, W: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
):
    """One program does a whole key head, five products a pair of tiles; dq, in float32, goes back to memory after each."""
    b, g = tl.program_id(0) // (H // G), tl.program_id(0) % (H // G)
    d = tl.arange(0, W)
    for j in range(0, nk, K):
        c = j + tl.arange(0, K)
        keys = (c < nk)[:, None] & (d < D)[None, :]
        k = tl.load(k_ptr + b * kb + g * kh + c[:, None] * kn + d[None, :] * kd, mask=keys, other=0.0)
        v = tl.load(v_ptr + b * vb + g * vh + c[:, None] * vn + d[None, :] * vd, mask=keys, other=0.0)
        dk, dv = tl.zeros([K, W], tl.float32), tl.zeros([K, W], tl.float32)
        for h in range(g * G, (g + 1) * G):
            for i in range(0, nq, Q):
                r = i + tl.arange(0, Q)
                rows = (r < nq)[:, None] & (d < D)[None, :]
                q = tl.load(q_ptr + b * qb + h * qh + r[:, None] * qn + d[None, :] * qd, mask=rows, other=0.0)
                o = tl.load(o_ptr + b * ob + h * oh + r[:, None] * on + d[None, :] * od, mask=rows, other=0.0).to(tl.float32)
                do = tl.load(do_ptr + b * gb + h * gh + r[:, None] * gn + d[None, :] * gd, mask=rows, other=0.0)
                lse = tl.load(lse_ptr + (b * H + h) * nq + r, mask=r < nq, other=INF)
                seen = (c < nk)[None, :] & (lse > -INF)[:, None]
                if CAUSAL:
                    seen = seen & (c[None, :] <= r[:, None] + nk - nq)
                s = tl.where(seen, tl.dot(q, k.T, input_precision="ieee") * scale, -INF)
                p = tl.exp(s - tl.where(lse > -INF, lse, 0.0)[:, None])
                ds = p * (tl.dot(do, v.T, input_precision="ieee") - tl.sum(o * do, axis=1)[:, None]) * scale
                dv += tl.dot(p.T.to(do.dtype), do, input_precision="ieee")
                dk += tl.dot(ds.T.to(q.dtype), q, input_precision="ieee")
                at = dq_ptr + ((b * H + h) * nq + r[:, None]) * D + d[None, :]
                tl.store(at, tl.load(at, mask=rows, other=0.0) + tl.dot(ds.to(k.dtype), k, input_precision="ieee"), mask=rows)
        at = (tl.program_id(0) * nk + c[:, None]) * D + d[None, :]
        tl.store(dk_ptr + at, dk.to(dk_ptr.dtype.element_ty), mask=keys)
        tl.store(dv_ptr + at, dv.to(dv_ptr.dtype.element_ty), mask=keys)


def whole_heads(q, k, v, o, lse, do, causal, block_q, block_k):
    (b, h, nq, d), (_, kv, nk, _) = q.shape, k.shape
    dq = torch.zeros(q.shape, device=q.device)
    dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (k, v))
    strides = (stride for x in (q, k, v, o, do) for stride in x.stride())
    whole_head_kernel[(b * kv,)](q, k, v, o, do, lse.contiguous(), dq, dk, dv, h, h // kv, nq, nk, d**-0.5, *strides, causal, d, wide_enough(d), block_q, block_k)
    return dq.to(q.dtype), dk, dv


@answer("flash_backward")
def a_program_a_key_head(q, k, v, o, lse, do, causal=False):
    return whole_heads(q, k, v, o, lse, do, causal, 32, 64)


@answer("flash_backward")
def a_program_a_key_head_other_tiles(q, k, v, o, lse, do, causal=False):
    return whole_heads(q, k, v, o, lse, do, causal, 64, 16)
