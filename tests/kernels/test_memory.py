"""Tiles of a matrix: loads and stores inside it only, for any strides, at offsets that 32 bits cannot hold."""
import importlib.util

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("there is no Triton on this system", allow_module_level=True)

import numpy as np
import torch
from problems import HUGE, Problem, arrays, bounds, far_apart, solve

from flashedu.kernels import DEVICE  # isort: skip  before Triton
import triton
import triton.language as tl

from flashedu.kernels.memory import load_tile, store_tile


@triton.jit
def copy_kernel(x_ptr, y_ptr, start, n, stride_xn: tl.constexpr, stride_xd: tl.constexpr, stride_yn: tl.constexpr, stride_yd: tl.constexpr,
                D: tl.constexpr, RAGGED: tl.constexpr):
    tile = load_tile(x_ptr, start, n, stride_xn, stride_xd, D, 16, 16, RAGGED)
    store_tile(y_ptr, start, n, stride_yn, stride_yd, tile + 1, D, 16, 16)


@triton.jit
def whole_tile_kernel(x_ptr, y_ptr, n, stride_n: tl.constexpr, stride_d: tl.constexpr, D: tl.constexpr):
    tile = load_tile(x_ptr, 0, n, stride_n, stride_d, D, 16, 16, True)
    store_tile(y_ptr, 0, 16, 16, 1, tile, 16, 16, 16)


def fenced(n, d, value):
    """A matrix (n, d) of a value between NaN."""
    whole = torch.full((n + 40, d + 5), torch.nan, device=DEVICE)
    whole[20 : 20 + n, 2 : 2 + d] = value
    return whole, whole[20 : 20 + n, 2 : 2 + d]


@pytest.mark.parametrize("start, n, d", [(0, 16, 16), (16, 32, 16), (0, 16, 5), (16, 20, 16), (16, 17, 3)])
def test_what_lies_outside_is_neither_read_nor_written(start, n, d):
    _, x = fenced(n, d, 1.0)
    fence, y = fenced(n, d, 0.0)
    copy_kernel[(1,)](x, y, start, n, *x.stride(), *y.stride(), D=d, RAGGED=n % 16 != 0)
    expected = torch.zeros((n, d), device=DEVICE)
    expected[start : start + 16] = 2.0
    assert torch.equal(y, expected)
    assert fence.isnan().sum() == fence.numel() - n * d


@pytest.mark.parametrize("n, d", [(16, 16), (5, 16), (16, 3), (1, 1)])
def test_what_lies_outside_is_0(n, d):
    """Not anything: NaN times the 0 of a masked probability is NaN."""
    _, x = fenced(n, d, 1.0)
    y = torch.full((16, 16), torch.nan, device=DEVICE)
    whole_tile_kernel[(1,)](x, y, n, *x.stride(), D=d)
    assert y.sum() == n * d and (y[:n, :d] == 1).all()


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU tests/gpu/test_large.py does this")
@pytest.mark.parametrize("axis, apart, shape", [
    (0, 2**30 + 8, (3, 2, 1, 5, 6, 8)),  # a stride has 32 bits, and twice that has not
    (1, 2**30 + 8, (1, 3, 3, 5, 6, 8)),
    (2, 2**25 + 8, (1, 2, 1, 70, 66, 8)),  # an offset within a tile of 64 rows has not
    (2, 2**24 + 8, (1, 1, 1, 135, 130, 8)),  # the third tile's has not
    (3, 2**28 + 8, (1, 2, 1, 5, 6, 9)),
], ids=["batch", "heads", "rows", "tiles", "columns"])
def test_offsets_beyond_32_bits(axis, apart, shape, tmp_path):
    """In a file with holes, of which only the pages are there that hold an element. A wrong offset ends the process."""
    def storage(length):
        return torch.from_numpy(np.memmap(tmp_path / "sparse", np.float16, "w+", shape=(length,)))

    problem = Problem(shape, "float16", causal=True)
    near = problem.tensors(DEVICE)
    answer = solve(*far_apart(near, axis, apart, storage), problem)
    assert (tmp_path / "sparse").stat().st_blocks * 512 < 50e6 < 2 * HUGE
    found = {name: bound.ratio(arrays(answer[name])[0]) for name, bound in bounds(*near, problem).items()}
    assert max(found.values()) <= 1, found
