"""The softmax kernel: exact for every width, any strides, and 0 for a row of -inf."""
import importlib.util

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("there is no Triton on this system", allow_module_level=True)

import torch
from problems import softmax_ratio

from flashedu.kernels import DEVICE
from flashedu.kernels.softmax import triton_softmax


def matrix(m, n, dtype="float32"):
    return (4 * torch.randn((m, n), generator=torch.Generator().manual_seed(n))).to(DEVICE, getattr(torch, dtype))


@pytest.mark.parametrize("n", [1, 2, 15, 17, 63, 65, 127, 129, 1000, 2**16 + 1])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_any_width(dtype, n):
    assert softmax_ratio(matrix(5, n, dtype)) <= 1


@pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter truncates bfloat16 where a GPU rounds")
def test_bfloat16():
    assert softmax_ratio(matrix(5, 300, "bfloat16")) <= 1


def test_the_widest():
    x = torch.zeros((1, 2**20), device=DEVICE)
    assert (triton_softmax(x) == 2.0**-20).all()


REFUSED = {  # (x, exception, what the message says)
    "too wide": (lambda x: x[:1, :1].expand(1, 2**20 + 1), ValueError, "1 to 1048576 columns, but it has (1, 1048577)"),
    "array": (lambda x: x.cpu().numpy(), TypeError, "x must be a torch tensor, but it is of type ndarray"),
    "none": (lambda x: None, TypeError, "of type NoneType"),
    "integers": (lambda x: x.int(), TypeError, "float32, float16 or bfloat16, but it is int32"),
    "float64": (lambda x: x.double(), TypeError, "but it is float64"),
    "a row": (lambda x: x[0], ValueError, "x must have shape (rows, columns)"),
    "a batch": (lambda x: x[None], ValueError, "but it has (1, 3, 4)"),
    "no columns": (lambda x: x[:, :0], ValueError, "but it has (3, 0)"),
    "negated": (lambda x: torch._neg_view(x), ValueError, "x.resolve_neg()"),
    "sparse": (lambda x: x.to_sparse(), TypeError, "x must be a dense tensor, but it is sparse_coo"),
    "elsewhere": (lambda x: x.to("meta"), ValueError, f"x must be on {DEVICE}, where kernels run here, but it is on meta"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what):
    change, error, words = REFUSED[what]
    with pytest.raises(error) as caught:
        triton_softmax(change(matrix(3, 4)))
    message = str(caught.value)
    assert caught.type is error and words in message and message.endswith(".") and "\n" not in message


@pytest.mark.parametrize("x", [[[1e38, 0.0]], [[-1e38, -1e38]], [[100.0, 0.0, -100.0]], [[1.0] * 7]])
def test_large_numbers(x):
    assert softmax_ratio(torch.tensor(x, device=DEVICE)) <= 1


def test_rows_of_minus_infinity_are_0():
    x = matrix(3, 9)
    x[1], x[2, :8] = -torch.inf, -torch.inf
    y = triton_softmax(x)
    assert (y[1] == 0).all() and y[2].tolist() == [0.0] * 8 + [1.0]
    assert softmax_ratio(x) <= 1


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, in the interpreter
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_stays_in_its_row(value):
    x = matrix(3, 9)
    clean = triton_softmax(x)
    x[1, 4] = value
    y = triton_softmax(x)
    assert torch.equal(y[[0, 2]], clean[[0, 2]]) and not y[1].isfinite().all()


@pytest.mark.parametrize("view", [
    lambda x: x.T.contiguous().T, lambda x: torch.full((9, 80), torch.nan, device=DEVICE)[2:7, 3:73].copy_(x), lambda x: torch.full((5, 140), torch.nan, device=DEVICE)[:, ::2].copy_(x),
    lambda x: x[:1].expand(5, 70), lambda x: x[:, :1].expand(5, 70),
], ids=["transposed", "gaps", "every other", "one row", "one column"])
def test_any_strides(view):
    x = view(matrix(5, 70))
    before = x.clone()
    assert softmax_ratio(x) <= 1 and torch.equal(x, before)
