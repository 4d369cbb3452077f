"""Attention as this package and as torch compute it, ready to be timed on a GPU: forward, and backward alone."""
from functools import partial

SIDE = 8192  # of the matrix product that everything is compared with
NAMES = ("flashedu", "fa2", "cudnn", "efficient", "flex", "naive")
RUNGS = ("naive", "version1", "version2", "version3", "fa2", "cudnn")
FLEX_HEAD_DIMS, FLEX_LENGTHS = (64, 128), (4096, 16384)  # each one compiles anew, for seconds


def attentions(n, head_dim, causal):
    """{name: attend(q, k, v)} for every contender that is run at this size; what has to be made beforehand is made here."""
    from torch.nn.attention import SDPBackend

    from flashedu.kernels import flash_attention

    attends = {
        "flashedu": partial(flash_attention, causal=causal, backend="triton"),
        "fa2": partial(by_backend, SDPBackend.FLASH_ATTENTION, causal),
        "cudnn": partial(by_backend, SDPBackend.CUDNN_ATTENTION, causal),
        "efficient": partial(by_backend, SDPBackend.EFFICIENT_ATTENTION, causal),
    }
    if head_dim in FLEX_HEAD_DIMS and n in FLEX_LENGTHS:
        attends["flex"] = flex(n, causal)
    return {**attends, "naive": naive(n, causal)}


def versions(causal):
    """{name: attend(q, k, v)} for the versions that we have on this GPU: the third needs compute capability 9.0."""
    import torch

    from flashedu.kernels import flash_attention
    from flashedu.kernels.version1 import version1_forward

    attends = {
        "version1": lambda q, k, v: version1_forward(q, k, v, causal)[0],
        "version2": partial(flash_attention, causal=causal, backend="triton"),
        "version3": partial(flash_attention, causal=causal, backend="hopper"),
    }
    return {name: attend for name, attend in attends.items() if name != "version3" or torch.cuda.get_device_capability() == (9, 0)}


def rungs(n, causal):
    """{name: attend(q, k, v)} for the RUNGS that can be run on this GPU."""
    from torch.nn.attention import SDPBackend

    return {
        "naive": naive(n, causal),
        **versions(causal),
        "fa2": partial(by_backend, SDPBackend.FLASH_ATTENTION, causal),
        "cudnn": partial(by_backend, SDPBackend.CUDNN_ATTENTION, causal),
    }


def by_backend(backend, causal, q, k, v):
    """torch's fused attention by that backend or not at all."""
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    with sdpa_kernel(backend):
        return scaled_dot_product_attention(q, k, v, is_causal=causal)


def naive(n, causal):
    """Attention as separate operations of torch, with S and P in memory."""
    import torch

    hidden = torch.ones(n, n, dtype=torch.bool, device="cuda").triu(1) if causal else None

    def attend(q, k, v):
        s = (q * q.shape[-1] ** -0.5) @ k.mT  # (B, H, N, N)
        if causal:
            s.masked_fill_(hidden, float("-inf"))
        return torch.softmax(s, -1) @ v

    return attend


def flex(n, causal):
    """FlexAttention, compiled for these very shapes at its first call; a causal block mask skips what is hidden."""
    import torch
    import torch._dynamo
    import torch._functorch.config
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()  # torch.compile gives up on a function that it has compiled for eight shapes
    torch._functorch.config.donated_buffer = False  # or a backward could be run only once
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n, device="cuda") if causal else None
    return partial(torch.compile(flex_attention, dynamic=False), block_mask=mask)


def random_inputs(batch, heads, n, head_dim):
    """q, k, v and do, (batch, heads, n, head_dim), contiguous, bfloat16, normally distributed."""
    import torch

    torch.manual_seed(0)
    return [torch.randn(batch, heads, n, head_dim, device="cuda", dtype=torch.bfloat16) for _ in range(4)]


def backward_alone(attend, leaves, do):
    """A function that runs the backward pass of attend(*leaves) again and again, on one graph."""
    import torch

    o = attend(*leaves)
    do = torch.empty_like(o).copy_(do)  # in memory as this contender lays out o, or some would have to copy it first
    return lambda: torch.autograd.grad(o, leaves, do, retain_graph=True)


def exact(q, k, v, do, causal):
    """o, dq, dk and dv of the first head, by naive attention in float32."""
    import torch

    leaves = [x[0, 0].detach().float().requires_grad_() for x in (q, k, v)]
    s = leaves[0] @ leaves[1].mT * q.shape[-1] ** -0.5
    if causal:
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), float("-inf"))
    o = torch.softmax(s, -1) @ leaves[2]
    return o.detach(), *torch.autograd.grad(o, leaves, do[0, 0].float())


def both_passes(attend, leaves, do):
    """o, dq, dk and dv, by autograd."""
    import torch

    o = attend(*leaves)
    return o.detach(), *torch.autograd.grad(o, leaves, do)


def relative_errors(found, right):
    """||x - x*|| / ||x*|| over the first head: of o, and the largest of dq, dk and dv; `right` is what `exact` returned."""
    errors = [float((x[0, 0].float() - y).norm() / y.norm()) for x, y in zip(found, right)]
    return {"forward": float(f"{errors[0]:.3g}"), "backward": float(f"{max(errors[1:]):.3g}")}


def matmul():
    """The product of two large bfloat16 matrices, ready to run."""
    import torch

    a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return lambda: a @ b


def device_clock(filler=None):
    """A clock for `interleave`, in milliseconds: CUDA events around the calls, which are queued while the device runs `filler` twice.

    Without a filler it runs as many calls beforehand, untimed.
    """
    import torch

    def clock(fn, calls):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for before in [fn] * calls if filler is None else [filler] * 2:
            before()
        start.record()
        for _ in range(calls):
            fn()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) / calls

    return clock
