"""Inputs that bite: each kind is chosen so that a particular mistake cannot hide in it. All are deterministic in their seed."""
import sys

import numpy as np

from flashedu import machine
from flashedu.machine import Machine
from flashedu.reference import tiled_attention

KINDS = {
    "random": "random inputs",
    "rising": "maxima that rise from key to key",
    "falling": "maxima that fall from key to key",
    "huge": "one key whose logit is 60 above the others",
    "overflow": "logits near 1000, where exp overflows",
    "low": "logits near -20000, where exp of every one is 0",
    "steps": "logits that rise by exactly 4 or 8 from key to key",
    "creeping": "logits that rise by 1.5 from key to key",
    "uniform": "equal logits and whole numbers as values, so that the answer is their mean",
    "heavy": "equal logits and values near 1000, so that their sum, before the division, overflows float16",
    "seesaw": "equal logits and gradients of 1000, then of -1000, whose sum overflows float16 on the way",
    "scaled": "equal logits, values of 2000, then of 1000, and gradients near 100, whose products and partial sums overflow float16",
    "offset": "values with a large common offset",
    "magnitudes": "rows whose logits lie 1000 apart",
    "near": "logits 10 apart, so that weights are small but count",
    "spread": "logits that fall by 3 from key to key",
    "masked": "-inf among the entries",
    "empty": "a row of nothing but -inf",
    "blank": "a block of nothing but -inf",
    "first": "nothing seen before this block",
    "nothing": "nothing seen, neither before nor now",
    "mixed": "some rows have seen something, some have not",
    "empty a": "a has seen no key",
    "empty b": "b has seen no key",
    "rows": "some rows of a or b have seen no key",
    "outliers": "one element of 8 among zeros in every row",
    "flat": "rows of equal elements",
}


