"""Inputs of the exercises on tensors, as NumPy arrays whose strides the tensors take over: the kinds of `inputs`, head by head."""
import numpy as np

from flashedu import exactness
from flashedu.grading import inputs

LAYOUTS = {
    "transposed": "a transposed view",
    "gaps": "a view with gaps between its rows",
    "every second": "a view of every second element of a row",
    "mixed": "each input with strides of its own kind",
    "broadcast": "a gradient that is one number, spread by strides of 0",
}
MIXED = {"q": "gaps", "k": "every second", "v": "transposed", "o": "transposed", "do": "every second"}


def laid_out(x, layout, name=None):
    """The same values as a view of one of LAYOUTS, NaN in its gaps; None leaves x as it is. name: which of MIXED x is."""
    layout = MIXED[name] if layout == "mixed" else layout
    if layout is None:
        return x
    if layout == "transposed":  # (B, H, N, D) stored as (B, N, H, D), which is what a projection gives; (M, N) as (N, M)
        axes = (0, 2, 1, 3) if x.ndim == 4 else (1, 0)
        return np.ascontiguousarray(x.transpose(axes)).transpose(axes)
    if layout == "broadcast":
        return np.broadcast_to(x[(slice(0, 1),) * x.ndim], x.shape)
    wide = np.full((*x.shape[:-1], x.shape[-1] * 2 + 3), np.nan, x.dtype)
    view = wide[..., : x.shape[-1]] if layout == "gaps" else wide[..., : 2 * x.shape[-1] : 2]
    view[...] = x
    return view


def _in_type(x, dtype):
    """x in a dtype; bfloat16, which NumPy does not have, as float32 numbers that it holds, rounded to even."""
    if dtype != "bfloat16":
        return x.astype(dtype)
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def matrix_case(kind, rows, n, dtype="float32", seed=0, layout=None):
    """Argument (x,), x (rows, n)."""
    (x,) = inputs.rows_case(kind, rows, n, seed=seed)
    return (laid_out(_in_type(x, dtype), layout),)


def _heads(kind, batch, heads, kv_heads, n_q, n_k, d, dtype, seed, layout):
    if heads % kv_heads:
        raise ValueError("heads must be a multiple of kv_heads.")

    def all_heads(count, which):  # 0, 1, 2: q, k, v
        each = [inputs.qkv(kind, n_q, n_k, d, seed=seed + 1000 * i + 100 * which)[which] for i in range(batch * count)]
        return laid_out(_in_type(np.stack(each).reshape(batch, count, -1, d), dtype), layout, "qkv"[which])

    return all_heads(heads, 0), all_heads(kv_heads, 1), all_heads(kv_heads, 2)


def forward_case(kind, n_q, n_k, d, causal=False, batch=1, heads=1, kv_heads=1, dtype="float32", seed=0, layout=None):
    """Arguments (q, k, v, causal), q (batch, heads, n_q, d), k and v (batch, kv_heads, n_k, d)."""
    return *_heads(kind, batch, heads, kv_heads, n_q, n_k, d, dtype, seed, layout), causal


def backward_case(kind, n_q, n_k, d, causal=False, batch=1, heads=1, kv_heads=1, dtype="float32", seed=0, layout=None):
    """Arguments (q, k, v, o, lse, do, causal); o and lse are those of the oracle, rounded. Only do is ever broadcast."""
    of_all = None if layout == "broadcast" else layout
    q, k, v = _heads({"seesaw": "uniform", "scaled": "heavy"}.get(kind, kind), batch, heads, kv_heads, n_q, n_k, d, dtype, seed, of_all)
    if kind == "seesaw":  # dk sums up, too; the logits stay equal
        q[..., 0], k[..., 0] = 1, 0
    if kind == "scaled":
        k[..., 0] = 1
        v[..., : n_k // 2, :] += 1000
    o, lse = (bound.exact for bound in exactness.attention_bounds(wide(q), wide(k), wide(v), causal))
    do = np.random.default_rng([seed, n_q, d]).standard_normal(q.shape)
    if kind == "seesaw":
        do += np.where(np.arange(n_q) < n_q // 2, 1000, -1000)[:, None]
    if kind == "scaled":
        do = 100 * np.abs(do)
    do = _in_type(do, dtype)
    return q, k, v, laid_out(_in_type(o, dtype), of_all, "o"), lse.astype(np.float32), laid_out(do, layout, "do"), causal


def wide(x):
    """A float16 array in float32, as the oracle takes it."""
    return x.astype(np.float32) if x.dtype == np.float16 else x
