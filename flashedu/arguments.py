"""What the course's argument names mean, checked in one place.

Names are fixed across the course (`q`, `block_size`, `kv_heads`, ...), so one decorator can look at a function's
parameter names and refuse bad input with one sentence, and the functions themselves hold nothing but the algorithm.
"""
import functools
import inspect
import operator
import threading

import numpy as np

BLOCKS = ("block_size", "block_q", "block_k")
COUNTS = ("n", "n_q", "n_k", "head_dim", "heads", "kv_heads", "itemsize", "sram_bytes", "seed", "splits", "layers", "hidden", "ffn", "reach", "rank")
MOST = {"splits": 2**16}  # each of them costs time and memory, also a part without a key


def float_array(name, x, ndim=None):
    """A plain NumPy array of float32 or float64 with at least one element along every axis."""
    if type(x) is not np.ndarray:
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


def one_dtype(arrays):
    """A dict of named arrays that all have the same dtype."""
    if len({x.dtype for x in arrays.values()}) > 1:
        kinds = ", ".join(f"{name} {x.dtype}" for name, x in arrays.items())
        raise TypeError(f"{', '.join(arrays)} must have one dtype, but they are {kinds}.")


def logits(name, x, ndim=None):
    """Scores: any float array; -inf (masked) is allowed, NaN and +inf are not."""
    float_array(name, x, ndim)
    _refuse(name, x, np.isnan(x) | (x == np.inf), "NaN or +inf")


def attention_inputs(q, k, v):
    """One head: q (Nq, D), k (Nk, D), v (Nk, Dv), finite, of one dtype."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        float_array(name, x, ndim=2)
        _refuse(name, x, ~np.isfinite(x), "NaN or inf")
    if q.shape[1] != k.shape[1]:
        raise ValueError(f"q and k must have the same head dimension, but q is {q.shape} and k is {k.shape}.")
    if len(k) != len(v):
        raise ValueError(f"k and v must have the same number of rows, but k is {k.shape} and v is {v.shape}.")
    one_dtype({"q": q, "k": k, "v": v})


def layer_inputs(q, k, v, do=None):
    """torch's layout as NumPy arrays: q (B, H, Nq, D), k (B, Hkv, Nk, D), v (B, Hkv, Nk, Dv), do (B, H, Nq, Dv)."""
    arrays = {"q": q, "k": k, "v": v, **({} if do is None else {"do": do})}
    for name, x in arrays.items():
        float_array(name, x, ndim=4)
        _refuse(name, x, ~np.isfinite(x), "NaN or inf")
    if not len(q) == len(k) == len(v) or q.shape[3] != k.shape[3] or k.shape[1:3] != v.shape[1:3]:
        raise ValueError(f"q, k and v must agree in batch and head dimension, and k and v in heads and keys, but they are {q.shape}, {k.shape} and {v.shape}.")
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"The heads of q must be a multiple of those of k, but they are {q.shape[1]} and {k.shape[1]}.")
    if do is not None and do.shape != (*q.shape[:3], v.shape[3]):
        raise ValueError(f"do must have the shape of the output, {(*q.shape[:3], v.shape[3])}, but it has {do.shape}.")
    one_dtype(arrays)


def gradient_inputs(q, k, v, do, **forward):
    """One head, the gradient of its output do (Nq, Dv), and what else was kept of the forward pass: o (Nq, Dv), lse (Nq,)."""
    attention_inputs(q, k, v)
    for name, x in {"do": do, **forward}.items():
        if name == "lse":
            logits(name, x, ndim=1)
        else:
            float_array(name, x, ndim=2)
            _refuse(name, x, ~np.isfinite(x), "NaN or inf")
        shape = (len(q), v.shape[1])[: x.ndim]
        if x.shape != shape:
            raise ValueError(f"{name} must have shape {shape}, as q and v have it, but it has {x.shape}.")
    one_dtype({"q": q, "do": do, **forward})


def state(name, s):
    """A state of online softmax: (m, l, o) with shapes (R,), (R,), (R, Dv)."""
    if not isinstance(s, tuple) or len(s) != 3:
        raise TypeError(f"{name} must be a tuple (m, l, o), but it is {short(s)}.")
    m, l, o = s
    logits(f"m of {name}", m, ndim=1)
    for part, x, ndim in (("l", l, 1), ("o", o, 2)):
        float_array(f"{part} of {name}", x, ndim)
        _refuse(f"{part} of {name}", x, ~np.isfinite(x), "NaN or inf")
    _refuse(f"l of {name}", l, l < 0, "a negative sum")
    if not len(m) == len(l) == len(o):
        raise ValueError(f"{name} must have as many rows in m, l and o, but they have {len(m)}, {len(l)} and {len(o)}.")
    one_dtype({f"m of {name}": m, f"l of {name}": l, f"o of {name}": o})


def positive_int(name, value, least=1, most=float("inf")):
    """A whole number from 1, or `least`, to `most` (a bool is not one), returned as Python's own int, which cannot overflow."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, but it is {short(value)}.") from None
    if not least <= number <= most:
        raise ValueError(f"{name} must be at {f'least {least}' if number < least else f'most {most}'}, but it is {short(number)}.")
    return number


def dtype_name(dtype):
    """The name of a dtype given as a string, NumPy's or torch's."""
    return dtype.__name__ if isinstance(dtype, type) else str(dtype).removeprefix("torch.")


def in_type(name, x, dtype):
    """x without loss as float64 for dtype float64, else as float32: NumPy has no bfloat16. It must hold numbers of dtype."""
    kind = dtype_name(dtype)
    exact = x.astype(np.float64 if kind == "float64" else np.float32)
    coarse = exact
    if kind == "float16":
        coarse = exact.astype(np.float16)
    elif kind == "bfloat16":
        coarse = (exact.view(np.uint32) & 0xFFFF0000).view(np.float32)
    if not np.array_equal(coarse, x):
        raise ValueError(f"{name} must hold numbers of dtype {kind}, but some of its numbers have more digits or overflow.")
    return exact


def boolean(name, value):
    """True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, but it is {short(value)}.")


