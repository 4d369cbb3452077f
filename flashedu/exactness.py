"""What "exact" means: the error that rounding alone may cause, element by element, around a float64 oracle.

Flash attention computes what naive attention computes; only the order of floating-point additions differs. So an
answer is judged by |o - o*| against a bound that follows from the unit roundoff u of the arithmetic:

    |o - o*| <= slack * [ (kappa + u_P) (P*|V|) + u_o (|o*| + u_P P*|V|) ]
    kappa = 2 delta + u (2 T + 2 sqrt(B) + 8)
    delta = u ((sqrt(D) + 3) max_j sum |q||k| scale + 2 (max S - min S))

delta is the error of one score (a dot product of length D, the scaling, the subtraction of the maximum), which exp
turns into a relative error; T is the number of key tiles, each of which may rescale the sums once, and B their size.
The square roots are the probabilistic bound on a sum's rounding error (Higham and Mary 2019): rounding errors have
random signs and partly cancel. The worst case would grow with D and B themselves, and is never met in practice. The
bound scales with P*|V|, not with |o*|, because the terms of o may cancel. u is that of float32, or of float64 for
float64 inputs; u_P and u_o are those of the types that P and o are rounded to, which for float16 and bfloat16 are these.

A relative bound ends where numbers become too small for their type. An exponential below the smallest normal number may
become 0, and P below 2**-14 loses up to 2**-25 in float16: that adds this number times sum |V|, invisible in float32
unless everything else is 0. The gradients' bound is built on this one: see `flashedu.gradient_bounds`.
"""
import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from flashedu import arguments

SLACK = 1.25
UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


@dataclass(frozen=True)
class Bound:
    """A true value and the largest error, element by element, that rounding alone may cause."""

    exact: np.ndarray
    bound: np.ndarray

    def errors(self, value):
        """|value - exact| / bound for each element, in the shape of exact; inf where value is NaN or wrongly infinite.

        Where the bound is 0 (a row that sees no key) only the exact value has ratio 0; any other has inf. Raises TypeError
        for what is not numbers, ValueError for another shape.
        """
        if not np.issubdtype(np.asarray(value).dtype, np.number):
            raise TypeError(f"value must be numbers, but it is {arguments.short(value)}.")
        value = np.asarray(value, dtype=self.exact.dtype)
        if value.shape != self.exact.shape:
            raise ValueError(f"value must have shape {self.exact.shape}, but it has {value.shape}.")
        with np.errstate(invalid="ignore", divide="ignore"):
            error = np.where(value == self.exact, 0, np.abs(value - self.exact))
            ratio = np.where(error == 0, 0, error / self.bound)
        return np.where(np.isnan(ratio), np.inf, ratio).astype(np.float64)

    def ratio(self, value):
        """The largest of `errors`, for a value in the shape of exact: at most 1 means that rounding explains every element.

        Raises what `errors` raises.
        """
        return float(self.errors(value).max())


def unit_roundoff(dtype):
    """Half the distance from 1 to the next number of a dtype, 2**-24 for float32; raises TypeError for one that UNIT_ROUNDOFF lacks."""
    name = arguments.dtype_name(dtype)
    if name not in UNIT_ROUNDOFF:
        raise TypeError(f"dtype must be one of {', '.join(UNIT_ROUNDOFF)}, but it is {dtype}.")
    return UNIT_ROUNDOFF[name]


def _wide(x):
    """x in the precision of the oracle: float64, and for float64 inputs the platform's longest double."""
    return x.astype(np.longdouble if x.dtype == np.float64 else np.float64)


def _tiny(x):
    """The smallest normal number of x's dtype: below it, results may be rounded coarsely or to 0."""
    return np.finfo(x.dtype).tiny


def scores(q, k, causal=False, scale=None):
    """The oracle's scores S* (Nq, Nk) for q (Nq, D) and k (Nk, D), with -inf where the bottom-right mask hides a key.

    Raises TypeError or ValueError for arrays that do not fit together or are not finite, and a scale that is no number >= 0.
    """
    arguments.attention_inputs(q, k, k)
    arguments.boolean("causal", causal)
    if scale is not None:
        arguments.number("scale", scale)
    q, k = _wide(q), _wide(k)
    s = q @ k.T * (1 / np.sqrt(q.dtype.type(q.shape[1])) if scale is None else scale)
    if causal:
        rows, keys = np.arange(len(q))[:, None], np.arange(len(k))
        s = np.where(keys <= rows + len(k) - len(q), s, -np.inf)
    return s


