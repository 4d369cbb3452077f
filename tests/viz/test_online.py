import numpy as np
import pytest

from flashedu.reference import stable_softmax, update_normalizer
from flashedu.viz import online


@pytest.fixture
def drawn(monkeypatch):
    """Makes a picture function return (figure, caption, alt) instead of a Picture."""
    monkeypatch.setattr(online, "Picture", lambda figure, caption, alt: (figure, caption, alt))


def history_of(scores, block_size):
    m, l, history = np.array([-np.inf]), np.zeros(1), []
    for start in range(0, len(scores), block_size):
        m_new, l_new = update_normalizer(m, l, scores[None, start : start + block_size])
        alpha = np.exp(m - m_new)
        history.append((m_new[0], alpha[0], (l * alpha)[0], (l_new - l * alpha)[0]))
        m, l = m_new, l_new
    return history


@pytest.mark.parametrize("n, block_size", [(48, 8), (50, 8), (5, 1)])
def test_running_row_draws_the_running_maximum_and_the_sum_of_the_row(drawn, n, block_size):
    scores = np.random.default_rng(n).standard_normal(n)
    figure, _, alt = online.running_row(scores, block_size, history_of(scores, block_size))
    top, middle, bottom = figure.axes
    steps = top.patches[0].get_data()
    blocks = [scores[: int(edge + 0.5)].max() for edge in steps.edges[1:]]
    assert np.array_equal(steps.values, blocks)
    assert [bar.get_height() for bar in middle.patches] == [
        alpha for _, alpha, _, _ in history_of(scores, block_size)
    ]
    kept, added = bottom.containers
    last = kept.patches[-1].get_height() + added.patches[-1].get_height()
    assert last == pytest.approx(1 / stable_softmax(scores).max())  # l of the whole row
    assert f"The last sum is {last:.2f}" in alt


def test_running_row_names_the_blocks_where_the_maximum_rises(drawn):
    scores = np.array([0.0, 1, 0, 0, 3, 2, 1, 3, 0, 4])
    _, _, alt = online.running_row(scores, 2, history_of(scores, 2))
    assert "rises in these blocks: 3, 5." in alt


def test_running_row_says_so_when_the_maximum_never_rises(drawn):
    scores = np.array([5.0, 1, 0, 0])
    _, _, alt = online.running_row(scores, 2, history_of(scores, 2))
    assert "rises in these blocks: none." in alt


def test_moving_maxima_draws_the_given_rows_and_every_factor_after_the_first_block(drawn):
    m = np.maximum.accumulate(np.random.default_rng(0).standard_normal((6, 10)), axis=0)
    alpha = np.exp(np.vstack((np.full((1, 10), -np.inf), m[:-1])) - m)
    figure, _, alt = online.moving_maxima(m, alpha, 32, rows=(0, 7))
    left, right = figure.axes[:2]
    assert [line.get_ydata().tolist() for line in left.lines] == [m[:, 0].tolist(), m[:, 7].tolist()]
    assert np.array_equal(right.images[0].get_array(), alpha[1:].T)
    moved = (np.diff(m, axis=0) > 0).mean()
    assert f"{moved:.0%} of the factors are below 1" in alt
