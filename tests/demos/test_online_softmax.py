"""The demo of online softmax: every position draws, and the numbers in the picture are those of the row."""
import re

import numpy as np
import pytest
from readable import assert_readable, texts, words

from flashedu.data import load_minilm
from flashedu.demos.demo import choices
from flashedu.demos.online_softmax import REAL, history_of, online_softmax, row_of
from flashedu.reference import stable_softmax
from flashedu.viz.online_steps import online_steps_drawing


def value_beside(drawing, label):
    """The number at the end of the line that a label stands on."""
    y = next(text.y for text in texts(drawing) if text.words == label)
    return next(text.words for text in texts(drawing) if text.y == y and text.left > 800)


ROWS = [value for _, value in choices(online_softmax().controls["row"])]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_position_draws_and_differs(row):
    demo = online_softmax(row)
    for _, block in choices(demo.controls["block_size"]):
        demo.controls["block_size"].value = block
        most = demo.controls["step"].max
        assert most == -(-len(row_of(row)) // block)
        seen = set()
        for step in sorted({*range(0, most + 1, max(1, most // 7)), 1, most}):
            demo.controls["step"].value = step
            assert "could not be drawn" not in demo.picture.value
            drawing = demo.drawing
            assert drawing.markup == demo.picture.value
            assert_readable(drawing, 568)
            seen.add(demo.picture.value)
        assert len(seen) > most / max(1, most // 7)


@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.parametrize("block", [1, 7, 32])
def test_the_picture_says_the_right_numbers(row, block):
    scores, demo = row_of(row), online_softmax(row, block)
    for step in (1, 2, demo.controls["step"].max):
        drawing = demo.draw(step=step, block_size=block, row=row)
        seen, before = scores[: step * block], scores[: (step - 1) * block]
        right = np.exp(seen - seen.max()).sum()
        maxima = np.maximum.accumulate(scores)[np.minimum(np.arange(len(scores)) // block * block + block, len(scores)) - 1]
        stale = np.exp(scores - maxima)[: step * block].sum()  # each under the maximum of its own time
        factor = np.exp(before.max() - seen.max()) if step > 1 else 0.0
        assert float(value_beside(drawing, "new sum l")) == pytest.approx(right, abs=6e-4)
        assert float(value_beside(drawing, "without the factors")) == pytest.approx(stale, abs=6e-4)
        assert float(value_beside(drawing, "× exp(m_old − m_new)")) == pytest.approx(factor, rel=0.05, abs=6e-4)
        assert float(value_beside(drawing, f"check: all {len(seen)} at once")) == pytest.approx(1 / stable_softmax(seen).max(), abs=6e-4)
        assert float(value_beside(drawing, "relative difference")) < 1e-13
        moved = value_beside(drawing, "maximum m")
        assert moved.replace("−", "-").split(" → ")[1] == f"{seen.max():.2f}"
        too_large = [said for said in words(drawing) if "too large" in said]
        if stale / right >= 1.01:
            assert float(too_large[0].split()[0].replace(",", "")) == pytest.approx(stale / right, rel=0.05)
        elif stale / right < 1.001:
            assert "right: m never rose" in words(drawing)
        assert f"{1 / stale:.3f} instead of {1 / right:.3f}" in drawing.caption
    assert "softmax's denominator" in words(drawing)


def test_a_broken_sum_would_be_seen():
    """The check in the picture is independent of the history: where that is wrong, the difference says so."""
    history = [(m, alpha, 0.5 * kept, added) for m, alpha, kept, added in history_of("random", 8)]
    drawing = online_steps_drawing(row_of("random"), 8, 3, history)
    assert float(value_beside(drawing, "relative difference")) > 0.01


def test_maximum_and_sum_follow_the_row():
    rows = {name: np.array(history_of(name, 8)) for name in ("rising", "falling", "huge")}
    assert (rows["rising"][1:, 1] < 1).all() and (rows["falling"][1:, 1] == 1).all()
    assert rows["huge"][:, 1][1:].min() < 1e-5


def test_real_rows_are_the_models_scores():
    real = load_minilm()
    for head, query in REAL:
        expected = real.q[head, query].astype(float) @ real.k[head].astype(float).T / 32**0.5
        assert np.allclose(row_of((head, query)), expected, rtol=1e-12)
    demo = online_softmax()
    assert any(real.tokens[210] in label for label, _ in choices(demo.controls["row"]))


def test_step_follows_the_blocks_and_bad_values_explain_themselves():
    demo = online_softmax("random", 1, 40)
    demo.controls["block_size"].value = 16
    assert demo.controls["step"].value == demo.controls["step"].max == 3
    assert "block 3 of 3" in words(demo.drawing)
    demo.controls["block_size"].value = 64
    assert "ordinary softmax" in demo.drawing.note
    late = demo.draw(step=9, block_size=16, row="random")
    assert "no more than 3 blocks" in late.note and "block 3 of 3" in words(late)
    assert "−∞" in " ".join(words(demo.draw(step=0, block_size=16, row="random")))


def test_seen_current_and_coming_keys_are_drawn_apart():
    first, second = (online_softmax("random", 8, step).drawing.svg for step in (2, 3))
    strokes = lambda svg, colour: re.findall(rf'<path d="([^"]*)" fill="none" stroke="{re.escape(colour)}"', svg)  # noqa: E731
    gold = [strokes(svg, "#8f7100")[0].count("M") for svg in (first, second)]
    coming = [strokes(svg, "var(--jp-border-color1, #bbb)")[0].count("M") for svg in (first, second)]
    assert gold == [16, 24] and coming == [32, 24]
