"""The bars of naive attention show the cost model's bytes and the measured shares."""

import pytest

from flashedu.cost import naive_traffic
from flashedu.results import load
from flashedu.viz import traffic
from flashedu.viz.traffic import STEPS, moved, shares


@pytest.fixture
def drawn(monkeypatch):
    figures = []
    real = traffic.Picture
    monkeypatch.setattr(
        traffic, "Picture", lambda figure, *text: (figures.append(figure), real(figure, *text))[1]
    )
    return figures


def bars(figure):
    """Widths of the horizontal bars in the order of drawing; the legend's bars have no height."""
    return [bar.get_width() for bar in figure.axes[0].patches if bar.get_height() == pytest.approx(0.7)]


def test_shares_add_up_and_are_the_measured_ones(drawn):
    time_ms = {
        row["step"]: row["time_ms"]
        for row in load("h200_attention_traffic")["kernels"]
        if row["algorithm"] == "naive"
    }
    picture = shares({"operations": {"qk": 256, "softmax": 5, "pv": 256}, "time": time_ms}, "caption")
    widths = bars(drawn[0])
    assert widths[1] == pytest.approx(100 * 5 / 517)
    assert widths[3:] == pytest.approx([100 * time_ms[step] / sum(time_ms.values()) for step in STEPS])
    assert sum(widths[:3]) == pytest.approx(100)
    assert f"P = softmax(S) {100 * time_ms['softmax'] / sum(time_ms.values()):.0f} %" in picture.alt


def test_every_share_has_a_label_with_room_for_it(drawn):
    shares({"operations": {"qk": 256, "softmax": 5, "pv": 256}, "time": {"qk": 3, "softmax": 90, "pv": 7}}, "caption")
    (axes,) = drawn[0].axes
    parts = [bar for bar in axes.patches if bar.get_height() == pytest.approx(0.7)]
    assert [label.get_text() for label in axes.texts] == [f"{part.get_width():.0f} %" for part in parts]
    for label, part in zip(axes.texts, parts, strict=True):
        words, bar = label.get_window_extent(), part.get_window_extent()
        assert bar.x0 <= words.x0 <= words.x1 <= bar.x1 if part.contains_point(label.get_transform().transform(label.get_position())) else words.y0 >= bar.y1


def test_the_softmax_takes_most_of_the_time():
    time_ms = {
        row["step"]: row["time_ms"]
        for row in load("h200_attention_traffic")["kernels"]
        if row["algorithm"] == "naive"
    }
    assert time_ms["softmax"] > time_ms["qk"] + time_ms["pv"]


def test_moved_is_to_scale_and_adds_up_to_the_closed_form(drawn):
    n, d, itemsize = 300, 32, 2
    io_bytes, intermediate_bytes = naive_traffic(n, d, 1, 1, itemsize)
    one, square = n * d * itemsize, n * n * itemsize
    arrays = {
        "q": (one, 0),
        "k": (one, 0),
        "s": (square, square),
        "p": (square, square),
        "v": (one, 0),
        "o": (0, one),
    }
    picture = moved(arrays, "caption")
    widths = bars(drawn[0])
    assert 1e3 * sum(widths) == pytest.approx(io_bytes + intermediate_bytes)
    assert widths[4:6] == pytest.approx([square / 1e3, square / 1e3])
    assert "S 180 kB read and 180 kB written" in picture.alt
    labels = [label.get_text() for label in drawn[0].axes[0].get_yticklabels()]
    assert labels == ["Q", "K", "S", "P", "V", "O"]
