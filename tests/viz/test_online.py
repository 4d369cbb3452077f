import numpy as np
import pytest

from flashedu.viz import online


@pytest.fixture
def drawn(monkeypatch):
    """Makes a picture function return (figure, caption, alt) instead of a Picture."""
    monkeypatch.setattr(online, "Picture", lambda figure, caption, alt: (figure, caption, alt))


def test_moving_maxima_draws_the_given_rows_and_every_factor_after_the_first_block(drawn):
    m = np.maximum.accumulate(np.random.default_rng(0).standard_normal((6, 10)), axis=0)
    alpha = np.exp(np.vstack((np.full((1, 10), -np.inf), m[:-1])) - m)
    figure, _, alt = online.moving_maxima(m, alpha, 32, rows=(0, 7))
    left, right = figure.axes[:2]
    assert [line.get_ydata().tolist() for line in left.lines] == [m[:, 0].tolist(), m[:, 7].tolist()]
    assert np.array_equal(right.images[0].get_array(), alpha[1:].T)
    moved = (np.diff(m, axis=0) > 0).mean()
    assert f"{moved:.0%} of the factors are below 1" in alt