def qkv(kind, n_q, n_k, d, d_v=None, dtype="float32", seed=0, strided=False):
    """q (n_q, d), k (n_k, d), v (n_k, d_v) of one of KINDS; strided=True gives views that run backwards and leave gaps."""
    rng = np.random.default_rng([seed, n_q, n_k, d])
    d_v = d if d_v is None else d_v
    q, k, v = (rng.standard_normal(shape) for shape in ((n_q, d), (n_k, d), (n_k, d_v)))
    if kind == "uniform":
        q, v = np.zeros_like(q), rng.integers(-8, 9, v.shape).astype(float)
    elif kind == "steps":  # row i has the scores 0, 4, 8, ... times 1 or 2, without any rounding
        if d not in (1, 4, 16):
            raise ValueError("d must have a whole square root that is a power of two.")
        q[:], k[:, 0] = 0, 4 * np.arange(n_k)
        q[:, 0] = d**0.5 * 2.0 ** (np.arange(n_q) % 2)
    elif kind == "heavy":
        q, v = np.zeros_like(q), v + 1000
    elif kind == "offset":
        v += 1000
    elif kind == "magnitudes":  # adds 1000 * (i mod 2) to every score of row i
        q[:, 0], k[:, 0] = d**0.5 * 1000 * (np.arange(n_q) % 2), 1
    elif kind != "random":  # adds shift[j] to every score of key j
        steps = np.arange(n_k)
        shift = {"rising": 120 * steps, "falling": -120 * steps, "huge": 60 * (steps == 2 * n_k // 3),
                 "overflow": 1000, "low": -20000, "near": 10.0 * (steps == n_k // 2), "creeping": 1.5 * steps}[kind]
        q[:, 0], k[:, 0] = d**0.5, shift
    return _laid_out((q, k, v), dtype, strided)


def _laid_out(arrays, dtype, strided):
    """The arrays in a dtype, as they are or spread over larger ones."""
    return tuple(_spread(x.astype(dtype)) if strided else x.astype(dtype) for x in arrays)


def _spread(x):
    """The same values as a view on every second element of a larger array, read backwards, the rest NaN."""
    wide = np.full([2 * n for n in x.shape], np.nan, x.dtype)
    view = wide[tuple([slice(None, None, -2)] * x.ndim)]
    view[...] = x
    return view


def attention_case(kind, n_q, n_k, d, d_v=None, dtype="float32", seed=0, strided=False, **extra):
    """Arguments (q, k, v, *extra): extra holds the block sizes and `causal`, in the order of the exercise's parameters."""
    return (*qkv(kind, n_q, n_k, d, d_v, dtype, seed, strided), *extra.values())


def _with_do(kind, n_q, n_k, d, d_v, dtype, seed):
    """q, k, v of a kind, and do (n_q, d_v) for the output: whole numbers where the values are."""
    q, k, v = qkv(kind, n_q, n_k, d, d_v, dtype, seed)
    do = np.random.default_rng([seed, n_q, n_k, d, 1]).standard_normal((n_q, v.shape[1]))
    return q, k, v, (np.round(4 * do) if kind == "uniform" else do).astype(dtype)


def backward_case(kind, n_q, n_k, d, d_v=None, dtype="float32", seed=0, strided=False, **extra):
    """Arguments (q, k, v, do, *extra): extra holds `causal`, or nothing."""
    return (*_laid_out(_with_do(kind, n_q, n_k, d, d_v, dtype, seed), dtype, strided), *extra.values())


def tiled_backward_case(kind, n_q, n_k, d, block_q, block_k, d_v=None, dtype="float32", seed=0, strided=False, **extra):
    """Arguments (q, k, v, o, lse, do, block_q, block_k, *extra), with o and lse from a right forward pass by the same tiles."""
    q, k, v, do = _with_do(kind, n_q, n_k, d, d_v, dtype, seed)
    o, lse = tiled_attention(q, k, v, block_q, block_k, **extra)
    return (*_laid_out((q, k, v, o, lse, do), dtype, strided), block_q, block_k, *extra.values())


class WatchedMachine(Machine):
    """A machine that counts how often somebody looked at its HBM while tiles were in SRAM, that is, in mid-run."""

    looks = 0

    def __setattr__(self, name, value):
        if sys._getframe(1).f_code.co_filename not in (machine.__file__, __file__):
            raise AttributeError(f"machine.{name} cannot be set: the machine counts by itself.")
        super().__setattr__(name, value)

    @property
    def hbm(self):
        self.looks += bool(self.resident)
        return super().hbm


def machine_case(kind, n_q, n_k, d, block_q, block_k, causal=False, spare=100, d_v=None, dtype="float32", seed=0, strided=False):
    """Arguments (machine, block_q, block_k, causal). SRAM holds q, k, v, s and o tiles, row statistics, and `spare` s tiles more."""
    q, k, v = qkv(kind, n_q, n_k, d, d_v, dtype, seed, strided)
    rows, keys = min(block_q, n_q), min(block_k, n_k)
    width = d + v.shape[1]
    elements = (rows + keys) * width + rows * keys + 8 * rows + spare * rows * keys
    return WatchedMachine.for_attention(q, k, v, elements * q.itemsize), block_q, block_k, causal


def fa1_case(kind, n_q, n_k, d, block_q, block_k, spare=100, d_v=None, dtype="float32", seed=0, strided=False):
    """Arguments (machine, block_q, block_k), with m and l in HBM too. SRAM holds a tile of each array, s, and `spare` s tiles more."""
    q, k, v = qkv(kind, n_q, n_k, d, d_v, dtype, seed, strided)
    rows, keys = min(block_q, n_q), min(block_k, n_k)
    elements = (rows + keys) * (d + v.shape[1]) + rows * keys + 8 * rows + spare * rows * keys
    o, nothing = np.zeros((n_q, v.shape[1]), dtype), np.zeros(n_q, dtype)
    hbm = {"q": q, "k": k, "v": v, "o": o, "m": nothing - np.inf, "l": nothing, "lse": nothing + np.nan}
    return WatchedMachine(hbm, elements * q.itemsize), block_q, block_k


def rotation_case(kind, n_q, n_k, d, signs, dtype="float32", seed=0, strided=False):
    """Arguments (q, k, signs), the last of which is the seed of the random signs."""
    least = 32 if kind == "flat" else 1  # in few dimensions chance decides how they are spread
    if d & (d - 1) or d < least:
        raise ValueError(f"d must be a power of two, at least {least}.")
    if kind in ("random", "magnitudes"):
        q, k, _ = qkv(kind, n_q, n_k, d, dtype=dtype, seed=seed)
    elif kind == "flat":
        q, k = np.full((n_q, d), 1.0), np.full((n_k, d), -2.0)
    else:
        q, k = (np.zeros((n, d)) for n in (n_q, n_k))
        for x, stride in ((q, 3), (k, 5)):
            rows = np.arange(len(x))
            x[rows, (1 + stride * rows) % d] = 8
    return (*_laid_out((q, k), dtype, strided), signs)


def rows_case(kind, rows, n, dtype="float32", seed=0, lead=(), strided=False):
    """Argument (x,) with x (*lead, rows, n) for a softmax."""
    rng = np.random.default_rng([seed, rows, n])
    x = rng.standard_normal((*lead, rows, n))
    if kind == "masked":
        x[..., 1 - n % 2 :: 2] = -np.inf
        x[..., -1] = 1
    elif kind == "empty":
        x[..., rows // 2, :] = -np.inf
    elif kind == "uniform":
        x[:] = 3
    elif kind != "random":
        steps = np.arange(n)
        x += {"overflow": 1000, "low": -20000, "magnitudes": 1000 * (np.arange(rows) % 2)[:, None], "rising": 60 * steps,
              "falling": -60 * steps, "spread": -3 * steps}[kind]
    return _laid_out((x,), dtype, strided)


def normalizer_case(kind, rows, block, dtype="float32", seed=0, strided=False):
    """Arguments (m, l, scores): the state of some keys seen before, then a block of scores."""
    rng = np.random.default_rng([seed, rows, block])
    before, scores = rng.standard_normal((rows, 3)), rng.standard_normal((rows, block))
    if kind in ("rising", "near"):
        scores += {"rising": 5, "near": 10}[kind]
    elif kind == "falling":
        scores -= 5
    elif kind == "overflow":
        before += 1000
        scores += 1010
    elif kind == "low":
        before -= 20000
        scores -= 20000
    elif kind == "magnitudes":
        before += 1000 * (np.arange(rows) % 2)[:, None]
        scores += 1000 * (np.arange(rows) % 2)[:, None]
    elif kind == "masked":
        scores[:, ::2] = -np.inf
    m = before.max(axis=1)
    l = np.exp(before - m[:, None]).sum(axis=1)
    number = np.arange(rows)
    unseen = {"first": number >= 0, "nothing": number >= 0, "mixed": number % 4 >= 2}.get(kind, number < 0)
    blank = {"blank": number >= 0, "nothing": number >= 0, "mixed": number % 2 == 1}.get(kind, number < 0)
    m[unseen], l[unseen], scores[blank] = -np.inf, 0, -np.inf
    return _laid_out((m, l, scores), dtype, strided)


def states_case(kind, rows, d_v, dtype="float32", seed=0, strided=False):
    """Arguments (a, b): the states of 3 and of 5 keys."""
    rng = np.random.default_rng([seed, rows, d_v])
    gap = {"rising": 5, "falling": -5, "near": 10, "huge": 200}.get(kind, 0)
    base = {"overflow": 1000, "low": -20000}.get(kind, 0)
    number = np.arange(rows)
    empty = {  # which rows of a and of b have seen nothing
        "empty a": (number >= 0, number < 0),
        "empty b": (number < 0, number >= 0),
        "nothing": (number >= 0, number >= 0),
        "rows": (number % 4 < 2, number % 2 == 0),
    }.get(kind, (number < 0, number < 0))
    parts = []
    for keys, shift, nothing in ((3, base, empty[0]), (5, base + gap, empty[1])):
        s, v = rng.standard_normal((rows, keys)) + shift, rng.standard_normal((keys, d_v))
        m = s.max(axis=1)
        p = np.exp(s - m[:, None])
        l, o = p.sum(axis=1), p @ v
        m[nothing], l[nothing], o[nothing] = -np.inf, 0, 0
        parts.append(_laid_out((m, l, o), dtype, strided))
    return tuple(parts)


def numbers_case(**numbers):
    """Arguments that are just the numbers given, in order."""
    if numbers.get("heads", 0) % numbers.get("kv_heads", 1):
        raise ValueError("heads must be a multiple of kv_heads.")
    return tuple(numbers.values())