def _row_statistics(s):
    """Per row of s (..., N): maximum (0 if no key is visible), sum of exp(s - max), and the spread max - min."""
    seen = s > -np.inf
    m = np.where(seen.any(axis=-1), s.max(axis=-1), 0)
    l = np.exp(s - m[..., None]).sum(axis=-1)
    spread = np.where(seen.any(axis=-1), m - np.where(seen, s, np.inf).min(axis=-1), 0)
    return m, l, spread


def _kappa(delta, u, tiles, block):
    return 2 * delta + u * (2 * tiles + 2 * math.sqrt(block) + 8)


def softmax_bound(x, u=None):
    """Bound for a softmax over the last axis of x (..., N), computed with unit roundoff u (by default that of x).

    Raises TypeError or ValueError for an x of another dtype, empty or with NaN or +inf, and a u that is no number >= 0.
    """
    arguments.logits("x", x)
    u = unit_roundoff(x.dtype) if u is None else u
    arguments.number("u", u)
    s = _wide(x)
    m, l, spread = _row_statistics(s)
    size = np.where(np.isfinite(s), np.abs(s), 0).max(axis=-1)
    delta = u * (3 * size + 2 * spread)  # the scores are given: D = 0, and what is left is the subtraction, generously
    p = np.exp(s - m[..., None]) / np.where(l == 0, 1, l)[..., None]
    return Bound(p, SLACK * (_kappa(delta, u, 1, s.shape[-1]) + u)[..., None] * p + _tiny(x) * (s > -np.inf))


@dataclass(frozen=True)
class Rounding:
    """How a kernel rounds.

    u is the unit roundoff of what it accumulates in, u_p that of P (and dS), 0 if it is not cast, u_o that of its results;
    tiny is what an exponential may lose to underflow, lost what a cast of P or a result may."""

    u: float
    u_p: float
    u_o: float
    tiny: float
    lost: float


@dataclass(frozen=True)
class Forward:
    """The oracle of one head and the errors of a forward pass, without slack.

    p and visible are (Nq, Nk), o and o_error (Nq, Dv), the rest (Nq,). delta is the error of a score, kappa the relative one
    of a probability."""

    rounding: Rounding
    visible: np.ndarray
    p: np.ndarray
    o: np.ndarray
    o_error: np.ndarray
    m: np.ndarray
    lse: np.ndarray
    lse_error: np.ndarray
    delta: np.ndarray
    kappa: np.ndarray


