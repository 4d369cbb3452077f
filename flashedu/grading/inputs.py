"""Inputs that bite: each kind is chosen so that a particular mistake cannot hide in it. All are deterministic in their seed."""
import numpy as np

from flashedu.machine import Machine

KINDS = {
    "random": "random inputs",
    "rising": "maxima that rise from key to key",
    "falling": "maxima that fall from key to key",
    "huge": "one key whose logit is 60 above the others",
    "overflow": "logits near 1000, where exp overflows",
    "uniform": "equal logits and whole numbers as values, so that the answer is their mean",
    "offset": "values with a large common offset",
    "magnitudes": "rows whose logits lie 1000 apart",
}


def qkv(kind, n_q, n_k, d, d_v=None, dtype="float32", seed=0, strided=False):
    """q (n_q, d), k (n_k, d), v (n_k, d_v) of one of KINDS; strided=True gives views with gaps between the elements."""
    rng = np.random.default_rng([seed, n_q, n_k, d])
    d_v = d if d_v is None else d_v
    q, k, v = (rng.standard_normal(shape) for shape in ((n_q, d), (n_k, d), (n_k, d_v)))
    if kind == "uniform":
        q, v = np.zeros_like(q), rng.integers(-8, 9, v.shape).astype(float)
    elif kind == "offset":
        v += 1000
    elif kind == "magnitudes":  # adds 1000 * (i mod 2) to every score of row i
        q[:, 0], k[:, 0] = d**0.5 * 1000 * (np.arange(n_q) % 2), 1
    elif kind != "random":  # adds shift[j] to every score of key j
        steps = np.arange(n_k)
        shift = {"rising": 60 * steps, "falling": -60 * steps, "huge": 60 * (steps == 2 * n_k // 3), "overflow": 1000 + 0 * steps}[kind]
        q[:, 0], k[:, 0] = d**0.5, shift
    arrays = [x.astype(dtype) for x in (q, k, v)]
    return tuple(_spread(x) for x in arrays) if strided else tuple(arrays)


def _spread(x):
    """The same values as a view on every second row and column of a larger array, the rest NaN."""
    wide = np.full((2 * x.shape[0], 2 * x.shape[1]), np.nan, x.dtype)
    wide[::2, ::2] = x
    return wide[::2, ::2]


def attention_case(kind, n_q, n_k, d, d_v=None, dtype="float32", seed=0, strided=False, **extra):
    """Arguments (q, k, v, *extra): extra holds the block sizes and `causal`, in the order of the exercise's parameters."""
    return (*qkv(kind, n_q, n_k, d, d_v, dtype, seed, strided), *extra.values())


def machine_case(kind, n_q, n_k, d, block_q, block_k, causal=False, spare=1.0, d_v=None, dtype="float32", seed=0):
    """Arguments (machine, block_q, block_k, causal). SRAM holds q, k, v, s and o tiles, row statistics, and `spare` s tiles more."""
    q, k, v = qkv(kind, n_q, n_k, d, d_v, dtype, seed)
    rows, keys = min(block_q, n_q), min(block_k, n_k)
    width = d + v.shape[1]
    elements = (rows + keys) * width + rows * keys + 8 * rows + int(spare * rows * keys)
    return Machine.for_attention(q, k, v, elements * q.itemsize), block_q, block_k, causal


def rows_case(kind, rows, n, dtype="float32", seed=0, lead=()):
    """Argument (x,) with x (*lead, rows, n) for a softmax."""
    rng = np.random.default_rng([seed, rows, n])
    x = rng.standard_normal((*lead, rows, n))
    if kind == "overflow":
        x += 1000
    elif kind == "magnitudes":
        x += 1000 * (np.arange(rows) % 2)[:, None]
    elif kind == "masked":
        x[..., 1 - n % 2 :: 2] = -np.inf
        x[..., -1] = 1
    elif kind == "empty":
        x[..., 0, :] = -np.inf
    elif kind == "uniform":
        x[:] = 3
    elif kind == "low":
        x -= 1000
    return (x.astype(dtype),)


def normalizer_case(kind, rows, block, dtype="float32", seed=0):
    """Arguments (m, l, scores): the state of some keys seen before, then a block of scores."""
    rng = np.random.default_rng([seed, rows, block])
    before, scores = rng.standard_normal((rows, 3)), rng.standard_normal((rows, block))
    if kind == "rising":
        scores += 5
    elif kind == "falling":
        scores -= 5
    elif kind == "overflow":
        before += 1000
        scores += 1010
    elif kind == "magnitudes":
        before += 1000 * (np.arange(rows) % 2)[:, None]
        scores += 1000 * (np.arange(rows) % 2)[:, None]
    elif kind == "masked":
        scores[:, ::2] = -np.inf
    elif kind == "blank":  # the whole block is masked
        scores[:] = -np.inf
    m = before.max(axis=1)
    l = np.exp(before - m[:, None]).sum(axis=1)
    if kind in ("first", "nothing"):
        m[:], l[:] = -np.inf, 0
    if kind == "nothing":
        scores[:] = -np.inf
    return m.astype(dtype), l.astype(dtype), scores.astype(dtype)


def states_case(kind, rows, d_v, dtype="float32", seed=0):
    """Arguments (a, b): the states of 3 and of 5 keys."""
    rng = np.random.default_rng([seed, rows, d_v])
    gap = {"rising": 5, "falling": -5, "huge": 200}.get(kind, 0)
    base = 1000 if kind == "overflow" else 0
    parts = []
    for keys, shift in ((3, base), (5, base + gap)):
        s, v = rng.standard_normal((rows, keys)) + shift, rng.standard_normal((keys, d_v))
        m = s.max(axis=1)
        p = np.exp(s - m[:, None])
        parts.append(tuple(x.astype(dtype) for x in (m, p.sum(axis=1), p @ v)))
    empty = tuple(np.full_like(x, fill) for x, fill in zip(parts[0], (-np.inf, 0, 0)))
    if kind == "empty a":
        parts[0] = empty
    elif kind == "empty b":
        parts[1] = empty
    elif kind == "nothing":
        parts = [empty, tuple(x.copy() for x in empty)]
    elif kind == "rows":  # in every second row a is empty, in the others b
        for part, odd in zip(parts, (0, 1)):
            part[0][odd::2], part[1][odd::2], part[2][odd::2] = -np.inf, 0, 0
    return tuple(parts)


def numbers_case(**numbers):
    """Arguments that are just the numbers given, in order."""
    if numbers.get("heads", 0) % numbers.get("kv_heads", 1):
        raise ValueError("heads must be a multiple of kv_heads.")
    return tuple(numbers.values())
