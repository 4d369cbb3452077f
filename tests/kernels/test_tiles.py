"""The table of tiles: every one of them gives the right answer, and each GPU finds its own."""
import importlib.util

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("there is no Triton on this system", allow_module_level=True)

import torch
from problems import Problem, ratios

from flashedu.kernels import DEVICE, backward, forward, tiles

TABLES = {"FORWARD": tiles.FORWARD, "DQ": tiles.DQ, "DKDV": tiles.DKDV}
SIZES = sorted({(name, tile.block_q, tile.block_k) for name, table in TABLES.items() for row in table.values() for tile in row if tile})


@pytest.mark.parametrize("name, block_q, block_k", SIZES)
def test_every_tile(name, block_q, block_k, monkeypatch):
    """Of whatever row: sizes decide which keys are masked, warps and stages are for the compiler."""
    for module in (forward, backward):
        monkeypatch.setattr(module, "pick", lambda table, x: tiles.Tile(block_q, block_k, 4, 1) if table is TABLES[name] else tiles.INTERPRETED)
    longer, shorter = 16 * (max(block_q, block_k) // 16) + 21, max(block_q, block_k) - 3
    for n_q, n_k in ((longer, shorter), (shorter, longer)):
        assert max(ratios(Problem((1, 1, 1, n_q, n_k, 8), causal=n_q < n_k), DEVICE).values()) <= 1


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_the_table_is_complete(table):
    """A tile for every kind of GPU, except where nothing fits the smallest."""
    assert set(table) == {(itemsize, d) for itemsize in (2, 4) for d in (64, 128, 256)}
    for row in table.values():
        assert len(row) == len(tiles.SHARED_BYTES) and None not in row[:-1]
        for tile in filter(None, row):
            assert all(size >= 16 and size & (size - 1) == 0 for size in tile[:2]) and tile.num_warps in (4, 8) and tile.num_stages >= 1


def test_the_column_is_the_first_that_fits():
    row = tiles.FORWARD[2, 128]
    for shared_bytes, column in ((232_448, 0), (300_000, 0), (232_447, 1), (166_912, 1), (101_376, 2), (101_375, 3), (65_536, 3)):
        assert tiles.tile_for(tiles.FORWARD, 2, 128, shared_bytes) is row[column]
    with pytest.raises(ValueError, match=r"^a GPU with 49,152 bytes of shared memory a block is too small for head dimension 128 at 2 bytes an element\.$"):
        tiles.tile_for(tiles.FORWARD, 2, 128, 49_152)
    with pytest.raises(ValueError, match=r"65,536 bytes .* too small for head dimension 256 at 4 bytes"):
        tiles.tile_for({(4, 256): (*tiles.DKDV[4, 256][:-1], None)}, 4, 256, 65_536)


@pytest.mark.parametrize("d, row", [(1, 64), (64, 64), (65, 128), (80, 128), (128, 128), (129, 256), (256, 256)])
def test_the_row_is_that_of_the_padded_width(d, row):
    assert tiles.tile_for(tiles.DQ, 4, d, 232_448) is tiles.DQ[4, row][0]


@pytest.mark.parametrize("d, width", [(1, 16), (16, 16), (17, 32), (40, 64), (80, 128), (256, 256)])
def test_widths(d, width):
    assert tiles.padded(d) == width


def test_precision_follows_torch():
    before = torch.get_float32_matmul_precision()
    try:
        for setting, precision in (("highest", "ieee"), ("high", "tf32"), ("medium", "tf32")):
            torch.set_float32_matmul_precision(setting)
            assert tiles.precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)
