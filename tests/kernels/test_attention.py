"""`flash_attention`: what it takes and refuses, what it keeps between its passes, and its two backends."""
import importlib.util

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("there is no Triton on this system", allow_module_level=True)

import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from problems import Problem, arrays, ratios, solve

from flashedu.exactness import attention_bounds
from flashedu.kernels import DEVICE, flash_attention, numpy_passes
from flashedu.reference import attention_backward, naive_attention

ROOT = Path(__file__).parents[2]
TOY = Problem((2, 2, 1, 6, 9, 8))


def tensors(*shapes, dtype=torch.float32, device=DEVICE):
    return [torch.randn(shape, generator=torch.Generator().manual_seed(i)).to(device, dtype) for i, shape in enumerate(shapes)]


# ---- exact, whatever the inputs

@pytest.mark.parametrize("backend", ["triton", "reference"])
@pytest.mark.parametrize("layout", ["plain", "bnhd", "packed", "padded", "transposed", "expanded"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_any_strides_and_dtype(dtype, layout, backend):
    problem = Problem((2, 2, 1, 17, 20, 16), dtype, causal=True, layout=layout, scale=0.3)
    assert max(ratios(problem, DEVICE, backend).values()) <= 1


def test_a_packed_projection():
    """qkv (B, N, 3, H, D) as one tensor, and the gradient that arrives there."""
    (qkv,) = tensors((2, 19, 3, 2, 8))
    qkv.requires_grad_()
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    o = flash_attention(q, k, v, causal=True, backend="triton")
    do = torch.randn(o.shape, generator=torch.Generator().manual_seed(5)).to(DEVICE)
    (dqkv,) = torch.autograd.grad(o, qkv, do)
    by_tensor = solve(*(x.detach() for x in (q, k, v)), do, Problem((), causal=True))
    for i, name in enumerate(("dq", "dk", "dv")):
        assert torch.equal(dqkv[:, :, i].transpose(1, 2), by_tensor[name])


def test_causal_is_bottom_right():
    """Query i sees key j when j <= i + Nk - Nq."""
    q, k, v = tensors((1, 1, 3, 8), (1, 1, 5, 8), (1, 1, 5, 8))
    whole = flash_attention(q, k, v, causal=True, backend="triton")
    for i, seen in enumerate((3, 4, 5)):
        row = flash_attention(q[:, :, i : i + 1], k[:, :, :seen], v[:, :, :seen], backend="triton")
        torch.testing.assert_close(whole[:, :, i : i + 1], row, rtol=1e-6, atol=1e-7)


def test_return_lse():
    q, k, v, _ = TOY.tensors(DEVICE)
    o, lse = flash_attention(q, k, v, return_lse=True, backend="triton")
    assert torch.equal(o, flash_attention(q, k, v, return_lse=False, backend="triton"))
    assert lse.shape == (2, 2, 6) and attention_bounds(*arrays(q, k, v))[1].ratio(arrays(lse)[0]) <= 1


@pytest.mark.parametrize("backend", ["triton", "reference"])
def test_gradients_of_both_outputs_add_up(backend):
    q, k, v = (x.requires_grad_() for x in TOY.tensors(DEVICE)[:3])
    parts = []
    for part in ("o", "lse", "both"):
        o, lse = flash_attention(q, k, v, return_lse=True, backend=backend)
        value = {"o": o.square().sum(), "lse": lse.sin().sum(), "both": o.square().sum() + lse.sin().sum()}[part]
        parts.append(torch.autograd.grad(value, (q, k, v)))
    for by_o, by_lse, both in zip(*parts, strict=True):
        torch.testing.assert_close(by_o + by_lse, both, rtol=1e-5, atol=1e-6)
    assert (parts[1][2] == 0).all() and parts[1][0].abs().max() > 0.01


# ---- the reference backend

@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_q, n_k, with_lse", [(3, 5, True), (5, 3, False), (4, 4, True)])
def test_gradcheck_in_float64(n_q, n_k, with_lse, causal):
    inputs = [x.requires_grad_() for x in tensors((1, 4, n_q, 3), (1, 2, n_k, 3), (1, 2, n_k, 3), dtype=torch.float64, device="cpu")]
    call = lambda q, k, v: flash_attention(q, k, v, causal=causal, scale=0.7, return_lse=with_lse, backend="reference")  # noqa: E731
    assert torch.autograd.gradcheck(call, inputs)


@pytest.mark.parametrize("causal", [False, True])
def test_the_reference_is_that_of_the_package(causal):
    """float64, head by head, against the functions that materialise P."""
    q, k, v, do = tensors((2, 4, 7, 5), (2, 2, 6, 5), (2, 2, 6, 5), (2, 4, 7, 5), dtype=torch.float64, device="cpu")
    answer = solve(q, k, v, do, Problem((), causal=causal), "reference")
    assert all(x.dtype == torch.float64 for x in answer.values())
    dk, dv = np.zeros(k.shape), np.zeros(v.shape)
    for b, h in np.ndindex(2, 4):
        one = [x.numpy() for x in (q[b, h], k[b, h // 2], v[b, h // 2])]
        np.testing.assert_allclose(answer["o"][b, h], naive_attention(*one, causal), rtol=1e-12, atol=1e-14)
        dq, dk_part, dv_part = attention_backward(*one, do[b, h].numpy(), causal)
        np.testing.assert_allclose(answer["dq"][b, h], dq, rtol=1e-11, atol=1e-13)
        dk[b, h // 2] += dk_part
        dv[b, h // 2] += dv_part
    np.testing.assert_allclose(answer["dk"], dk, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(answer["dv"], dv, rtol=1e-11, atol=1e-13)


def test_auto_is_the_reference_on_the_cpu(monkeypatch):
    calls = []
    monkeypatch.setattr(numpy_passes, "forward", lambda *inputs, real=numpy_passes.forward: calls.append(inputs) or real(*inputs))
    q, k, v = tensors((1, 1, 4, 8), (1, 1, 4, 8), (1, 1, 4, 8), device="cpu")
    o = flash_attention(q, k, v)
    assert len(calls) == 1
    assert torch.equal(o, flash_attention(q, k, v, backend="reference")) and len(calls) == 2
    if DEVICE == "cpu":
        flash_attention(q, k, v, backend="triton")
        assert len(calls) == 2


# ---- autograd

@pytest.mark.parametrize("backend", ["triton", "reference"])
def test_what_is_kept_for_the_backward_pass(backend):
    """q, k, v, o and lse: nothing with Nq x Nk elements."""
    q, k, v = (x.requires_grad_() for x in TOY.tensors(DEVICE)[:3])
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        o, lse = flash_attention(q, k, v, return_lse=True, backend=backend)
    assert len(kept) == 5 and all(torch.equal(x, y) for x, y in zip(kept, (q, k, v, o, lse), strict=True))


def test_gradients_only_where_they_are_asked_for():
    q, k, v, do = TOY.tensors(DEVICE)
    o = flash_attention(q, k.requires_grad_(), v, backend="triton")
    (dk,) = torch.autograd.grad(o, k, do)
    assert torch.equal(dk, solve(q, k, v, do, TOY)["dk"])
    assert not flash_attention(q, k.detach(), v, backend="triton").requires_grad


@pytest.mark.parametrize("backend", ["triton", "reference"])
def test_a_second_derivative_is_refused(backend):
    q, k, v = (x.requires_grad_() for x in TOY.tensors(DEVICE)[:3])
    for loss in (flash_attention(q, k, v, backend=backend).sum(), flash_attention(q, k, v, backend=backend).square().sum()):
        with pytest.raises(RuntimeError, match="no second derivative"):
            torch.autograd.grad(loss, q, create_graph=True)


@pytest.mark.parametrize("backend", ["triton", "reference"])
def test_a_change_of_sign_that_torch_has_put_off(backend):
    q, k, v, do = TOY.tensors(DEVICE)
    late = [torch._neg_view(-x) for x in (q, k, v, do)]
    assert all(x.is_neg() for x in late)
    assert all(torch.equal(x, y) for x, y in zip(solve(*late, TOY, backend).values(), solve(q, k, v, do, TOY, backend).values(), strict=True))
    _, lse = flash_attention(q.requires_grad_(), k, v, return_lse=True, backend=backend)
    (dq,), (late_dq,) = (torch.autograd.grad(lse, q, dlse, retain_graph=True) for dlse in (lse.detach(), torch._neg_view(-lse.detach())))
    assert torch.equal(dq, late_dq)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_the_reference_refuses_what_it_would_lose(bad):
    q, k, v, _ = TOY.tensors(DEVICE)
    k[0, 0, 1, 2] = bad
    with pytest.raises(ValueError, match="k must not hold NaN or inf"):
        flash_attention(q, k, v, backend="reference")


# ---- refusals: one sentence, with what was given

Q, K = (1, 4, 3, 8), (1, 2, 5, 8)
REFUSED = {
    "causal": (lambda q, k, v: flash_attention(q, k, v, causal=1), TypeError, "causal", "1"),
    "return_lse": (lambda q, k, v: flash_attention(q, k, v, return_lse="yes"), TypeError, "return_lse", "'yes'"),
    "backend": (lambda q, k, v: flash_attention(q, k, v, backend="cuda"), ValueError, "auto, triton, hopper, reference", "'cuda'"),
    "array": (lambda q, k, v: flash_attention(q.cpu().numpy(), k, v), TypeError, "q must be a torch tensor", "ndarray"),
    "integers": (lambda q, k, v: flash_attention(q, k.int(), v), TypeError, "k must be float32, float16 or bfloat16", "int32"),
    "axes": (lambda q, k, v: flash_attention(q, k, v[0]), ValueError, "v must have shape (batch, heads, rows, head dimension)", "(2, 5, 8)"),
    "empty": (lambda q, k, v: flash_attention(q[:, :, :0], k, v), ValueError, "none of them 0", "(1, 4, 0, 8)"),
    "two dtypes": (lambda q, k, v: flash_attention(q, k, v.half()), TypeError, "one dtype", "float16"),
    "two devices": (lambda q, k, v: flash_attention(q, k.to("meta"), v), TypeError, "one device", "meta"),
    "k unlike v": (lambda q, k, v: flash_attention(q, k, v[:, :, 1:]), ValueError, "k and v must have the same shape", "(1, 2, 4, 8)"),
    "batch": (lambda q, k, v: flash_attention(torch.cat([q, q]), k, v), ValueError, "the same batch size", "(2, 4, 3, 8)"),
    "width": (lambda q, k, v: flash_attention(q[..., 1:], k, v), ValueError, "head dimension", "(1, 4, 3, 7)"),
    "groups": (lambda q, k, v: flash_attention(q[:, 1:], k, v), ValueError, "a multiple of those of k and v", "(1, 3, 3, 8)"),
    "wide": (lambda q, k, v: flash_attention(*(x.repeat(1, 1, 1, 33) for x in (q, k, v))), ValueError, "at most 256", "264"),
    "scale 0": (lambda q, k, v: flash_attention(q, k, v, scale=0), ValueError, "positive, between", "0"),
    "scale -1": (lambda q, k, v: flash_attention(q, k, v, scale=-1.0), ValueError, "a finite number", "-1.0"),
    "scale nan": (lambda q, k, v: flash_attention(q, k, v, scale=float("nan")), ValueError, "a finite number", "nan"),
    "scale True": (lambda q, k, v: flash_attention(q, k, v, scale=True), TypeError, "scale must be a number", "True"),
    "scale text": (lambda q, k, v: flash_attention(q, k, v, scale="1"), TypeError, "scale must be a number", "'1'"),
    "scale too small": (lambda q, k, v: flash_attention(q, k, v, scale=1e-40), ValueError, "positive, between", "1e-40"),
    "scale too large": (lambda q, k, v: flash_attention(q, k, v, scale=1e40), ValueError, "positive, between", "1e+40"),
    "scale beyond float64": (lambda q, k, v: flash_attention(q, k, v, scale=10**400), ValueError, "a finite number of at least 0", "000"),
    "float64": (lambda q, k, v: flash_attention(q.double(), k.double(), v.double(), backend="triton"), TypeError, "float32, float16 and bfloat16", "float64"),
    "elsewhere": (lambda q, k, v: flash_attention(*(x.to("meta") for x in (q, k, v)), backend="triton"), ValueError, f"needs tensors on {DEVICE}", "meta"),
    "nowhere": (lambda q, k, v: flash_attention(*(x.to("meta") for x in (q, k, v))), ValueError, "needs tensors that hold numbers", "meta"),
    "nowhere, reference": (lambda q, k, v: flash_attention(*(x.to("meta") for x in (q, k, v)), backend="reference"), ValueError, "hold numbers", "meta"),
    "sparse": (lambda q, k, v: flash_attention(q, k, v.to_sparse()), TypeError, "v must be a dense tensor", "sparse_coo"),
    "sparse, triton": (lambda q, k, v: flash_attention(*(x.to_sparse() for x in (q, k, v)), backend="triton"), TypeError, "q must be a dense tensor", "sparse_coo"),
    "nested": (lambda q, k, v: flash_attention(q, torch.nested.nested_tensor([k[0]], layout=torch.jagged), v), TypeError, "k must be a dense tensor", "nested"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what):
    call, error, wanted, given = REFUSED[what]
    with pytest.raises(error) as caught:
        call(*tensors(Q, K, K))
    message = str(caught.value)
    assert wanted in message and given in message
    assert message.endswith(".") and "\n" not in message


def test_without_triton():
    """The reference works, and the kernels are refused with one sentence."""
    code = """
import sys
sys.modules["triton"] = None  # as if it were not installed
import torch
from flashedu.kernels import DEVICE, flash_attention
assert DEVICE is None
q = torch.ones((1, 1, 2, 4), requires_grad=True)
for backend in ("auto", "reference"):
    flash_attention(q, q, q, backend=backend).sum().backward()
try:
    flash_attention(q, q, q, backend="triton")
except ValueError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    assert run.stdout == 'backend "triton" needs Triton, which is not installed here; "reference" works without it.\n'
