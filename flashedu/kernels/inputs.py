"""What attention takes as torch tensors: anything else is refused here with one sentence, in front of the kernels."""
import functools
import inspect

import torch

from flashedu.arguments import MOST, boolean, dtype_name, number, positive_int, short
from flashedu.kernels.device import DEVICE

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MOST_COLUMNS = 2**20  # the largest tile that Triton allows


def checked(check):
    """Decorator: `check` is first called with those of a function's arguments that it names; a notebook shows the function without it.

    The function raises what the check does, and TypeError for a call that does not fit its parameters.
    """
    names = inspect.signature(check).parameters

    def decorate(fn):
        signature = inspect.signature(fn)

        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(f"{fn.__name__}{signature} was called wrongly: {error}.") from None
            check(**{name: value for name, value in given.items() if name in names})
            return fn(*args, **kwargs)

        return wrapper

    return decorate


def tensor(name, x, dtypes=None):
    """A dense torch tensor of any shape, of one of the dtypes if they are given; raises TypeError for anything else."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} must be a torch tensor, but it is of type {type(x).__name__}.")
    if x.layout is not torch.strided or x.is_nested:
        raise TypeError(f"{name} must be a dense tensor, but it is {'nested' if x.is_nested else str(x.layout).removeprefix('torch.')}.")
    if dtypes and x.dtype not in dtypes:
        *others, last = map(dtype_name, dtypes)
        raise TypeError(f"{name} must be {', '.join(others)} or {last}, but it is {dtype_name(x.dtype)}.")


def scale_or_none(scale):
    """None or a number between 1e-30 and 1e30; raises TypeError or ValueError for anything else."""
    if scale is not None:
        number("scale", scale)
        if not 1e-30 <= scale <= 1e30:  # in float32 nothing is lost then
            raise ValueError(f"scale must be positive, between 1e-30 and 1e30, but it is {short(scale)}.")


def layer_tensors(q, k, v):
    """q (B, H, Nq, D), k and v (B, Hkv, Nk, D), H a multiple of Hkv, D <= 256, of one dtype, none of them empty.

    Raises TypeError or ValueError for anything else.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        tensor(name, x)
        if x.dtype not in (*DTYPES, torch.float64):
            raise TypeError(f"{name} must be float32, float16 or bfloat16 (or float64 for the reference), but it is {dtype_name(x.dtype)}.")
        if x.ndim != 4 or 0 in x.shape:
            raise ValueError(f"{name} must have shape (batch, heads, rows, head dimension), none of them 0, but it has {tuple(x.shape)}.")
        if (x.dtype, x.device) != (q.dtype, q.device):
            raise TypeError(f"q, k and v must have one dtype and be on one device, but q is {dtype_name(q.dtype)} on {q.device} and {name} "
                            f"{dtype_name(x.dtype)} on {x.device}.")
    trouble = None
    if k.shape != v.shape:
        trouble = "k and v must have the same shape"
    elif q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        trouble = "q, k and v must have the same batch size and head dimension"
    elif q.shape[1] % k.shape[1]:
        trouble = "the heads of q must be a multiple of those of k and v"
    if trouble:
        raise ValueError(f"{trouble}, but q is {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)}.")
    if q.shape[3] > 256:
        raise ValueError(f"the head dimension must be at most 256, but it is {q.shape[3]}.")


def kernel_inputs(q, k, v, causal=False, scale=None, splits=None):
    """What a kernel can compute: q (B, H, Nq, D), k and v (B, Hkv, Nk, D) as in `layer_tensors`, on its device, and options.

    Raises TypeError or ValueError for anything else.
    """
    tensor("q", q, DTYPES)
    layer_tensors(q, k, v)
    boolean("causal", causal)
    scale_or_none(scale)
    if splits is not None:
        positive_int("splits", splits, most=MOST["splits"])
    for name, x in (("q", q), ("k", k), ("v", v)):
        _readable(name, x)
    if DEVICE == "cpu" and q.dtype == torch.bfloat16:
        raise TypeError("Triton's interpreter cannot multiply bfloat16: without a GPU q must be float32 or float16.")


