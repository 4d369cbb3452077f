"""On a Hopper GPU: attention on fp8 numbers is as near as their rounding lets it be, and nearer with the rotation."""
import importlib.util

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("there is no Triton on this system", allow_module_level=True)

import numpy as np
import torch
from measure_fp8 import ERROR_LENGTH, ERROR_ROWS, K_ROWS, Q_ROWS, SEEDS, fp8_inputs

from flashedu.kernels import DEVICE
from flashedu.kernels.fp8 import quantized
from flashedu.reference import naive_attention
from flashedu.reference.quantize import fp8_attention, outlier_inputs, rotate

ADDED = 2**-12  # of the terms of a product: the matrix unit adds those of 8-bit numbers with about 14 bits (DeepSeek-AI 2024, DeepSeek-V3)
SHAPES = [(2, 4, 2, 256, 256), (1, 4, 1, 300, 700), (1, 4, 2, 700, 300), (1, 2, 2, 1, 1000), (1, 2, 1, 1000, 1)]


@pytest.fixture(autouse=True)
def hopper(gpu):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")


def run(q, k, v, causal, whole=False):
    """o and lse by the kernel, from float32 tensors that it rounds to e4m3; one scale a tensor if `whole`."""
    from flashedu.kernels.hopper_fp8 import hopper_fp8_forward

    q8, k8, _, q_scale, k_scale, v_scale = inputs = fp8_inputs(q, k, v, whole)
    o, lse = hopper_fp8_forward(*inputs, causal, dtype=torch.float16)
    of_rows = [scale.repeat_interleave(rows, 2)[:, :, : x.shape[2], None] for x, scale, rows in ((q8, q_scale, Q_ROWS), (k8, k_scale, K_ROWS))]
    v8, _ = quantized(v, v.shape[2])
    values = [x.double() * scale for x, scale in zip((q8, k8, v8), (*of_rows, v_scale[..., None, None]))]
    return o.double(), lse.double(), values


def attention(q, k, v, causal):
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    s = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        n_q, n_k = s.shape[-2:]
        s = s.masked_fill(torch.ones(n_q, n_k, dtype=torch.bool, device=s.device).triu(n_k - n_q + 1), float("-inf"))
    return torch.softmax(s, -1).nan_to_num(0) @ v, torch.logsumexp(s, -1)


def normal(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_only_p_is_rounded(shape, causal):
    """Against float64 on the same e4m3 numbers: P has 4 significant bits, so each weight is off by at most 1/16 of itself."""
    batch, heads, kv_heads, n_q, n_k = shape
    q, k, v = (normal(batch, h, n, 128, seed=i) for i, (h, n) in enumerate(((heads, n_q), (kv_heads, n_k), (kv_heads, n_k))))
    o, lse, (q, k, v) = run(q, k, v, causal)
    exact, exact_lse = attention(q, k, v, causal)
    weighted, _ = attention(q, k, v.abs(), causal)
    terms = (q.abs() @ k.abs().repeat_interleave(heads // kv_heads, 1).mT).amax(-1) * 128**-0.5
    s_error = ADDED * terms  # of every score
    p_error = 1 / 16 + 2 * s_error[..., None] + 2**-11  # rounded to e4m3; both its exp and the sum from other scores; o rounded to float16
    lost = 2**-18 * v.abs().sum(2, keepdim=True).repeat_interleave(heads // kv_heads, 1)  # weights below 2**-14, of which the largest is 1
    assert ((o - exact).abs() <= p_error * weighted + lost).all()
    seen = exact_lse.isfinite()
    assert torch.equal(lse.isfinite(), seen) and ((lse - exact_lse).abs() <= s_error + 2**-20 * (1 + exact_lse.abs()))[seen].all()


@pytest.mark.parametrize("causal", [False, True])
def test_integers_exactly(causal):
    n = 512
    v = torch.randint(-8, 9, (1, 2, n, 128), generator=torch.Generator().manual_seed(0)).to(DEVICE).float()
    v[:, :, 0] = 7.0  # every head's scale is 7 / 448 or 8 / 448, as its largest says
    zeros = torch.zeros_like(v)
    o, _, values = run(zeros, zeros, v, causal)
    sums = values[2].cumsum(2) if causal else values[2].sum(2, keepdim=True).expand(v.shape)
    seen = torch.arange(1, n + 1, device=DEVICE) if causal else torch.full((n,), n, device=DEVICE)
    powers = (seen & (seen - 1)) == 0
    assert torch.allclose(o[:, :, powers], (sums / seen[:, None])[:, :, powers], rtol=2**-10, atol=1e-6)


def test_the_same_bits():
    q, k, v = (normal(1, 8, 1999, 128, seed=i) for i in range(3))
    first = run(q, k, v, True)[:2]
    for repeat in range(1, 100):
        assert all(map(torch.equal, first, run(q, k, v, True)[:2])), f"run {repeat}"


def test_outliers_and_the_rotation(record_property):
    """The experiment of Shah et al. 2024, table 3, on the GPU and in NumPy: the rotation is what helps."""
    draws = [outlier_inputs(ERROR_ROWS, ERROR_LENGTH, 128, seed) for seed in range(SEEDS)]
    exact = np.stack([naive_attention(*(x.astype(np.float64) for x in draw)) for draw in draws])
    errors = {}
    for name, turned, whole in (("plain", False, True), ("blocks", False, False), ("rotated", True, False)):
        rotated = [(*rotate(q, k, 1), v) if turned else (q, k, v) for q, k, v in draws]
        q, k, v = (torch.from_numpy(np.stack(x))[None].to(DEVICE) for x in zip(*rotated))
        o = run(q, k, v, False, whole)[0][0].cpu().numpy()
        numpy = np.stack([fp8_attention(*draw, *((ERROR_ROWS, ERROR_LENGTH) if whole else (Q_ROWS, K_ROWS))) for draw in rotated])
        errors[name], reference = (float(np.sqrt(((x - exact) ** 2).mean())) for x in (o, numpy))
        assert errors[name] < 1.5 * reference
    record_property("rmse", errors)
    print(errors)
    assert errors["rotated"] <= 1e-2 and errors["plain"] > 2 * errors["rotated"]
