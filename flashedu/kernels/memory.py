"""Tiles between a matrix in GPU memory and a program: any strides, any length, any width.

The strides of rows and columns are compile-time constants: a layout is compiled once, and the addresses of a tile cost
neither registers nor instructions.
"""
import triton
import triton.language as tl


@triton.jit
def tile_pointers(
    ptr, start, n, stride_n: tl.constexpr, stride_d: tl.constexpr,
    D: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):
    """Pointers to rows start .. start + ROWS of a matrix (n, D), and which rows and columns lie inside it."""
    rows, columns = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    in_rows, in_columns = (start + rows < n)[:, None], (columns < D)[None, :]
    ptr += tl.cast(start, tl.int64) * stride_n  # 64 bits: an offset may exceed 2**31
    if ROWS * stride_n + BLOCK_D * stride_d >= 2**31:  # and so may one within the tile
        rows, columns = rows.to(tl.int64), columns.to(tl.int64)
    return ptr + (rows[:, None] * stride_n + columns[None, :] * stride_d), in_rows, in_columns


@triton.jit
def load_tile(
    ptr, start, n, stride_n: tl.constexpr, stride_d: tl.constexpr,
    D: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr, RAGGED: tl.constexpr,
):
    """Rows start .. start + ROWS of a matrix (n, D), zeros past its last column and, if RAGGED, last row."""
    pointers, in_rows, in_columns = tile_pointers(ptr, start, n, stride_n, stride_d, D, ROWS, BLOCK_D)
    if RAGGED:
        return tl.load(pointers, mask=in_rows & in_columns, other=0.0)
    if D < BLOCK_D:
        return tl.load(pointers, mask=in_columns, other=0.0)
    return tl.load(pointers)


@triton.jit
def store_tile(
    ptr, start, n, stride_n: tl.constexpr, stride_d: tl.constexpr, tile,
    D: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):
    """Write a tile over rows start .. start + ROWS of a matrix (n, D), leaving out what lies outside it."""
    pointers, in_rows, in_columns = tile_pointers(ptr, start, n, stride_n, stride_d, D, ROWS, BLOCK_D)
    tl.store(pointers, tile.to(ptr.dtype.element_ty), mask=in_rows & in_columns)
