import numpy as np
import pytest

from flashedu.cost import tiled_traffic
from flashedu.machine import Machine
from flashedu.reference import tiled_on_machine
from flashedu.viz import levels


@pytest.fixture
def drawn(monkeypatch):
    """Makes a picture function return (figure, caption, alt) instead of a Picture."""
    monkeypatch.setattr(levels, "Picture", lambda figure, caption, alt: (figure, caption, alt))


def run(n_q, n_k, block_q, block_k, d=8):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, d), dtype=np.float32) for n in (n_q, n_k, n_k))
    machine = Machine.for_attention(q, k, v, sram_bytes=10**6, itemsize=2)
    tiled_on_machine(machine, block_q, block_k)
    return machine


def test_traffic_against_block_draws_what_the_machine_counted(drawn):
    blocks = [8, 16, 48]
    formula = [sum(tiled_traffic(48, 48, 8, block, 16, 2)) for block in blocks]
    machines = {block: [run(48, 48, block, block_k) for block_k in (8, 16)] for block in blocks}
    counted = {block: [m.read_bytes + m.written_bytes for m in of] for block, of in machines.items()}
    figure, _, alt = levels.traffic_against_block(
        blocks, formula, counted, [2 * x for x in formula], naive_bytes=10**5, least_bytes=formula[-1]
    )
    naive, line, points = figure.axes[0].lines[:3]
    assert list(naive.get_ydata()) == [2 * x for x in formula]
    heights = dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
    assert all(heights[x] == y for x, y in zip(points.get_xdata(), points.get_ydata(), strict=True))
    assert len(points.get_xdata()) == 6
    assert f"inverse proportion to block_q from {formula[0]:,} to {formula[-1]:,} bytes" in alt


def test_bytes_by_level_has_one_bar_for_each_row(drawn):
    rows = [("naive, HBM", 17.5e9, "naive"), ("flash, L2", 6e9, "flash, above HBM"), ("flash, HBM", 0.15e9, "flash")]
    figure, _, alt = levels.bytes_by_level(rows)
    bars = figure.axes[0].patches
    assert [bar.get_width() for bar in bars] == [size / 1e9 for _, size, _ in rows]
    assert figure.axes[0].get_xscale() == "linear" and bars[0].get_x() == 0
    assert bars[1].get_facecolor() == bars[2].get_facecolor() and bars[1].get_hatch() != bars[2].get_hatch()
    assert alt == "naive, HBM: 17.50 GB; flash, L2: 6.00 GB; flash, HBM: 0.15 GB."


def test_intensity_against_block_draws_the_ridges(drawn):
    ridges = {"A": 150, "B": 200}
    figure, _, alt = levels.intensity_against_block([64, 128], [60, 120], ridges, [30, 42], 63, 7000)
    assert [line.get_ydata()[0] for line in figure.axes[0].lines] == [60, 30, 63, 7000, 150, 200]
    assert "from 30 to 42, at most 63" in alt and "A 150, B 200" in alt
