import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.patches import Polygon, Rectangle

from flashedu.cost import tile_counts, tiled_sram
from flashedu.machine import Machine
from flashedu.reference import tiled_on_machine
from flashedu.viz import tiles

GRID = list(itertools.product((1, 7, 16, 33), (1, 16, 40), (1, 5, 16, 64), (1, 8, 64), (False, True)))


@pytest.fixture
def drawn(monkeypatch):
    """Makes a picture function return (figure, caption, alt) instead of a Picture."""
    monkeypatch.setattr(tiles, "Picture", lambda figure, caption, alt: (figure, caption, alt))


def run(n_q, n_k, block_q, block_k, causal=False, d=8):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, d), dtype=np.float32) for n in (n_q, n_k, n_k))
    machine = Machine.for_attention(q, k, v, sram_bytes=10**6, itemsize=2)
    tiled_on_machine(machine, block_q, block_k, causal)
    return machine


@pytest.mark.parametrize("n_q, n_k, block_q, block_k, causal", GRID)
def test_tile_kinds_are_those_that_cost_counts(n_q, n_k, block_q, block_k, causal):
    kinds = tiles.tile_kinds(n_q, n_k, block_q, block_k, causal)
    counted = tuple(int((kinds == kind).sum()) for kind in (tiles.FULL, tiles.DIAGONAL, tiles.SKIPPED))
    assert counted == tile_counts(n_q, n_k, block_q, block_k, causal)


@pytest.mark.parametrize(
    "n_q, n_k, block_q, block_k", [(32, 32, 8, 8), (32, 64, 8, 16), (30, 20, 8, 8), (17, 33, 16, 16)]
)
def test_tile_map_numbers_the_tiles_as_the_machine_visits_them(drawn, n_q, n_k, block_q, block_k):
    figure, _, _ = tiles.tile_map(n_q, n_k, block_q, block_k, causal=True)
    visited, i = [], None
    for event in run(n_q, n_k, block_q, block_k, causal=True).events:
        if event.kind == "load" and event.name == "q":
            i = event.start
        if event.kind == "load" and event.name == "k":
            visited.append((event.start, i))
    axes = figure.axes[0]
    drawn_at = [
        (int(x // block_k) * block_k, int(y // block_q) * block_q)
        for x, y in (t.get_position() for t in axes.texts)
    ]
    assert [text.get_text() for text in axes.texts] == [str(number + 1) for number in range(len(visited))]
    assert drawn_at == visited
    pale = [p for p in axes.patches if isinstance(p, Rectangle) and p.get_facecolor() == to_rgba(tiles.PALE)]
    assert not any(p.get_xy() in visited for p in pale)


@pytest.mark.parametrize("causal", [False, True])
def test_tile_map_draws_and_names_as_many_tiles_as_cost_counts(drawn, causal):
    figure, caption, alt = tiles.tile_map(1000, 1000, 128, 64, causal)
    counts = tile_counts(1000, 1000, 128, 64, causal)
    full, diagonal, skipped = counts
    squares = [p.get_facecolor() for p in figure.axes[0].patches if isinstance(p, Rectangle)]
    halves = [p.get_facecolor() for p in figure.axes[0].patches if isinstance(p, Polygon)]
    assert squares.count(to_rgba(tiles.COLOURS["scores"])) == full + diagonal
    assert squares.count(to_rgba(tiles.PALE)) == skipped
    assert halves == [to_rgba(tiles.PALE)] * diagonal
    for (label, *_), count in zip(tiles.KINDS.values(), counts, strict=True):
        word = f"{count} {label.split(':')[0]}"
        assert (word in alt and word in caption) == (count > 0)


@pytest.mark.parametrize("n_q, n_k, block_q, block_k, causal", [c for c in GRID if c[0] > 1 and c[2] > 1])
def test_the_bands_of_sram_add_up_to_what_the_machine_held(n_q, n_k, block_q, block_k, causal):
    machine = run(n_q, n_k, block_q, block_k, causal)
    bands = tiles.occupancy(machine.events)
    assert sum(bands.values()).tolist() == [event.sram_used for event in machine.events]
    assert all(levels.min() == 0 for levels in bands.values())


def test_the_bands_are_the_tiles_that_they_are_called():
    machine = run(48, 48, 16, 16)
    bands = tiles.occupancy(machine.events)
    tile = 16 * 8 * 2  # bytes of 16 rows of 8 elements
    assert {band: int(levels.max()) for band, levels in bands.items()} == {
        "q": tile,
        "kept": tile + 2 * 16 * 2,
        "k": tile,
        "v": tile,
        "scores": 16 * 16 * 2,
    }
    assert sum(bands.values()).max() == machine.sram_peak == tiled_sram(16, 16, 8, 2)


def test_a_tile_that_is_never_freed_stays_in_the_picture():
    machine = Machine({"q": np.zeros((4, 2), np.float32)}, sram_bytes=100)
    machine.load("q", 0, 2)
    machine.alloc((2, 2))
    assert sum(tiles.occupancy(machine.events).values()).tolist() == [16, 32]


def test_residency_marks_every_store_and_names_the_peak(drawn):
    machine = run(40, 48, 16, 16)
    figure, caption, alt = tiles.residency(machine)
    axes = figure.axes[0]
    markers = next(line for line in axes.lines if line.get_label() == "store to HBM")
    assert len(markers.get_xdata()) == 2 * 3  # o and lse, for each of three query tiles
    assert max(patch.get_data().values.max() for patch in axes.patches) == machine.sram_peak
    assert f"peak {machine.sram_peak} bytes, 6 stores" in alt
    assert f"{machine.sram_peak:,} of {machine.sram_bytes:,} bytes" in caption