def matrix(x):
    """x (M, N) that a kernel can read, with 1 to 2**20 columns; raises TypeError or ValueError for anything else."""
    tensor("x", x, DTYPES)
    if x.ndim != 2 or not 1 <= x.shape[1] <= MOST_COLUMNS:
        raise ValueError(f"x must have shape (rows, columns), with 1 to {MOST_COLUMNS} columns, but it has {tuple(x.shape)}.")
    _readable("x", x)


def sequence(x):
    """A tensor x (B, H, N, ...); raises TypeError or ValueError for anything else."""
    tensor("x", x)
    if x.ndim < 3:
        raise ValueError(f"x must have shape (B, H, N, ...), but it has {tuple(x.shape)}.")


def sequence_shards(shards, causal=False):
    """A list of tensors (B, H, N / world, ...) that are alike, N / world even if causal.

    Raises TypeError or ValueError for anything else.
    """
    boolean("causal", causal)
    if not isinstance(shards, list | tuple):
        raise TypeError(f"shards must be a list of tensors, but it is {short(shards)}.")
    if not shards:
        raise ValueError("shards must hold at least one tensor, but it is empty.")
    for i, x in enumerate(shards):
        tensor(f"shard {i}", x)
    _together({f"shard {i}": x for i, x in enumerate(shards)}, dtype_too=True)
    shape = tuple(shards[0].shape)
    if len(shape) < 3 or (causal and shape[2] % 2):
        raise ValueError(f"a shard must have shape (B, H, N / world, ...){', N / world even with a causal mask' if causal else ''}, but it has {shape}.")
    for i, x in enumerate(shards):
        if x.shape != shape:
            raise ValueError(f"shards must have one shape, but shard 0 has {shape} and shard {i} {tuple(x.shape)}.")


def partial_results(a, b):
    """Two pairs (o, lse) of shapes (..., N, D) and (..., N), the same in both; raises TypeError or ValueError for anything else."""
    for name, pair in (("a", a), ("b", b)):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise TypeError(f"{name} must be a pair (o, lse), but it is {short(pair)}.")
        for part, x in zip(("o", "lse"), pair):
            tensor(f"{part} of {name}", x, (*DTYPES, torch.float64))
    _together({"o of a": a[0], "lse of a": a[1], "o of b": b[0], "lse of b": b[1]}, dtype_too=False)
    if not a[0].ndim or not a[0].shape[:-1] == a[1].shape == b[1].shape or a[0].shape != b[0].shape:
        shapes = ", ".join(str(tuple(x.shape)) for x in (*a, *b))
        raise ValueError(f"a and b must be pairs (o, lse) of shapes (..., N, D) and (..., N), the same in both, but they are {shapes}.")


def _together(tensors, dtype_too):
    """A dict of named tensors that are all on one device and, if that matters too, of one dtype."""
    (first, x), *others = tensors.items()
    for name, y in others:
        if y.device != x.device or (dtype_too and y.dtype != x.dtype):
            raise TypeError(f"{first} and {name} must {'have one dtype and ' if dtype_too else ''}be on one device, but they are "
                            f"{dtype_name(x.dtype)} on {x.device} and {dtype_name(y.dtype)} on {y.device}.")


def _readable(name, x):
    """A tensor whose memory a kernel can read; raises ValueError for any other."""
    if x.is_neg():  # a view of the imaginary part of a conjugate, say: torch negates its numbers when it reads them
        raise ValueError(f"{name} must hold its numbers as they are, but torch keeps them negated: pass {name}.resolve_neg().")
    if x.device.type != DEVICE:
        raise ValueError(f"{name} must be on {DEVICE}, where kernels run here, but it is on {x.device.type}.")
