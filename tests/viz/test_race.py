import pytest

from flashedu.bench import Measurement
from flashedu.viz import race


@pytest.fixture
def drawn(monkeypatch):
    """Makes a picture function return (figure, caption, alt) instead of a Picture."""
    monkeypatch.setattr(race, "Picture", lambda figure, caption, alt: (figure, caption, alt))


def test_naive_against_tiled_draws_each_measurement(drawn):
    rows = [
        (1024, Measurement(0.02, 12_000_000), Measurement(0.01, 1_000_000)),
        (2048, Measurement(0.12, 48_000_000), Measurement(0.04, 2_000_000)),
    ]
    figure, _, alt = race.naive_against_tiled(rows)
    time, memory = figure.axes
    drawn_points = [
        [list(zip(*line.get_data(), strict=True)) for line in panel.lines] for panel in (time, memory)
    ]
    assert drawn_points == [
        [[(1024, 0.02), (2048, 0.12)], [(1024, 0.01), (2048, 0.04)]],
        [[(1024, 12), (2048, 48)], [(1024, 1), (2048, 2)]],
    ]
    assert "N = 1024: time 2.0x, memory 12x; N = 2048: time 3.0x, memory 24x" in alt


def test_time_against_block_names_the_fastest(drawn):
    figure, _, alt = race.time_against_block([32, 64, 128], [0.5, 0.1, 0.2], 0.3, 4096)
    assert list(figure.axes[0].lines[0].get_ydata()) == [0.5, 0.1, 0.2]
    assert "the fastest is 64, naive takes 0.30 s" in alt
