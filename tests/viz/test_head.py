"""The pictures of one head show its scores and their maxima."""

import numpy as np
import pytest

from flashedu.reference import stable_softmax
from flashedu.viz import head
from flashedu.viz.head import row_maxima, scores_and_probabilities


@pytest.fixture
def drawn(monkeypatch):
    figures = []
    real = head.Picture
    monkeypatch.setattr(
        head, "Picture", lambda figure, *text: (figures.append(figure), real(figure, *text))[1]
    )
    return figures


@pytest.fixture
def s():
    return np.random.default_rng(5).normal(0, 2, (12, 20)).astype(np.float32)


def test_images_are_the_arrays(drawn, s):
    p = stable_softmax(s)
    picture = scores_and_probabilities(s, p)
    left, right = drawn[0].axes[:2]
    assert np.array_equal(left.images[0].get_array(), s)
    assert np.array_equal(right.images[0].get_array(), p)
    assert f"the largest is {p.max():.2f}" in picture.alt
    assert f"from {s.min():.1f} to {s.max():.1f}" in picture.alt


def test_maxima_are_those_of_the_rows(drawn, s):
    picture = row_maxima(s)
    assert np.array_equal(drawn[0].axes[0].lines[0].get_ydata(), s.max(axis=1))
    assert drawn[0].axes[0].lines[2].get_xdata()[0] == s.max(axis=1).argmax()
    assert f"from {s.max(axis=1).min():.1f} to {s.max():.1f}" in picture.alt
