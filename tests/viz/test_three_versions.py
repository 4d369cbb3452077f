import numpy as np
import pytest

from flashedu.hardware import KIB
from flashedu.viz import three_versions


@pytest.fixture
def drawn(monkeypatch):
    """Makes a picture function return (figure, caption, alt) instead of a Picture."""
    monkeypatch.setattr(three_versions, "Picture", lambda figure, caption, alt: (figure, caption, alt))


def test_gain_has_a_panel_for_each_head_dimension_and_a_line_for_each_way(drawn):
    gains = {d: {name: [d / 64, 2 * d / 64 + i] for i, name in enumerate(three_versions.WAYS)} for d in (64, 128)}
    figure, _, alt = three_versions.gain_against_sram([32 * KIB, 64 * KIB], gains, {"GPU": 50 * KIB})
    assert [axes.get_title() for axes in figure.axes] == ["D = 64", "D = 128"]
    for axes, ways in zip(figure.axes, gains.values(), strict=True):
        lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
        for name, (first, last) in ways.items():
            assert lines[name] == [[32, first], [64, last]]
        assert any(list(line.get_xdata()) == [50, 50] for line in axes.lines)
    assert "D = 128, version 2, best tiles: 2.00 to 6.00" in alt


def test_the_ways_differ_in_more_than_colour():
    assert len(set(three_versions.WAYS.values())) == len({line for line, _, _ in three_versions.WAYS.values()}) == 3


def test_program_loads_are_sorted_and_the_longest_is_told(drawn):
    figure, _, alt = three_versions.program_loads({"in runs": [1, 3, 2], "dealt": [2, 2, 2]})
    first, second = figure.axes[0].lines
    assert list(first.get_ydata()) == [3, 2, 1] and list(second.get_ydata()) == [2, 2, 2]
    assert first.get_linestyle() != second.get_linestyle()
    assert "in runs: 1 to 3, longest 1.50 of the mean; dealt: 2 to 2, longest 1.00 of the mean" in alt


def test_number_lines_mark_what_lies_inside(drawn):
    figure, caption, alt = three_versions.number_lines({"a": [0, 1, 1.5, 9], "b": [0.0, 0.25, 2.0]}, (0, 2))
    a, b = figure.axes[0].collections
    assert [segment[0][0] for segment in a.get_segments()] == [0, 1, 1.5]
    assert [segment[0][0] for segment in b.get_segments()] == [0, 0.25, 2]
    assert "from 0 to 2" in caption and "a: 3 numbers, neighbours 0.5 to 1 apart" in alt


def test_sorted_errors_rise_and_say_the_root_mean_square(drawn):
    figure, _, alt = three_versions.sorted_errors({"one": np.array([4.0, 3.0]), "two": np.array([0.5, 1.0])})
    curves = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 2]
    assert [list(line.get_ydata()) for line in curves] == [[3, 4], [0.5, 1]]
    assert f"one: median 3.5e+00, largest 4.0e+00, of all rows together {np.sqrt(12.5):.1e}" in alt


def test_they_are_pictures():
    gains = {64: {name: [1, 2] for name in three_versions.WAYS}, 128: {name: [1, 2] for name in three_versions.WAYS}}
    assert three_versions.gain_against_sram([KIB, 2 * KIB], gains, {}).png and three_versions.program_loads({"a": [1, 2]}).png
    assert three_versions.number_lines({"a": [0, 1]}, (0, 1)).png and three_versions.sorted_errors({"a": np.ones(3)}).png
