"""Curves over the sequence length say what was measured, and where it did not fit."""

import numpy as np
import pytest

from flashedu.results import load
from flashedu.viz import curves
from flashedu.viz.curves import duration, error_against_bound, growth, naive_against_flash, size


@pytest.fixture
def drawn(monkeypatch):
    figures = []
    real = curves.Picture
    monkeypatch.setattr(
        curves, "Picture", lambda figure, *text: (figures.append(figure), real(figure, *text))[1]
    )
    return figures


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (8590e6, "8.59 GB"), (100.66e6, "101 MB"), (2.5e12, "2.5 TB")],
)
def test_size(value, text):
    assert size(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(2e-5, "20 µs"), (0.13, "130 ms"), (9.654, "9.65 s"), (1234, "1234 s")]
)
def test_duration(value, text):
    assert duration(value) == text


def test_the_h200_picture_is_the_results_file(drawn):
    result = load("h200_attention_traffic")
    picture = naive_against_flash(result)
    for ax, field, factor in zip(drawn[0].axes, ("time_ms", "peak_bytes"), (1, 1e9), strict=True):
        for line, name in zip(ax.lines, ("naive", "flash"), strict=False):
            rows = [row for row in result["sweep"] if field in row[name]]
            assert list(line.get_xdata()) == [row["n"] for row in rows]
            assert line.get_ydata() == pytest.approx([row[name][field] / factor for row in rows])
    assert drawn[0].axes[1].lines[-1].get_ydata()[0] == pytest.approx(
        result["environment"]["hbm_capacity_bytes"] / 1e9
    )
    longest = [row for row in result["sweep"] if "time_ms" in row["naive"]][-1]
    assert f"At N = {longest['n']:,} naive takes {longest['naive']['time_ms']:.3g} ms" in picture.alt
    failed = [row["n"] for row in result["sweep"] if "time_ms" not in row["naive"]]
    assert (
        (f"At N = {failed[0]:,} naive attention did not fit." in picture.alt)
        if failed
        else ("did not fit" not in picture.alt)
    )
    assert result["environment"]["device"] in picture.caption


def test_growth_marks_the_length_that_meets_the_limit(drawn):
    predicted = {n: (1e-9 * n**2, 12.0 * n**2) for n in (256, 4096, 36514)}
    picture = growth({256: (1e-4, 800_000), 4096: (0.13, 201e6)}, predicted, 16e9)
    memory = drawn[0].axes[1]
    assert list(memory.lines[1].get_ydata()) == [0.0008, 0.201]
    assert memory.lines[2].get_ydata()[0] == 16
    assert (memory.lines[3].get_xdata()[0], memory.lines[3].get_ydata()[0]) == (
        36514,
        pytest.approx(16, rel=1e-3),
    )
    assert "N = 36,514" in picture.caption
    assert "1.33 s" in picture.caption


def test_errors_stand_above_or_below_one(drawn):
    picture = error_against_bound({"mean": {16: 1e4, 64: 1e3}, "naive": {16: 0.01, 64: 0.02}})
    series = [list(line.get_ydata()) for line in drawn[0].axes[0].lines]
    assert series[:2] == [[1e4, 1e3], [0.01, 0.02]]
    assert set(series[2]) == {1}
    assert "mean: 1e+03 to 1e+04" in picture.alt
    assert np.isclose(drawn[0].axes[0].get_xticks(), [16, 64]).all()
