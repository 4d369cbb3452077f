"""Problems for the attention kernels in torch's layout, and how far from exact an answer to one of them is."""
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from flashedu.exactness import SLACK, Bound, attention_bounds, forward_errors, softmax_bound, unit_roundoff
from flashedu.gradient_bounds import gradient_bounds
from flashedu.kernels import DEVICE, backward, flash_attention, forward
from flashedu.kernels.softmax import triton_softmax
from flashedu.kernels.tiles import DKDV, DQ, FORWARD

LONGEST = 1152  # rows of a transposed matrix: a multiple of its row stride would be another program for every length
HUGE = 2**31  # elements: one more than 32 bits can count


@dataclass(frozen=True)
class Problem:
    """One call of `flash_attention`: shape is (batch, heads, kv_heads, n_q, n_k, d). q is multiplied by `magnitude`, `offset`
    is added to k and v."""

    shape: tuple
    dtype: str = "float32"
    causal: bool = False
    layout: str = "plain"
    magnitude: float = 1.0
    offset: float = 0.0
    scale: float | None = None
    seed: int = 0

    def tensors(self, device):
        """q, k, v and do, the gradient of the output."""
        batch, heads, kv_heads, n_q, n_k, d = self.shape
        source = torch.Generator().manual_seed(self.seed)
        numbers = [torch.randn((batch, h, n, d), generator=source) for h, n in ((heads, n_q), (kv_heads, n_k), (kv_heads, n_k), (heads, n_q))]
        moved = [numbers[0] * self.magnitude, numbers[1] + self.offset, numbers[2] + self.offset, numbers[3]]
        q, k, v, do = (laid_out(x.to(getattr(torch, self.dtype)).to(device), self.layout) for x in moved)
        return q, k, v, do[:1, :1, :1, :1].expand(do.shape) if self.layout == "expanded" else do  # as of o.sum().backward()


def laid_out(x, layout):
    """x with other strides; what lies between its elements in memory is NaN. Expanded: its first head stands for all."""
    batch, heads, n, d = x.shape
    if layout == "expanded":
        return x[:, :1].expand(x.shape)
    shapes, views = {
        "plain": ((batch, heads, n, d), lambda s: s),
        "bnhd": ((batch, n, heads, d), lambda s: s.transpose(1, 2)),
        "packed": ((batch, n, 3, heads, d), lambda s: s[:, :, 1].transpose(1, 2)),
        "padded": ((batch, heads, n + 2, d + 8), lambda s: s[:, :, 1:-1, 4:-4]),
        "transposed": ((batch, heads, d, max(n, LONGEST)), lambda s: s[..., :n].transpose(2, 3)),
    }[layout]
    view = views(torch.full(shapes, float("nan"), dtype=x.dtype, device=x.device))
    return view.copy_(x)