def number(name, value):
    """A finite number of at least 0, such as a scale or a unit roundoff."""
    if not isinstance(value, (int, float, np.integer, np.floating)) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, but it is {short(value)}.")
    if not 0 <= value <= float(np.finfo(np.float64).max):
        raise ValueError(f"{name} must be a finite number of at least 0, but it is {short(value)}.")


def lazy_threshold(threshold, v):
    """How far a row's maximum may rise unnoticed, in natural log units: sums of exp(threshold) |v| must not overflow."""
    number("threshold", threshold)
    most = float(np.log(np.finfo(v.dtype).max) - np.log(len(v)) - np.log(max(1, np.abs(v).max())))
    if threshold > max(0, most):
        raise ValueError(f"threshold must be at most {max(0, most):.1f} for this v, or sums of exp(threshold) overflow {v.dtype}, but it is {threshold}.")


def short(value):
    """A value as it appears in a message: one line, at most 60 characters."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # its repr raises, or it is a whole number of thousands of digits
        text = f"of type {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def _machine(machine):
    missing = [name for name in ("q", "k", "v", "o") if name not in getattr(machine, "hbm", {})]
    if missing:
        raise TypeError(f"machine must be a Machine whose HBM holds q, k, v and o, but it is {short(machine)} without {', '.join(missing)}.")
    attention_inputs(*(machine.hbm[name] for name in ("q", "k", "v")))


def _check(arguments):
    for name in BLOCKS + COUNTS:
        if name in arguments:
            arguments[name] = positive_int(name, arguments[name], 0 if name in ("seed", "reach") else 1, MOST.get(name, float("inf")))
    if {"heads", "kv_heads"} <= arguments.keys() and arguments["heads"] % arguments["kv_heads"]:
        raise ValueError(f"heads must be a multiple of kv_heads, but they are {arguments['heads']} and {arguments['kv_heads']}.")
    if "sram_bytes" in arguments and arguments["sram_bytes"] < arguments["itemsize"]:
        raise ValueError(f"sram_bytes must hold at least one element of {arguments['itemsize']} bytes, but it is {arguments['sram_bytes']}.")
    if "causal" in arguments:
        boolean("causal", arguments["causal"])
    if "machine" in arguments:
        _machine(arguments["machine"])
    if "do" in arguments:
        gradient_inputs(**{name: arguments[name] for name in ("q", "k", "v", "do", "o", "lse") if name in arguments})
    elif "v" in arguments:
        attention_inputs(arguments["q"], arguments["k"], arguments["v"])
    elif "q" in arguments:  # to be rotated
        attention_inputs(arguments["q"], arguments["k"], arguments["k"])
        if (d := arguments["q"].shape[1]) & (d - 1):
            raise ValueError(f"q and k must have a power of two as their head dimension, but it is {d}.")
    if "threshold" in arguments:
        lazy_threshold(arguments["threshold"], arguments["v"])
    if {"reach", "q"} <= arguments.keys() and len(arguments["q"]) != len(arguments["k"]):
        raise ValueError(f"q and k must have as many rows, but they have {len(arguments['q'])} and {len(arguments['k'])}.")
    if {"rank", "k"} <= arguments.keys() and arguments["rank"] > len(arguments["k"]):
        raise ValueError(f"rank must be at most the number of keys, {len(arguments['k'])}, but it is {arguments['rank']}.")
    if "x" in arguments:
        logits("x", arguments["x"])
    if "scores" in arguments:
        m, l, scores = arguments["m"], arguments["l"], arguments["scores"]
        logits("scores", scores, ndim=2)
        logits("m", m, ndim=1)
        float_array("l", l, ndim=1)
        _refuse("l", l, ~((l >= 0) & (l < np.inf)), "NaN, inf or a negative sum")
        one_dtype({"m": m, "l": l, "scores": scores})
        if not len(m) == len(l) == len(scores):
            raise ValueError(f"m, l and scores must have as many rows, but they have {len(m)}, {len(l)} and {len(scores)}.")
    if "a" in arguments:
        a, b = arguments["a"], arguments["b"]
        state("a", a)
        state("b", b)
        one_dtype({"o of a": a[2], "o of b": b[2]})
        if a[2].shape != b[2].shape:
            raise ValueError(f"a and b must have the same shape, but their o are {a[2].shape} and {b[2].shape}.")


_here = threading.local()  # .inside: a validated function is running, so what it calls has been looked at already


def validated(fn):
    """Decorator: refuse arguments that break the course's conventions, with one sentence naming the argument.

    Raises TypeError for a wrong type or dtype and ValueError for a wrong value or shape. Only the outermost call is
    checked: naive attention, say, is not slowed down by a second look at every score.
    """
    signature = inspect.signature(fn)

    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        if getattr(_here, "inside", False):
            return fn(*args, **kwargs)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{fn.__name__}{signature} was called wrongly: {error}.") from None
        _check(bound.arguments)
        _here.inside = True
        try:
            return fn(*bound.args, **bound.kwargs)
        finally:
            _here.inside = False

    return wrapper
