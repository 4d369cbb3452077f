"""The launcher of the Hopper kernel: tiles by head dimension, descriptors for TMA, and who works on what."""
import functools
import heapq
import math
from typing import NamedTuple

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from flashedu.kernels.hopper import ROWS, hopper_kernel

TYPES = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}
L2_BYTES = 16 << 20  # of keys and values that programs work on at a time: well inside the cache


class Tile(NamedTuple):
    """Consumers of 64 queries each, rows of keys, tiles of keys in flight, registers of a consumer's thread."""

    consumers: int
    block_k: int
    slots: int
    registers: int


TILES = {  # by head dimension; chosen by timing on an H200
    64: Tile(3, 128, 5, 160),
    128: Tile(2, 128, 2, 240),
    256: Tile(2, 64, 2, 240),
}


def refusal(q, k, v):
    """Why the Hopper kernel cannot take q, k, v that `flash_forward` takes, as the end of a sentence; None if it can."""
    if q.shape[-1] not in TILES:
        return f"takes head dimensions {', '.join(map(str, TILES))}, but it is {q.shape[-1]}"
    if q.dtype not in TYPES:
        return f"takes float16 and bfloat16, but q is {str(q.dtype).removeprefix('torch.')}"
    for name, x in (("q", q), ("k", k), ("v", v)):
        strides = [stride for size, stride in zip(x.shape[:-1], x.stride()) if size > 1]
        if x.stride(-1) != 1 or x.data_ptr() % 16 or any(s % 8 or s == 0 for s in strides):
            return f"loads rows that begin at multiples of 16 bytes and are contiguous, but {name} has strides {x.stride()}"
    return None


def descriptor(x, rows, columns=None):
    """What the tensor memory accelerator must know to load (rows, columns) of a head of x (B, H, N, D), by default all D columns.

    It fills what lies beyond the end with 0.
    """
    block = [1, 1, rows, columns or x.shape[-1]]
    strides = [stride if size > 1 else 16 for size, stride in zip(x.shape[:-1], x.stride())]  # of one row it is never used
    return TensorDescriptor(x, list(x.shape), [*strides, 1], block, gl.NVMMASharedLayout.get_default_for(block, {**TYPES, torch.float8_e4m3fn: gl.float8e4nv}[x.dtype]))


@functools.lru_cache(64)
def schedule(heads, kv_bytes, n_q, n_k, block_q, block_k, causal, programs, device):
    """Which program works on which tile of queries, in which order: int32 (1 + most items, programs).

    Row 0 says how many items a program has, the rows below are theirs: head * tiles + tile. Heads are taken a section at a
    time, so that their keys and values (`kv_bytes` a head) stay in L2, and in a section the tiles that see most keys come
    first. Each goes to the program that is free first.
    """
    tiles = -(-n_q // block_q)
    section = max(x for x in range(1, max(1, min(heads, L2_BYTES // kv_bytes)) + 1) if heads % x == 0) if causal else 1
    items = [[] for _ in range(programs)]
    free = [(0, program) for program in range(programs)]
    for first in range(0, heads, section):
        for tile in reversed(range(tiles)):
            visible = min(n_k, (tile + 1) * block_q + n_k - n_q) if causal else n_k
            for head in range(first, first + section):
                until, program = free[0]
                items[program].append(head * tiles + tile)
                heapq.heapreplace(free, (until + max(1, -(-visible // block_k)) + 2, program))  # 2: to begin and to end
    rows = [[len(own) for own in items]]
    rows += [[own[r] if r < len(own) else 0 for own in items] for r in range(max(rows[0]))]
    return torch.tensor(rows, dtype=torch.int32, device=device)


def hopper_forward(q, k, v, causal=False, scale=None, tile=None):
    """As `flashedu.kernels.forward.flash_forward`, for what `refusal` does not refuse, on a GPU of compute capability 9.0."""
    batch, heads, n_q, d = q.shape
    kv_heads, n_k = k.shape[1:3]
    scale = d**-0.5 if scale is None else scale
    o = torch.empty((batch, heads, n_q, d), dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, heads, n_q), dtype=torch.float32, device=q.device)
    consumers, block_k, slots, registers = TILES[d] if tile is None else tile
    block_q = ROWS.value * consumers
    tiles = -(-n_q // block_q)
    programs = min(tiles * batch * heads, torch.cuda.get_device_properties(q.device).multi_processor_count)
    table = schedule(batch * heads, 4 * n_k * d * kv_heads // heads or 1, n_q, n_k, block_q, block_k, causal, programs, q.device)
    hopper_kernel[(programs,)](
        descriptor(q, ROWS.value), descriptor(k, block_k), descriptor(v, block_k), o, lse,
        table, tiles, heads, heads // kv_heads, n_q, n_k, scale * math.log2(math.e),
        CAUSAL=causal, RAGGED=n_k % block_k != 0, BLOCK_K=block_k, CONSUMERS=consumers, SLOTS=slots, REGISTERS=registers, num_warps=4,
    )
    return o, lse
