"""Which tiles the attention kernels use: a table by the size of an element, the head dimension and a block's shared memory."""
from typing import NamedTuple

import torch
import triton

from flashedu.kernels.device import DEVICE


class Tile(NamedTuple):
    """Rows of queries, rows of keys, warps of a program, and how many tiles its loads run ahead."""

    block_q: int
    block_k: int
    num_warps: int
    num_stages: int

    def options(self):
        """The tile as arguments of a launch."""
        return dict(BLOCK_Q=self.block_q, BLOCK_K=self.block_k, num_warps=self.num_warps, num_stages=self.num_stages)


# The most shared memory that a block may have, in bytes, and who has it:
#             sm_90, sm_100  sm_80    sm_86, 89, 120  sm_75
SHARED_BYTES = (232_448, 166_912, 101_376, 65_536)
# (bytes of an element, head dimension up to): a tile for each column. In 16 bits the first column was chosen by timing on
# an H200; all others by compiling: the largest that spill no registers, or least.
FORWARD = {
    (2, 64): (Tile(128, 64, 8, 4), Tile(128, 64, 8, 3), Tile(128, 64, 8, 3), Tile(64, 64, 4, 2)),
    (2, 128): (Tile(128, 128, 8, 3), Tile(128, 64, 8, 2), Tile(128, 32, 8, 3), Tile(64, 32, 4, 2)),
    (2, 256): (Tile(128, 64, 8, 2), Tile(64, 64, 8, 2), Tile(64, 32, 8, 2), Tile(32, 32, 4, 1)),
    (4, 64): (Tile(64, 32, 8, 1), Tile(64, 32, 8, 1), Tile(64, 32, 8, 1), Tile(64, 32, 8, 1)),
    (4, 128): (Tile(32, 32, 8, 1), Tile(32, 32, 8, 1), Tile(32, 32, 8, 1), Tile(32, 32, 8, 1)),
    (4, 256): (Tile(32, 32, 8, 1), Tile(32, 32, 8, 1), Tile(32, 32, 8, 1), Tile(16, 16, 8, 1)),
}
DQ = {
    (2, 64): (Tile(128, 64, 8, 3), Tile(128, 64, 8, 3), Tile(128, 64, 8, 3), Tile(64, 64, 4, 1)),
    (2, 128): (Tile(128, 64, 8, 3), Tile(64, 64, 8, 2), Tile(64, 32, 8, 2), Tile(32, 32, 4, 1)),
    (2, 256): (Tile(128, 64, 8, 1), Tile(64, 64, 8, 2), Tile(32, 64, 8, 1), Tile(16, 32, 4, 1)),
    (4, 64): (Tile(32, 32, 8, 2), Tile(32, 32, 8, 2), Tile(32, 32, 8, 2), Tile(32, 32, 8, 2)),
    (4, 128): (Tile(16, 32, 8, 2), Tile(16, 32, 8, 2), Tile(16, 32, 8, 2), Tile(16, 32, 8, 2)),
    (4, 256): (Tile(16, 16, 8, 2), Tile(16, 16, 8, 2), Tile(16, 16, 8, 2), Tile(16, 16, 4, 1)),
}
DKDV = {
    (2, 64): (Tile(64, 64, 4, 3), Tile(32, 128, 8, 2), Tile(32, 128, 8, 2), Tile(32, 32, 4, 1)),
    (2, 128): (Tile(64, 64, 4, 2), Tile(64, 64, 8, 2), Tile(64, 64, 8, 2), Tile(32, 32, 4, 1)),
    (2, 256): (Tile(64, 32, 4, 2), Tile(64, 64, 8, 2), Tile(32, 32, 8, 2), Tile(16, 16, 4, 1)),
    (4, 64): (Tile(32, 32, 8, 2), Tile(32, 32, 8, 2), Tile(32, 32, 8, 2), Tile(32, 32, 8, 2)),
    (4, 128): (Tile(32, 32, 8, 2), Tile(32, 32, 8, 2), Tile(32, 32, 8, 2), Tile(16, 32, 8, 2)),
    (4, 256): (Tile(32, 32, 8, 2), Tile(32, 32, 8, 2), Tile(16, 16, 8, 2), None),
}
# Few queries over many keys: block_q is the most rows that a tile may have. Of these tiles a multiprocessor holds two at a time.
DECODE = {
    (2, 64): (Tile(64, 128, 4, 3), Tile(64, 128, 4, 3), Tile(64, 64, 4, 3), Tile(16, 32, 4, 2)),
    (2, 128): (Tile(64, 64, 4, 3), Tile(32, 64, 4, 3), Tile(32, 32, 4, 3), Tile(16, 32, 4, 2)),
    (2, 256): (Tile(32, 32, 4, 3), Tile(16, 32, 4, 3), Tile(16, 32, 4, 2), Tile(16, 16, 8, 1)),
    (4, 64): (Tile(16, 64, 8, 2), Tile(16, 64, 8, 2), Tile(16, 64, 8, 2), Tile(16, 32, 8, 2)),
    (4, 128): (Tile(16, 32, 8, 1), Tile(16, 32, 8, 1), Tile(16, 32, 8, 1), Tile(16, 32, 8, 1)),
    (4, 256): (Tile(16, 16, 8, 1), Tile(16, 16, 8, 1), Tile(16, 16, 8, 1), Tile(16, 16, 8, 1)),
}
INTERPRETED = Tile(64, 64, 4, 1)  # on the CPU a tile costs a few milliseconds, whatever its size


def padded(d):
    """The width of a tile for head dimension d: a power of two, and at least 16, the least that Triton lets a 16-bit product sum over."""
    return max(16, triton.next_power_of_2(d))


def tile_for(table, itemsize, d, shared_bytes):
    """The tile of a table for elements of `itemsize` bytes, head dimension d and blocks that may have `shared_bytes`.

    Raises ValueError when that is too little for any tile of the table.
    """
    row = table[itemsize, max(64, padded(d))]
    for needed, tile in zip(SHARED_BYTES, row):
        if shared_bytes >= needed and tile is not None:
            return tile
    raise ValueError(f"a GPU with {shared_bytes:,} bytes of shared memory a block is too small for head dimension {d} at {itemsize} bytes an element.")


def pick(table, x):
    """The tile of a table for a tensor x (..., D) on the device where it is."""
    if DEVICE == "cpu":
        return INTERPRETED
    return tile_for(table, x.element_size(), x.shape[-1], torch.cuda.get_device_properties(x.device).shared_memory_per_block_optin)


def precision():
    """How float32 tiles are multiplied: "ieee", or "tf32" if torch.set_float32_matmul_precision has asked for it."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