def forward_errors(q, k, v, causal=False, scale=None, block_k=None, dtype=None, u=None):
    """The `Forward` of one head, q (Nq, D), k (Nk, D), v (Nk, Dv); takes and raises what `attention_bounds` does."""
    arguments.attention_inputs(q, k, v)
    dtype = q.dtype if dtype is None else dtype
    u_type = unit_roundoff(dtype)
    q, k, v = (arguments.in_type(name, x, dtype) for name, x in (("q", q), ("k", k), ("v", v)))
    u = unit_roundoff(q.dtype) if u is None else u
    arguments.number("u", u)
    cast = u_type > UNIT_ROUNDOFF["float32"]  # to 16 bits
    tiny = float(_tiny(q))
    r = Rounding(u, u_type if cast else 0.0, u_type if cast else u, tiny, 2.0**-25 if arguments.dtype_name(dtype) == "float16" else tiny)

    d, n_k = q.shape[1], len(k)
    block_k = min(n_k, arguments.positive_int("block_k", n_k if block_k is None else block_k))
    s = scores(q, k, causal, scale)
    scale = 1 / math.sqrt(d) if scale is None else scale
    m, l, spread = _row_statistics(s)
    visible = s > -np.inf
    size = np.where(visible, _wide(np.abs(q)) @ _wide(np.abs(k)).T, 0).max(axis=1) * scale
    delta = u * ((math.sqrt(d) + 3) * size + 2 * spread)
    kappa = _kappa(delta, u, -(-n_k // block_k), block_k)
    p = np.exp(s - m[:, None]) / np.where(l == 0, 1, l)[:, None]
    o, p_abs_v = p @ _wide(v), p @ _wide(np.abs(v))
    underflow = r.lost * (visible @ _wide(np.abs(v))) + r.lost * visible.any(axis=1, keepdims=True)
    o_error = (kappa[:, None] + r.u_p) * p_abs_v + r.u_o * (np.abs(o) + r.u_p * p_abs_v) + underflow
    with np.errstate(divide="ignore"):
        lse = np.where(l > 0, m + np.log(l), -np.inf)
    lse_error = np.where(l > 0, kappa + u * (np.abs(m) + np.abs(np.where(l > 0, lse, 0))), 0)
    return Forward(r, visible, p, o, o_error, m, lse, lse_error, delta, kappa)


def by_head(one_head, q, k, v, do=None):
    """The bounds of one_head(q, k, v), or one_head(q, k, v, do), for every query head of torch's layout, stacked to (B, H, ...).

    q (B, H, Nq, D), k (B, Hkv, Nk, D), v (B, Hkv, Nk, Dv), H a multiple of Hkv, do (B, H, Nq, Dv). Raises TypeError for other
    dtypes and a one_head that is no function, ValueError for shapes that do not fit and for NaN or inf.
    """
    if not callable(one_head):
        raise TypeError(f"one_head must be a function, but it is {arguments.short(one_head)}.")
    arguments.layer_inputs(q, k, v, do)
    (batch, heads), group = q.shape[:2], q.shape[1] // k.shape[1]
    more = () if do is None else (do,)
    bounds = [one_head(q[b, h], k[b, h // group], v[b, h // group], *(x[b, h] for x in more)) for b in range(batch) for h in range(heads)]
    stacked = lambda parts: np.stack(parts).reshape(batch, heads, *parts[0].shape)  # noqa: E731
    return tuple(Bound(stacked([x.exact for x in result]), stacked([x.bound for x in result])) for result in zip(*bounds))


def attention_bounds(q, k, v, causal=False, scale=None, block_k=None, dtype=None, u=None):
    """Bounds for the output (Nq, Dv) and the lse (Nq,) of attention on q (Nq, D), k (Nk, D), v (Nk, Dv).

    In torch's layout, q (B, H, Nq, D), k (B, Hkv, Nk, D) and v (B, Hkv, Nk, Dv), they are (B, H, Nq, Dv) and (B, H, Nq).
    dtype is that of the kernel's inputs and output, also of torch, by default that of the arrays: NumPy has no bfloat16, so
    16-bit numbers are passed as float32. block_k is the size of the key tiles (by default one tile of Nk), u the unit
    roundoff of the accumulation (by default that of float32, or of float64 for float64). Returns (Bound, Bound). Raises
    TypeError or ValueError for arrays that do not fit together, are not finite, or hold numbers that dtype cannot.
    """
    if getattr(q, "ndim", 2) == 4:
        return by_head(partial(attention_bounds, causal=causal, scale=scale, block_k=block_k, dtype=dtype, u=u), q, k, v)
    f = forward_errors(q, k, v, causal, scale, block_k, dtype, u)
    return Bound(f.o, SLACK * f.o_error), Bound(f.lse, SLACK * f.lse_error)


def state_bounds(parts, u):
    """Bounds for the sum l (R,) and the output o (R, Dv) of a state merged from `parts`, a list of states (m, l, o).

    m is a maximum and has no rounding error: it must be equal. Returns (m, Bound for l, Bound for o). Raises TypeError or
    ValueError for what is no state, parts that differ in shape or dtype, and no parts at all.
    """
    if not isinstance(parts, list | tuple):
        raise TypeError(f"parts must be a list of states (m, l, o), but it is {arguments.short(parts)}.")
    if not parts:
        raise ValueError("parts must hold at least one state, but it is empty.")
    for i, part in enumerate(parts):
        arguments.state(f"part {i}", part)
    arguments.one_dtype({f"o of part {i}": part[2] for i, part in enumerate(parts)})
    if len({part[2].shape for part in parts}) > 1:
        raise ValueError(f"parts must have the same shape, but their o are {', '.join(str(part[2].shape) for part in parts)}.")
    arguments.number("u", u)
    ms = np.stack([_wide(m) for m, _, _ in parts], axis=-1)  # (R, parts)
    m, _, spread = _row_statistics(ms)
    size = np.where(np.isfinite(ms), np.abs(ms), 0).max(axis=-1)
    kappa = _kappa(u * (3 * size + 2 * spread), u, len(parts), 1)
    w = np.exp(ms - m[:, None])  # 0 for an empty part
    l = sum(w[:, i] * _wide(part[1]) for i, part in enumerate(parts))
    o = sum(w[:, i, None] * _wide(part[2]) for i, part in enumerate(parts))
    o_abs = sum(w[:, i, None] * np.abs(_wide(part[2])) for i, part in enumerate(parts))
    l_all, o_all = (sum(np.abs(_wide(part[i])) for part in parts) for i in (1, 2))
    tiny = _tiny(parts[0][2])
    return ms.max(axis=-1), Bound(l, SLACK * (kappa + u) * l + tiny * l_all), Bound(o, SLACK * (kappa + u)[:, None] * o_abs + tiny * o_all)
