import pytest

from flashedu.viz import decode


@pytest.fixture
def drawn(monkeypatch):
    """Makes a picture function return (figure, caption, alt) instead of a Picture."""
    monkeypatch.setattr(decode, "Picture", lambda figure, caption, alt: (figure, caption, alt))


def test_predictions_are_lines_and_measurements_marks(drawn):
    lines = {"keys split, predicted": ([1, 8], [0.1, 0.5]), "keys split": ([1, 2, 8], [0.1, 0.9, 0.4]), "cuDNN": ([2, 8], [0.2, 0.3])}
    figure, caption, alt = decode.bandwidth(lines, "tokens", "share", "A caption.")
    axes, = figure.axes
    found = {line.get_label(): line for line in axes.lines}
    for name, (x, shares) in lines.items():
        assert list(found[name].get_xdata()) == x and list(found[name].get_ydata()) == shares
    assert found["keys split, predicted"].get_linestyle() == "-" and found["keys split, predicted"].get_marker() == ""
    assert found["keys split"].get_linestyle() == "None" and found["keys split"].get_marker() == "P"
    assert (axes.get_xlabel(), axes.get_ylabel(), caption) == ("tokens", "share", "A caption.")
    assert "keys split: 10.0% at 1, 40.0% at 8, at most 90.0%" in alt
    assert list(axes.get_xticks()) == [1, 2, 4, 8]


def test_lines_differ_in_more_than_colour():
    assert len({(line, marker) for _, line, marker in decode.LINES.values()}) == len(decode.LINES)


def test_it_is_a_picture():
    assert decode.bandwidth({"one part": ([1, 2], [0.1, 0.2])}, "x", "y", "c").png
