import pytest

from flashedu.viz import limits


@pytest.fixture
def drawn(monkeypatch):
    """Makes a picture function return (figure, caption, alt) instead of a Picture."""
    monkeypatch.setattr(limits, "Picture", lambda figure, caption, alt: (figure, caption, alt))


LINES = {"naive": {512: 2.0, 1024: 8.0}, "flash, forward": {512: 1.0, 1024: 4.0}, "flash, backward": {512: 3.0}, "N², predicted": {512: 1.0, 2048: 16.0},
         "one model": {512: 5.0}, "another": {512: 6.0}}


def test_curves_are_their_points_and_no_two_look_the_same(drawn):
    figure, caption, alt = limits.against_length(LINES, "ms", "A caption.", level=7, log=True)
    (axes,) = figure.axes
    found = {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}
    assert {name: dict(line.get_xydata().tolist()) for name, line in found.items()} == LINES
    looks = [(line.get_color(), line.get_linestyle(), line.get_marker(), line.get_fillstyle()) for line in found.values()]
    assert len(set(looks)) == len({look[1:] for look in looks if look[2]}) + 1 == len(LINES)  # in more than colour; the prediction has no marker
    assert found["N², predicted"].get_linestyle() == "--"
    assert axes.get_yscale() == "log" and axes.get_ylabel() == "ms" and [tick.get_text() for tick in axes.get_xticklabels()] == ["512", "1k", "2k"]
    assert [list(line.get_ydata()) for line in axes.lines if line not in found.values()] == [[7, 7]]
    assert caption == "A caption." and "naive: 2 at 512, 8 at 1,024; flash, forward: 1 at 512, 4 at 1,024" in alt


def test_many_lengths_have_fewer_ticks(drawn):
    figure, _, _ = limits.against_length({"a": {2**e: 1.0 for e in range(4, 21)}}, "y", "", level=3)
    low, high = figure.axes[0].get_ylim()
    assert low == 0 and high > 3  # the level is seen
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()][:3] == ["16", "64", "256"]


def test_curves_over_the_head_dimension(drawn):
    figure, _, alt = limits.against_head_dim({"flash": {40: 1.5, 72: 2.0, 64: 1.0}}, "times", "A caption.")
    (axes,) = figure.axes
    assert axes.get_xlabel() == "D, head dimension" and axes.get_ylim()[0] == 0
    assert axes.lines[0].get_xydata().tolist() == [[40, 1.5], [72, 2.0], [64, 1.0]] and "flash: 1.5 at 40, 2 at 72" in alt


METHODS = {"window": [(0.1, 0.5), (1.0, 1e-7)], "means of keys": [(0.1, 0.7)], "best of its rank": [(0.1, 0.01), (0.5, 0.001)], "linear": [(0.2, 0.9)], "exact": [(1.0, 2e-7)]}


def test_errors_have_a_panel_for_each_input(drawn):
    figure, _, alt = limits.error_against_work({"head 8": (METHODS, 0.8), "random": (METHODS, 0.9)}, "A caption.")
    assert [axes.get_title() for axes in figure.axes] == ["head 8", "random"]
    for axes, mean in zip(figure.axes, (0.8, 0.9), strict=True):
        found = {line.get_label(): line for line in axes.lines}
        assert {name: [tuple(point) for point in found[name].get_xydata()] for name in METHODS} == METHODS
        assert list(found["the mean value for everybody"].get_ydata()) == [mean, mean]
        low, high = axes.get_ylim()
        assert all(low < error < high for points in METHODS.values() for _, error in points)
    assert "head 8, window: 0.5 at 10% of the FLOPs, 1e-07 at 100%; " in alt and "random, linear: 0.9 at 20% of the FLOPs; " in alt and "random, the mean value: 0.9." in alt


def test_methods_differ_in_more_than_colour():
    assert len({look[1:] for look in limits.APPROXIMATIONS.values()}) == len(limits.APPROXIMATIONS) == len(METHODS)


def test_they_are_pictures():
    assert limits.against_length(LINES, "ms", "").png and limits.against_head_dim({"a": {64: 1.0}}, "y", "").png
    assert limits.error_against_work({"a": (METHODS, 0.5), "b": (METHODS, 0.5)}, "").png
