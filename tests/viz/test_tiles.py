import itertools
from collections import Counter

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

from flashedu.cost import tile_counts, tiled_sram
from flashedu.machine import Machine
from flashedu.reference import tiled_on_machine
from flashedu.viz import tiles
from flashedu.viz.figure import COLOURS, SHADE

GRID = list(itertools.product((1, 7, 16, 33), (1, 16, 40), (1, 5, 16, 64), (1, 8, 64), (False, True)))


@pytest.fixture
def drawn(monkeypatch):
    """Makes a picture function return (figure, caption, alt) instead of a Picture."""
    monkeypatch.setattr(tiles, "Picture", lambda figure, caption, alt: (figure, caption, alt))


def looks(patch):
    """(surface, hatch and its colour) of a tile."""
    return patch.get_facecolor(), patch.get_hatch() and to_rgba(patch.get_edgecolor())


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
    figure, caption, _ = tiles.tile_map(n_q, n_k, block_q, block_k, causal=True)
    visited, i = [], None
    for event in run(n_q, n_k, block_q, block_k, causal=True).events:
        if event.kind == "load" and event.name == "q":
            i = event.start
        if event.kind == "load" and event.name == "k":
            visited.append((event.start, i))
    axes = figure.axes[0]
    numbered = {
        (int(x // block_k) * block_k, int(y // block_q) * block_q): text.get_text()
        for text in axes.texts for x, y in [text.get_position()]
    }
    roomy = {(j, i): str(number + 1) for number, (j, i) in enumerate(visited) if min((n_k - j) / block_k, (n_q - i) / block_q) > 0.4}
    assert numbered == roomy and ("no room" in caption) == (len(roomy) < len(visited))
    skipped = [p for p in axes.patches if isinstance(p, Rectangle) and looks(p)[0] == to_rgba(COLOURS["masked"], SHADE) and not p.get_hatch()]
    assert skipped and not any(p.get_xy() in visited for p in skipped)


@pytest.mark.parametrize("causal", [False, True])
def test_tile_map_draws_and_names_as_many_tiles_as_cost_counts(drawn, causal):
    figure, caption, alt = tiles.tile_map(1000, 1000, 128, 64, causal)
    counts = tile_counts(1000, 1000, 128, 64, causal)
    full, diagonal, skipped = counts
    found = Counter(looks(p) for p in figure.axes[0].patches if isinstance(p, Rectangle))
    shade, gold = to_rgba(COLOURS["masked"], SHADE), to_rgba(COLOURS["scores"])
    assert found == Counter({(gold, None): full, (shade, gold): diagonal, (shade, None): skipped})
    legend = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    if not causal:
        assert not legend and "128 tiles" in caption
        return
    assert legend == [f"{count} {label}" for label, count in zip(tiles.KINDS.values(), counts, strict=True)] + [tiles.EDGE]
    for label, count in zip(tiles.KINDS.values(), counts, strict=True):
        assert f"{count} {label.split(':')[0]}" in alt and f"{count} {label.split(':')[0]}" in caption


@pytest.mark.parametrize("n_q, n_k", [(32, 32), (32, 64), (64, 32), (200, 300)])
def test_the_edge_of_the_mask_lies_where_the_mask_does(drawn, n_q, n_k):
    """Every score left of the drawn line is seen, every one right of it is not; those on it are the last that are seen."""
    (line,) = tiles.tile_map(n_q, n_k, 8, 8, causal=True)[0].axes[0].lines
    (x0, x1), (y0, y1) = line.get_data()
    for i, j in itertools.product(range(n_q), range(n_k)):
        right = j + 0.5 - (x0 + (i + 0.5 - y0) * (x1 - x0) / (y1 - y0))  # of the line, of the score's middle
        assert (right <= 0) == (j <= i + n_k - n_q)


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


@pytest.mark.parametrize("sizes, numbers", [((1, 8, 4, 4), 2), ((4, 4, 64, 64), 1)])
def test_a_tile_as_large_as_the_picture_has_room_for_its_number(drawn, sizes, numbers):
    figure, caption, _ = tiles.tile_map(*sizes, causal=True)
    assert [text.get_text() for text in figure.axes[0].texts] == [str(number + 1) for number in range(numbers)] and "no room" not in caption