def far_apart(tensors, axis, apart, storage):
    """Copies of 4-dimensional tensors, in one piece of memory, whose neighbours along an axis lie `apart` elements apart.

    storage(length) makes the memory, of which hardly anything is touched.
    """
    starts = np.cumsum([0, *(x.numel() // x.shape[axis] for x in tensors)])
    length = (max(x.shape[axis] for x in tensors) - 1) * apart + int(starts[-1])
    assert starts[-1] <= apart and length > HUGE
    memory, copies = storage(length), []
    for x, start in zip(tensors, starts):
        sizes = [1 if i == axis else n for i, n in enumerate(x.shape)]
        strides = [apart if i == axis else math.prod(sizes[i + 1 :]) for i in range(4)]
        copies.append(memory.as_strided(x.shape, strides, int(start)).copy_(x))
    return copies


def solve(q, k, v, do, problem, backend="triton"):
    """{"o", "lse", "dq", "dk", "dv"}: what `flash_attention` and its backward pass make of a problem's tensors."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    o, lse = flash_attention(q, k, v, causal=problem.causal, scale=problem.scale, return_lse=True, backend=backend)
    dq, dk, dv = torch.autograd.grad(o, (q, k, v), do)
    return {"o": o.detach(), "lse": lse.detach(), "dq": dq, "dk": dk, "dv": dv}


def arrays(*tensors):
    """NumPy arrays with the same numbers: NumPy has no bfloat16."""
    return [x.detach().to("cpu", torch.float64 if x.dtype == torch.float64 else torch.float32).numpy() for x in tensors]


def bounds(q, k, v, do, problem):
    """The `Bound` of each of the five results, for the tiles that the kernels take."""
    options = {"causal": problem.causal, "scale": problem.scale, "dtype": problem.dtype}
    o, lse = attention_bounds(*arrays(q, k, v), block_k=forward.pick(FORWARD, q).block_k, **options)
    blocks = {"block_q": backward.pick(DKDV, q).block_q, "block_k": backward.pick(DQ, q).block_k}
    dq, dk, dv = gradient_bounds(*arrays(q, k, v, do), **blocks, **options)
    return {"o": o, "lse": lse, "dq": dq, "dk": dk, "dv": dv}


def ratios(problem, device, backend="triton"):
    """error / bound of each result; at most 1 means that rounding explains every element. Inputs must stay as they are."""
    tensors = problem.tensors(device)
    before = [x.clone() for x in tensors]
    answer = solve(*tensors, problem, backend)
    assert all(torch.equal(x, y) for x, y in zip(tensors, before, strict=True)), "an input was changed"
    for name, like in (("o", 0), ("dq", 0), ("dk", 1), ("dv", 2)):
        assert (answer[name].dtype, answer[name].shape) == (tensors[like].dtype, tensors[like].shape)
    assert answer["lse"].dtype == torch.float32
    return {name: bound.ratio(arrays(answer[name])[0]) for name, bound in bounds(*tensors, problem).items()}


def forward_ratio(forward, problem, device, block_k):
    """The larger error / bound of o and lse as forward(q, k, v, causal, scale) gives them, with tiles of block_k keys."""
    q, k, v, _ = problem.tensors(device)
    before = [x.clone() for x in (q, k, v)]
    o, lse = forward(q, k, v, problem.causal, problem.scale)
    assert all(torch.equal(x, y) for x, y in zip((q, k, v), before)), "an input was changed"
    assert (o.dtype, o.shape, lse.dtype, lse.shape) == (q.dtype, q.shape, torch.float32, q.shape[:3])
    bounds = attention_bounds(*arrays(q, k, v), problem.causal, problem.scale, block_k, problem.dtype)
    return max(bound.ratio(arrays(x)[0]) for bound, x in zip(bounds, (o, lse), strict=True))


def lse_gradient_bounds(q, k, dlse, causal=False, scale=None, dtype=None):
    """Bounds for what dlse (Nq,), the gradient of lse, adds to dq and dk of one head.

    With d lse / d S = P it adds P * dlse to dS, so these are the terms of `flashedu.gradient_bounds` in which P stands
    alone: its error eps, the cast, a product and a difference, and the sums.
    """
    f = forward_errors(q, k, k, causal, scale, dtype=dtype)
    r, scale = f.rounding, q.shape[1] ** -0.5 if scale is None else scale
    eps = f.delta + f.lse_error + r.u * (abs(f.m) + np.where(np.isfinite(f.lse), abs(f.lse), 0) + 8)
    ds = f.p * dlse[:, None]
    result = []
    for x, d, e in ((k, ds, eps[:, None]), (q, ds.T, eps[None, :])):
        error = (e + 4 * r.u + r.u_p + r.u * (2 * d.shape[1] ** 0.5 + 10)) * abs(d) + r.lost
        exact = scale * d @ x
        result.append(Bound(exact, SLACK * (scale * error @ abs(x) + r.u_o * abs(exact) + r.lost)))
    return tuple(result)


def softmax_ratio(x):
    """error / bound of `triton_softmax`, whose result is rounded once more if it has 16 bits."""
    y, (exact,) = triton_softmax(x), arrays(x)
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    bound = softmax_bound(exact)
    if x.dtype != torch.float32:
        u, least = unit_roundoff(x.dtype), torch.finfo(x.dtype).tiny * torch.finfo(x.dtype).eps  # a subnormal number
        bound = Bound(bound.exact, bound.bound + u * (bound.exact + bound.bound) + least)
    return bound.ratio(arrays(y)[0])


REFUSED = {  # what is made of the q, k, v and options of a good call of a launcher: (change, exception, what the message says)
    "arrays": (lambda q, k, v: dict(q=q.cpu().numpy()), TypeError, "q must be a torch tensor, but it is of type ndarray"),
    "none": (lambda q, k, v: dict(v=None), TypeError, "v must be a torch tensor, but it is of type NoneType"),
    "unknown name": (lambda q, k, v: dict(w=v), TypeError, "was called wrongly: got an unexpected keyword argument 'w'"),
    "axes": (lambda q, k, v: dict(q=q[0]), ValueError, "q must have shape (batch, heads, rows, head dimension), none of them 0, but it has (4, 3, 8)"),
    "no keys": (lambda q, k, v: dict(k=k[:, :, :0], v=v[:, :, :0]), ValueError, "but it has (1, 2, 0, 8)"),
    "width": (lambda q, k, v: dict(k=k[..., 1:], v=v[..., 1:]), ValueError, "the same batch size and head dimension"),
    "k unlike v": (lambda q, k, v: dict(v=v[:, :, 1:]), ValueError, "k and v must have the same shape"),
    "groups": (lambda q, k, v: dict(q=q[:, :3]), ValueError, "the heads of q must be a multiple of those of k and v"),
    "fewer heads": (lambda q, k, v: dict(q=q[:, :1]), ValueError, "the heads of q must be a multiple of those of k and v"),
    "wide": (lambda q, k, v: {name: x.repeat(1, 1, 1, 33) for name, x in dict(q=q, k=k, v=v).items()}, ValueError, "at most 256, but it is 264"),
    "two dtypes": (lambda q, k, v: dict(k=k.half()), TypeError, "must have one dtype"),
    "float64": (lambda q, k, v: dict(q=q.double(), k=k.double(), v=v.double()), TypeError, "float32, float16 or bfloat16, but it is float64"),
    "integers": (lambda q, k, v: dict(q=q.int(), k=k.int(), v=v.int()), TypeError, "float32, float16 or bfloat16, but it is int32"),
    "elsewhere": (lambda q, k, v: {name: x.to("meta") for name, x in dict(q=q, k=k, v=v).items()}, ValueError, "q must be on "),
    "negated": (lambda q, k, v: dict(k=torch._neg_view(k)), ValueError, "k must hold its numbers as they are"),
    "sparse": (lambda q, k, v: dict(v=v.to_sparse()), TypeError, "v must be a dense tensor, but it is sparse_coo"),
    "causal": (lambda q, k, v: dict(causal="yes"), TypeError, "causal must be True or False, but it is 'yes'"),
    "scale": (lambda q, k, v: dict(scale="x"), TypeError, "scale must be a number, but it is 'x'"),
    "scale nan": (lambda q, k, v: dict(scale=float("nan")), ValueError, "scale must be a finite number of at least 0, but it is nan"),
    "scale 0": (lambda q, k, v: dict(scale=0), ValueError, "scale must be positive"),
}


def refused(launcher, what):
    """Assert that a launcher says one sentence about a call of REFUSED, and that it takes the call before the change."""
    change, error, words = REFUSED[what]
    good = dict(zip("qkv", Problem((1, 4, 2, 3, 5, 8)).tensors(DEVICE)))
    launcher(**good)
    with pytest.raises(error) as caught:
        launcher(**{**good, **change(**good)})
    message = str(caught.value)
    assert caught.type is error and words in message and message.endswith(".") and "\n" not in message
