"""What the course's argument names mean, checked in one place.

Names are fixed across the course (`q`, `block_size`, `kv_heads`, ...), so one decorator can look at a function's
parameter names and refuse bad input with one sentence, and the functions themselves hold nothing but the algorithm.
"""
import functools
import inspect
import operator

import numpy as np

BLOCKS = ("block_size", "block_q", "block_k")
COUNTS = ("n", "n_q", "n_k", "head_dim", "heads", "kv_heads", "itemsize", "sram_bytes")


def _float_array(name, x, ndim=None):
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{name} must be a NumPy array, but it is of type {type(x).__name__}.")
    if x.dtype not in (np.float32, np.float64):
        raise TypeError(f"{name} must be float32 or float64, but its dtype is {x.dtype}.")
    if ndim is not None and x.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} axes, but its shape is {x.shape}.")
    if x.ndim == 0 or 0 in x.shape:
        raise ValueError(f"{name} must hold at least one element along every axis, but its shape is {x.shape}.")
    return x


def _refuse(name, x, bad, what):
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(f"{name} must not hold {what}, but {name}[{', '.join(map(str, where))}] is {x[where]}.")


def logits(name, x, ndim=None):
    """Scores: any float array; -inf (masked) is allowed, NaN and +inf are not."""
    _float_array(name, x, ndim)
    _refuse(name, x, np.isnan(x) | (x == np.inf), "NaN or +inf")


def attention_inputs(q, k, v):
    """One head: q (Nq, D), k (Nk, D), v (Nk, Dv), finite, of one dtype."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        _float_array(name, x, ndim=2)
        _refuse(name, x, ~np.isfinite(x), "NaN or inf")
    if q.shape[1] != k.shape[1]:
        raise ValueError(f"q and k must have the same head dimension, but q is {q.shape} and k is {k.shape}.")
    if len(k) != len(v):
        raise ValueError(f"k and v must have the same number of rows, but k is {k.shape} and v is {v.shape}.")
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"q, k and v must have one dtype, but they are {q.dtype}, {k.dtype} and {v.dtype}.")


def state(name, s):
    """A state of online softmax: (m, l, o) with shapes (R,), (R,), (R, Dv)."""
    if not isinstance(s, tuple) or len(s) != 3:
        raise TypeError(f"{name} must be a tuple (m, l, o), but it is {_short(s)}.")
    m, l, o = s
    logits(f"m of {name}", m, ndim=1)
    for part, x, ndim in (("l", l, 1), ("o", o, 2)):
        _float_array(f"{part} of {name}", x, ndim)
        _refuse(f"{part} of {name}", x, ~np.isfinite(x), "NaN or inf")
    if not len(m) == len(l) == len(o):
        raise ValueError(f"{name} must have as many rows in m, l and o, but they have {len(m)}, {len(l)} and {len(o)}.")


def positive_int(name, value):
    """A whole number of at least 1 (a bool is not one)."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, but it is {_short(value)}.") from None
    if number < 1:
        raise ValueError(f"{name} must be at least 1, but it is {number}.")


def _short(value):
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _check(arguments):
    for name in BLOCKS + COUNTS:
        if name in arguments:
            positive_int(name, arguments[name])
    if "kv_heads" in arguments and arguments["heads"] % arguments["kv_heads"]:
        raise ValueError(f"heads must be a multiple of kv_heads, but they are {arguments['heads']} and {arguments['kv_heads']}.")
    if "causal" in arguments and not isinstance(arguments["causal"], (bool, np.bool_)):
        raise TypeError(f"causal must be True or False, but it is {_short(arguments['causal'])}.")
    if "q" in arguments:
        attention_inputs(arguments["q"], arguments["k"], arguments["v"])
    if "x" in arguments:
        logits("x", arguments["x"])
    if "scores" in arguments:
        m, l, scores = arguments["m"], arguments["l"], arguments["scores"]
        logits("scores", scores, ndim=2)
        state("(m, l)", (m, l, np.zeros((len(scores), 1), scores.dtype)))
    if "a" in arguments:
        a, b = arguments["a"], arguments["b"]
        state("a", a)
        state("b", b)
        if a[2].shape != b[2].shape:
            raise ValueError(f"a and b must have the same shape, but their o are {a[2].shape} and {b[2].shape}.")


def validated(fn):
    """Decorator: refuse arguments that break the course's conventions, with one sentence naming the argument.

    Raises TypeError for a wrong type or dtype and ValueError for a wrong value or shape.
    """
    signature = inspect.signature(fn)

    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        _check(bound.arguments)
        return fn(*args, **kwargs)

    return wrapper
