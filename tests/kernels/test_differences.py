"""The gradients of the kernels against finite differences of the float64 reference, along random directions uphill."""
import importlib.util

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("there is no Triton on this system", allow_module_level=True)

import numpy as np
import torch
from problems import Problem, arrays, lse_gradient_bounds

from flashedu.gradient_bounds import gradient_bounds
from flashedu.kernels import DEVICE, flash_attention

STEP = 1e-3


def loss(q, k, v, do, dlse, causal, scale, **backend):
    o, lse = flash_attention(q, k, v, causal=causal, scale=scale, return_lse=True, **backend)
    return (o * do).sum() + torch.where(lse.isfinite(), lse * dlse, 0.0).sum()


@pytest.mark.parametrize("scale", [None, 0.4])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [(20, 17), (17, 40)])
def test_gradients_are_slopes(lengths, causal, scale):
    """The rounding bound says how far off a gradient may be; two step sizes say how far off the slope is."""
    q, k, v, do = Problem((1, 1, 1, *lengths, 8)).tensors("cpu")
    dlse = torch.randn(q.shape[:3], generator=torch.Generator().manual_seed(1))
    inputs = [x.to(DEVICE).requires_grad_() for x in (q, k, v)]
    value = loss(*inputs, do.to(DEVICE), dlse.to(DEVICE), causal, scale, backend="triton")
    gradients = [x.cpu().double() for x in torch.autograd.grad(value, inputs)]
    one = [x[0, 0] for x in arrays(q, k, v, do, dlse)]
    by_o = gradient_bounds(*one[:4], causal, scale)
    by_lse = (*lse_gradient_bounds(one[0], one[1], one[4], causal, scale), None)
    for i, (gradient, *bounds) in enumerate(zip(gradients, by_o, by_lse, strict=True)):
        allowed = sum(bound.bound for bound in bounds if bound is not None)
        direction = gradient.sign() * torch.rand(gradient.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2 + i))

        def at(t, i=i, direction=direction):
            moved = [x.detach().double() + (t * direction if j == i else 0) for j, x in enumerate((q, k, v))]
            return loss(*moved, do.double(), dlse.double(), causal, scale, backend="reference").item()

        coarse, fine = ((at(t) - at(-t)) / (2 * t) for t in (STEP, STEP / 2))
        slope = float((gradient * direction).sum())
        tolerance = float((allowed * np.abs(direction.numpy()[0, 0])).sum()) + abs(fine - coarse)
        print(f"{'qkv'[i]}: {slope:.6f}, off by {abs(slope - fine):.2g} of {tolerance:.2g}")
        assert abs(slope - fine) <= tolerance
        assert tolerance < 0.01 * abs(slope), "this test could not fail"
