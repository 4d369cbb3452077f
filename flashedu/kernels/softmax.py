"""Softmax over the rows of a matrix: one program a row, which it holds whole."""
import torch
import triton
import triton.language as tl

from flashedu.kernels.inputs import checked, matrix


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n, stride_xm, stride_xn, stride_ym, stride_yn, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)  # 64 bits: row * stride may exceed 2**31
    columns = tl.arange(0, BLOCK_N).to(tl.int64)
    inside = columns < n
    x = tl.load(x_ptr + row * stride_xm + columns * stride_xn, mask=inside, other=float("-inf")).to(tl.float32)
    m = tl.max(x, axis=0)
    p = tl.exp(x - tl.where(m == float("-inf"), 0.0, m))  # a row of -inf: exp(-inf) = 0, not NaN
    l = tl.sum(p, axis=0)
    y = p / tl.where(l == 0.0, 1.0, l)
    tl.store(y_ptr + row * stride_ym + columns * stride_yn, y.to(y_ptr.dtype.element_ty), mask=inside)


@checked(matrix)
def triton_softmax(x):
    """Softmax over the rows of x (M, N), computed in float32; a row of -inf gives zeros.

    x: float32, float16 or bfloat16, any strides, at most 2**20 columns (the largest tile that
    Triton allows). Returns (M, N) of the same dtype. In the package it raises TypeError or ValueError
    for any other x. Source: chapter 1's stable softmax.
    """
    m, n = x.shape
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    block_n = triton.next_power_of_2(n)
    num_warps = min(max(block_n // 512, 1), 16)
    softmax_kernel[(m,)](x, y, n, *x.stride(), *y.stride(), BLOCK_N=block_n, num_warps=num_warps)
    return y
