"""Right answers that were written independently of the reference: other formulas, loop orders, block sizes, precisions."""
import math

import numpy as np

RIGHT = {}


def answer(exercise):
    def keep(fn):
        RIGHT.setdefault(exercise, {})[fn.__name__] = fn
        return fn

    return keep


def logsumexp(x):
    """(..., N) -> (..., 1), with -inf for a row of -inf."""
    m = x.max(axis=-1, keepdims=True)
    m = np.where(np.isfinite(m), m, 0)
    with np.errstate(divide="ignore"):
        return m + np.log(np.exp(x - m).sum(axis=-1, keepdims=True))


# chapter 1


@answer("stable_softmax")
def through_lse(x):
    lse = logsumexp(x)
    return np.exp(x - np.where(lse == -np.inf, 0, lse))


@answer("stable_softmax")
def base_two(x):
    m = np.nan_to_num(np.max(x, -1, keepdims=True), neginf=0.0)
    p = np.exp2((x - m) * math.log2(math.e))
    total = p.sum(-1, keepdims=True)
    return np.divide(p, total, out=np.zeros_like(p), where=total > 0)


@answer("stable_softmax")
def float64_inside(x):
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        p = np.exp(wide - wide.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
    return np.nan_to_num(p).astype(x.dtype)


@answer("stable_softmax")
def row_by_row(x):
    out = np.zeros(x.shape, x.dtype)
    for index in np.ndindex(x.shape[:-1]):
        row = x[index]
        if row.max() > -np.inf:
            p = np.exp(row - row.max())
            out[index] = p / p.sum()
    return out


@answer("naive_attention")
def with_einsum(q, k, v, causal=False):
    s = np.einsum("id,jd->ij", q, k) / math.sqrt(q.shape[-1])
    if causal:
        s = np.where(np.tri(len(q), len(k), len(k) - len(q), dtype=bool), s, -np.inf)
    lse = logsumexp(s)
    return np.exp(s - np.where(lse == -np.inf, 0, lse)).astype(q.dtype) @ v


@answer("naive_attention")
def query_by_query(q, k, v, causal=False):
    out = np.zeros((q.shape[0], v.shape[1]), v.dtype)
    for i in range(q.shape[0]):
        seen = i + k.shape[0] - q.shape[0] + 1 if causal else k.shape[0]
        if seen > 0:
            s = k[:seen] @ q[i] * q.shape[1] ** -0.5
            w = np.exp(s - s.max())
            out[i] = w @ v[:seen] / w.sum()
    return out


@answer("naive_attention")
def divided_at_the_end(q, k, v, causal=False):
    s = (q * q.shape[1] ** -0.5) @ k.T
    if causal:
        s[np.triu_indices(len(q), len(k) - len(q) + 1, len(k))] = -np.inf
    m = s.max(axis=1, keepdims=True)
    p = np.exp(s - np.where(m == -np.inf, 0, m))
    return (p @ v) / np.maximum(p.sum(axis=1, keepdims=True), np.finfo(p.dtype).tiny)


@answer("naive_attention")
def all_in_float64(q, k, v, causal=False):
    s = q.astype(float) @ k.T.astype(float) / np.sqrt(q.shape[1])
    if causal:
        s[np.arange(len(k))[None] > np.arange(len(q))[:, None] + len(k) - len(q)] = -np.inf
    p = np.exp(s - np.maximum(s.max(1, keepdims=True), -1e300))
    l = p.sum(1, keepdims=True)
    return (p @ v.astype(float) / np.where(l > 0, l, 1)).astype(q.dtype)


@answer("naive_traffic")
def array_by_array(n, head_dim, heads, kv_heads, itemsize):
    q = o = n * head_dim * heads
    k = v = n * head_dim * kv_heads
    s = p = heads * n**2
    return (q + k + v + o) * itemsize, (s + s + p + p) * itemsize


@answer("naive_traffic")
def by_kernels(n, head_dim, heads, kv_heads, itemsize):
    square = heads * n * n * itemsize
    rows, kv_rows = heads * n * head_dim * itemsize, kv_heads * n * head_dim * itemsize
    kernels = [(rows + kv_rows, square), (0, 2 * square), (kv_rows + rows, square)]
    return sum(io for io, _ in kernels), sum(between for _, between in kernels)


@answer("naive_traffic")
def numpy_integers(n, head_dim, heads, kv_heads, itemsize):
    n, head_dim, heads, kv_heads, itemsize = map(np.int64, (n, head_dim, heads, kv_heads, itemsize))
    return 2 * (heads + kv_heads) * n * head_dim * itemsize, 4 * heads * n * n * itemsize


@answer("naive_traffic")
def as_a_list(n, head_dim, heads, kv_heads, itemsize):
    return [itemsize * n * head_dim * 2 * (heads + kv_heads), 4 * itemsize * heads * n**2]


# chapter 2


@answer("update_normalizer")
def key_by_key(m, l, scores):
    m, l = m.copy(), l.copy()
    for r, row in enumerate(scores):
        for s in row:
            if s == -np.inf:
                continue
            if s > m[r]:
                l[r] = l[r] * np.exp(m[r] - s) + 1
                m[r] = s
            else:
                l[r] += np.exp(s - m[r])
    return m, l


@answer("update_normalizer")
def old_maximum_as_a_column(m, l, scores):
    everything = np.concatenate([m[:, None], scores], axis=1)
    weights = np.concatenate([l[:, None], np.ones_like(scores)], axis=1)
    top = everything.max(axis=1)
    return top, (weights * np.exp(everything - np.where(np.isfinite(top), top, 0)[:, None])).sum(axis=1)


@answer("update_normalizer")
def in_base_two(m, l, scores):
    log2e = 1.4426950408889634
    top = np.maximum(m, np.max(scores, axis=1))
    base = np.nan_to_num(top, neginf=0.0)
    return top, l * np.exp2((m - base) * log2e) + np.exp2((scores - base[:, None]) * log2e).sum(axis=1)


@answer("update_normalizer")
def wide_inside(m, l, scores):
    top = np.maximum(m, scores.max(1))
    base = np.where(top > -np.inf, top, 0).astype(np.longdouble)
    total = l * np.exp(m - base) + np.exp(scores - base[:, None]).sum(1)
    return top, total.astype(m.dtype)


@answer("merge_states")
def through_logarithms(a, b):
    (ma, la, oa), (mb, lb, ob) = a, b
    m = np.where(ma > mb, ma, mb)
    with np.errstate(invalid="ignore"):
        wa, wb = np.nan_to_num(np.exp(ma - m)), np.nan_to_num(np.exp(mb - m))
    return m, la * wa + lb * wb, oa * wa[:, None] + ob * wb[:, None]


@answer("merge_states")
def larger_first(a, b):
    swap = b[0] > a[0]
    big = [np.where(swap.reshape(-1, *[1] * (x.ndim - 1)), y, x) for x, y in zip(a, b)]
    small = [np.where(swap.reshape(-1, *[1] * (x.ndim - 1)), x, y) for x, y in zip(a, b)]
    w = np.where(small[0] == -np.inf, 0, np.exp(np.where(small[0] == -np.inf, 0, small[0] - big[0]))).astype(a[1].dtype)
    return big[0], big[1] + w * small[1], big[2] + w[:, None] * small[2]


@answer("merge_states")
def stacked(a, b):
    m = np.stack([a[0], b[0]])
    top = m.max(0)
    w = np.exp(m - np.where(top == -np.inf, 0, top))
    return top, (w * np.stack([a[1], b[1]])).sum(0), (w[..., None] * np.stack([a[2], b[2]])).sum(0)


@answer("merge_states")
def row_after_row(a, b):
    m, l, o = np.empty_like(a[0]), np.empty_like(a[1]), np.empty_like(a[2])
    for r in range(len(m)):
        m[r] = max(a[0][r], b[0][r])
        wa, wb = (math.exp(s[0][r] - m[r]) if s[0][r] > -np.inf else 0.0 for s in (a, b))
        l[r], o[r] = wa * a[1][r] + wb * b[1][r], wa * a[2][r] + wb * b[2][r]
    return m, l, o


def _states(q, k, v, size):
    for j in range(0, len(k), size):
        s = q @ k[j : j + size].T * q.shape[1] ** -0.5
        m = s.max(axis=1)
        p = np.exp(s - m[:, None])
        yield m, p.sum(axis=1), p @ v[j : j + size]


@answer("online_attention")
def by_merging(q, k, v, block_size):
    state = None
    for part in _states(q, k, v, block_size):
        state = part if state is None else stacked(state, part)
    return state[2] / state[1][:, None]


@answer("online_attention")
def backwards(q, k, v, block_size):
    return by_merging(q, k[::-1], v[::-1], block_size)


@answer("online_attention")
def always_one_key(q, k, v, block_size):
    return by_merging(q, k, v, 1)


@answer("online_attention")
def normalised_as_it_goes(q, k, v, block_size):
    o, lse = np.zeros((len(q), v.shape[1]), q.dtype), np.full(len(q), -np.inf, q.dtype)
    for m, l, acc in _states(q, k, v, block_size):
        new = np.logaddexp(lse, m + np.log(l))
        o = o * np.exp(lse - new)[:, None] + acc * np.exp(m - new)[:, None]
        lse = new
    return o


@answer("online_attention")
def two_passes(q, k, v, block_size):
    top = np.full(len(q), -np.inf, q.dtype)
    scale = q.shape[1] ** -0.5
    for j in range(0, len(k), block_size):
        top = np.maximum(top, (q @ k[j : j + block_size].T * scale).max(1))
    l, o = 0, 0
    for j in range(0, len(k), block_size):
        p = np.exp2((q @ k[j : j + block_size].T * scale - top[:, None]) * math.log2(math.e))
        l, o = l + p.sum(1), o + p @ v[j : j + block_size]
    return o / l[:, None]


@answer("online_attention")
def with_float64_state(q, k, v, block_size):
    return by_merging(q.astype(np.float64), k.astype(np.float64), v.astype(np.float64), block_size).astype(q.dtype)


# chapter 3


def _masked(q, k, i0, j0, offset, causal):
    s = q @ k.T * q.shape[1] ** -0.5
    if causal:
        s = np.where(np.arange(j0, j0 + len(k)) > np.arange(i0, i0 + len(q))[:, None] + offset, -np.inf, s)
    return s.astype(q.dtype)


def _finish(m, l, o):
    with np.errstate(divide="ignore"):
        lse = np.where(l > 0, np.where(l > 0, m, 0) + np.log(l), -np.inf)
    return o / np.where(l > 0, l, 1)[:, None], lse.astype(l.dtype)


def _part(q, k, v, i0, j0, offset, causal):
    s = _masked(q, k, i0, j0, offset, causal)
    m = s.max(1)
    p = np.exp(s - np.where(m == -np.inf, 0, m)[:, None])
    return m, p.sum(1), p @ v


@answer("tiled_attention")
def merged_tiles(q, k, v, block_q, block_k, causal=False):
    o, lse = np.empty((len(q), v.shape[1]), q.dtype), np.empty(len(q), q.dtype)
    offset = len(k) - len(q)
    for i in range(0, len(q), block_q):
        rows = slice(i, i + block_q)
        n = len(q[rows])
        state = np.full(n, -np.inf, q.dtype), np.zeros(n, q.dtype), np.zeros((n, v.shape[1]), q.dtype)
        for j in range(0, len(k), block_k):
            state = stacked(state, _part(q[rows], k[j : j + block_k], v[j : j + block_k], i, j, offset, causal))
        o[rows], lse[rows] = _finish(*state)
    return o, lse


@answer("tiled_attention")
def keys_outside(q, k, v, block_q, block_k, causal=False):
    n, offset = len(q), len(k) - len(q)
    m, l, o = np.full(n, -np.inf, q.dtype), np.zeros(n, q.dtype), np.zeros((n, v.shape[1]), q.dtype)
    for j in range(0, len(k), block_k):
        for i in range(0, n, block_q):
            rows = slice(i, min(i + block_q, n))
            part = _part(q[rows], k[j : j + block_k], v[j : j + block_k], i, j, offset, causal)
            m[rows], l[rows], o[rows] = stacked((m[rows], l[rows], o[rows]), part)
    return _finish(m, l, o)


@answer("tiled_attention")
def tiles_from_the_right(q, k, v, block_q, block_k, causal=False):
    return _by_rows(q, k, v, block_q, block_k, causal, reverse=True, kind=q.dtype)


@answer("tiled_attention")
def tiles_of_half_the_size(q, k, v, block_q, block_k, causal=False):
    return merged_tiles(q, k, v, max(1, block_q // 2), max(1, block_k // 2), causal)


@answer("tiled_attention")
def tiles_in_float64(q, k, v, block_q, block_k, causal=False):
    o, lse = _by_rows(q, k, v, block_q, block_k, causal, reverse=False, kind=np.float64)
    return o.astype(q.dtype), lse.astype(q.dtype)


def _by_rows(q, k, v, block_q, block_k, causal, reverse, kind):
    outputs = []
    starts = list(range(0, len(k), block_k))
    for i in range(0, len(q), block_q):
        tile = q[i : i + block_q].astype(kind)
        state = None
        for j in starts[::-1] if reverse else starts:
            part = _part(tile, k[j : j + block_k].astype(kind), v[j : j + block_k].astype(kind), i, j, len(k) - len(q), causal)
            state = part if state is None else stacked(state, part)
        outputs.append(_finish(*state))
    return np.concatenate([o for o, _ in outputs]), np.concatenate([lse for _, lse in outputs])


@answer("block_sizes")
def with_math_ceil(sram_bytes, head_dim, itemsize):
    columns = math.ceil((sram_bytes // itemsize) / (4 * head_dim))
    return (columns if columns < head_dim else head_dim), columns


@answer("block_sizes")
def with_divmod(sram_bytes, head_dim, itemsize):
    whole, rest = divmod(sram_bytes // itemsize, 4 * head_dim)
    columns = whole + bool(rest)
    return min(head_dim, columns), columns


@answer("block_sizes")
def with_numpy(sram_bytes, head_dim, itemsize):
    columns = np.int64(np.ceil(sram_bytes // itemsize / (4 * head_dim)))
    return np.minimum(columns, head_dim), columns


@answer("block_sizes")
def adding_before_dividing(sram_bytes, head_dim, itemsize):
    step = 4 * head_dim
    columns = (sram_bytes // itemsize + step - 1) // step
    return sorted((columns, head_dim))[0], columns


def _on_machine(machine, block_q, block_k, causal, reverse=False, own_p=False, scratch_state=False):
    n_q, n_k, d_v = machine.shape("q")[0], machine.shape("k")[0], machine.shape("v")[1]
    offset = n_k - n_q
    for i in range(0, n_q, block_q):
        stop = min(i + block_q, n_q)
        q, o = machine.load("q", i, stop), machine.alloc((stop - i, d_v))
        m, l = machine.alloc((stop - i,), fill=-np.inf), machine.alloc((stop - i,))
        starts = [j for j in range(0, n_k, block_k) if not causal or j <= stop - 1 + offset]
        for j in starts[::-1] if reverse else starts:
            k = machine.load("k", j, min(j + block_k, n_k))
            s = machine.alloc((len(q), len(k)))
            s[:] = _masked(q, k, i, j, offset, causal)
            machine.free(k)
            v = machine.load("v", j, min(j + block_k, n_k))
            new = machine.alloc((len(q),)) if scratch_state else np.empty_like(m)
            new[:] = np.maximum(m, s.max(1))
            base = np.where(new == -np.inf, 0, new)
            p = machine.alloc(s.shape) if own_p else s
            p[:] = np.exp(s - base[:, None])
            o *= np.exp(m - base)[:, None]
            o += p @ v
            l[:] = l * np.exp(m - base) + p.sum(1)
            m[:] = new
            for tile in {id(t): t for t in (s, p, v)}.values():
                machine.free(tile)
            if scratch_state:
                machine.free(new)
        o[:], m[:] = _finish(m, l, o)
        machine.store("o", i, stop, o)
        machine.store("lse", i, stop, m)
        for tile in (q, o, m, l):
            machine.free(tile)


@answer("tiled_on_machine")
def keys_freed_early(machine, block_q, block_k, causal=False):
    _on_machine(machine, block_q, block_k, causal)


@answer("tiled_on_machine")
def from_the_right(machine, block_q, block_k, causal=False):
    _on_machine(machine, block_q, block_k, causal, reverse=True)


@answer("tiled_on_machine")
def with_a_tile_for_p(machine, block_q, block_k, causal=False):
    _on_machine(machine, block_q, block_k, causal, own_p=True)


@answer("tiled_on_machine")
def with_a_scratch_maximum(machine, block_q, block_k, causal=False):
    _on_machine(machine, block_q, block_k, causal, scratch_state=True)
