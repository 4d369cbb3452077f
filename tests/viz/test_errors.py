import numpy as np
import pytest

from flashedu.exactness import attention_bounds
from flashedu.reference import naive_attention, online_attention
from flashedu.viz import errors


@pytest.fixture
def drawn(monkeypatch):
    """Makes a picture function return (figure, caption, alt) instead of a Picture."""
    monkeypatch.setattr(errors, "Picture", lambda figure, caption, alt: (figure, caption, alt))


def test_a_mark_stands_at_the_largest_ratio_and_tells_right_from_wrong_by_its_shape(drawn):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((40, 16), dtype=np.float32) for _ in range(3))
    bound, _ = attention_bounds(q, k, v)
    outputs = {
        "naive": naive_attention(q, k, v),
        "online": online_attention(q, k, v, 8),
        "half": naive_attention(q, k, v) / 2,
    }
    ratios = {name: bound.errors(o) for name, o in outputs.items()}
    figure, _, alt = errors.against_bound(ratios)
    axes = figure.axes[0]
    marks = [line for line in axes.lines if line.get_marker() in ("o", "X")]
    assert [line.get_marker() for line in marks] == ["o", "o", "X"]
    assert [float(line.get_xdata()[0]) for line in marks] == [bound.ratio(o) for o in outputs.values()]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(outputs)
    assert f"half: {bound.ratio(outputs['half']):.2g}" in alt


def test_errors_of_exactly_zero_are_drawn_at_the_floor(drawn):
    figure, _, _ = errors.against_bound({"exact": np.zeros(5)})
    assert min(line.get_xdata().min() for line in map(_asarray, figure.axes[0].lines)) >= errors.FLOOR


def _asarray(line):
    line.set_xdata(np.asarray(line.get_xdata()))
    return line
