"""`flash_attention`: one differentiable function over the kernels and, where they do not run, the NumPy reference."""
import torch

from flashedu.arguments import boolean, dtype_name, short
from flashedu.kernels.device import DEVICE
from flashedu.kernels.inputs import DTYPES, layer_tensors, scale_or_none

BACKENDS = ("auto", "triton", "hopper", "reference")


class FlashAttention(torch.autograd.Function):
    """Attention whose backward recomputes P: what is kept between the passes is q, k, v, o and lse, no (Nq, Nk) matrix."""

    @staticmethod
    def forward(ctx, q, k, v, causal, scale, passes):
        forward, ctx.backward_pass = passes
        o, lse = forward(q, k, v, causal, scale)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.causal, ctx.scale = causal, scale
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx, do, dlse):
        if torch.is_grad_enabled():  # by create_graph=True
            raise RuntimeError("flash_attention has no second derivative: leave out create_graph=True.")
        q, k, v, o, lse = ctx.saved_tensors
        do = torch.zeros_like(o) if do is None else do.resolve_neg()  # None: only lse was used
        dlse = None if dlse is None else dlse.resolve_neg()
        return *ctx.backward_pass(q, k, v, o, lse, do, ctx.causal, ctx.scale, dlse), None, None, None


def flash_attention(q, k, v, *, causal=False, scale=None, return_lse=False, backend="auto"):
    """softmax(scale q k^T) v without the matrix of scores, forward and backward.

    Takes q (B, H, Nq, D), k and v (B, Hkv, Nk, D) with H a multiple of Hkv (query head h reads key
    head h // (H / Hkv)), any Nq, Nk >= 1, D <= 256, any strides, all float32, float16 or bfloat16;
    scale is 1/sqrt(D) unless given. With causal=True query i sees key j when j <= i + Nk - Nq; a row
    that sees no key gives 0 and has gradient 0. Sums are float32 whatever the inputs; float32
    is multiplied as float32 unless torch.set_float32_matmul_precision allows TF32. Gradients are the same
    bits in every run. In the kernels NaN and inf stay in their head and, forward, in their row of
    queries; in v they also reach the rows of the tile that the diagonal crosses, as 0 * NaN does in
    naive attention. The reference refuses them.

    backend: "triton" runs the Triton kernels, on a GPU or in Triton's interpreter; "hopper" the Gluon
    kernel forward, and the same kernels backward, on a GPU of compute capability 9.0, for 16 bits, D of
    64, 128 or 256 and rows that TMA can load; "reference" the NumPy functions, also for float64; "auto"
    the first of hopper and triton that can on a GPU, and the reference elsewhere, which is faster than
    the interpreter. (The interpreter cannot multiply bfloat16: it is widened there.)

    Returns o like q or, with return_lse=True, (o, lse), lse (B, H, Nq) the natural log of each row's
    sum of exp(scores), float32 (float64 for float64), differentiable too. Raises TypeError or
    ValueError with one sentence for anything else, and RuntimeError when a second derivative is
    asked for. Source: Dao et al. 2022 and Dao 2023.
    """
    boolean("causal", causal)
    boolean("return_lse", return_lse)
    scale, passes = prepare(q, k, v, scale, backend)
    q, k, v = (x.resolve_neg() for x in (q, k, v))  # torch may have put off a change of sign; a kernel would not see it
    o, lse = FlashAttention.apply(q, k, v, bool(causal), scale, passes)
    return (o, lse) if return_lse else o


def prepare(q, k, v, scale=None, backend="auto"):
    """What `flash_attention` computes these tensors with: the scale, and the pair of a forward and a backward pass.

    The passes are forward(q, k, v, causal, scale) and backward(q, k, v, o, lse, do, causal, scale, dlse, wide), as
    `flashedu.kernels.forward.flash_forward` and `flashedu.kernels.backward.flash_backward`. Raises what `flash_attention`
    raises for tensors, scale and backend.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, but it is {short(backend)}.")
    layer_tensors(q, k, v)
    scale_or_none(scale)
    if backend == "auto":
        on_gpu = q.device.type == DEVICE == "cuda" and q.dtype in DTYPES
        backend = "reference" if not on_gpu else "triton" if _hopper_refusal(q, k, v) else "hopper"
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    return scale, {"triton": _kernels, "hopper": _hopper, "reference": _reference}[backend](q, k, v)


def _kernels(q, k, v):
    """The two passes of the Triton kernels, or an error that says why they cannot run."""
    if DEVICE is None:
        raise ValueError('backend "triton" needs Triton, which is not installed here; "reference" works without it.')
    if q.device.type != DEVICE:
        raise ValueError(f'backend "triton" needs tensors on {DEVICE} here, but q is on {q.device.type}.')
    if q.dtype not in DTYPES:
        raise TypeError(f'backend "triton" takes float32, float16 and bfloat16, but q is {dtype_name(q.dtype)}.')
    if q.dtype == torch.bfloat16 and DEVICE == "cuda" and torch.cuda.get_device_capability(q.device) < (8, 0):
        raise TypeError("bfloat16 needs a GPU of compute capability 8.0 or later; use float16 or float32 on this one.")
    from flashedu.kernels.backward import flash_backward
    from flashedu.kernels.forward import flash_forward

    return (_widened(flash_forward), _widened(flash_backward)) if DEVICE == "cpu" else (flash_forward, flash_backward)


def _widened(kernels):
    """In the interpreter bfloat16 is computed in float32, and the results are rounded."""
    def run(q, k, v, *rest):
        if q.dtype != torch.bfloat16:
            return kernels(q, k, v, *rest)
        results = kernels(*(x.float() if isinstance(x, torch.Tensor) else x for x in (q, k, v, *rest)))
        return tuple(x.to(q.dtype) if x.ndim == 4 else x for x in results)  # lse stays float32

    return run


def _hopper_refusal(q, k, v):
    """Why the Hopper kernel cannot compute this, as the end of a sentence; None if it can."""
    if DEVICE != "cuda" or q.device.type != "cuda" or torch.cuda.get_device_capability(q.device) != (9, 0):
        return "needs a GPU of compute capability 9.0 (Hopper) and tensors on it"
    from flashedu.kernels.hopper_launch import refusal

    return refusal(q, k, v)


def _hopper(q, k, v):
    trouble = _hopper_refusal(q, k, v)
    if trouble:
        raise ValueError(f'backend "hopper" {trouble}; "triton" takes what it refuses.')
    from flashedu.kernels.backward import flash_backward
    from flashedu.kernels.hopper_launch import hopper_forward

    return hopper_forward, flash_backward


def _reference(q, k, v):
    if q.is_meta:
        raise ValueError('backend "reference" needs tensors that hold numbers, but q is on meta.')
    from flashedu.kernels.numpy_passes import backward, forward

    return forward, backward
