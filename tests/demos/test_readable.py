"""What the tests of drawings call unreadable is refused, and what is near to it passes."""
import pytest
from readable import assert_readable, contrast, contrasts, said, texts, words, words_in_the_way

from flashedu.viz.figure import COLOURS
from flashedu.viz.svg import PAPER, Drawing, rect, text

# 17 units high; ten letters are 102 units wide
FIRST = text(100, 100, "ten lettrs")


def drawing(*more, height=200, caption="A caption."):
    return Drawing("".join([FIRST, *more]), height, caption)


@pytest.mark.parametrize("other", [
    text(203, 100, "right of it"), text(99, 100, "left", anchor="end"), text(100, 120, "below it"), text(100, 80, "above it"),
    text(95, 180, "upwards", transform="rotate(-90 95 180)"),
    text(100, 78, "rising", transform="rotate(-30 100 78)"), text(60, 86, "falls past", transform="rotate(-20 60 86)"),
    text(858, 20, "ten lettrs"), text(100, 196, "at the foot"),
])
def test_what_can_be_read_passes(other):
    assert_readable(drawing(other), 200)


@pytest.mark.parametrize("other", [
    text(201, 100, "touches it"), text(150, 100, "on it", anchor="middle"), text(100, 119, "too near below"), text(100, 81, "too near above"),
    text(150, 160, "upwards, through it", transform="rotate(-90 150 160)"),
    text(60, 110, "along, into it", transform="rotate(-10 60 110)"),
    text(859, 20, "ten lettrs"), text(0.5, 20, "end", anchor="end"), text(300, 16, "head"), text(300, 197, "foot"),
    text(20, 150, "upwards and out of it", transform="rotate(-90 20 150)"),
    text(300, 50, "small", size=15), text(300, 50, "1e+06 bytes"), text(300, 50, "nan MB"), text(300, 50, "inf times"),
])
def test_what_cannot_be_read_is_refused(other):
    with pytest.raises(AssertionError):
        assert_readable(drawing(other), 200)


@pytest.mark.parametrize("other", [
    text(300, 50, "blue", COLOURS["query"]),  # 3.8 on dark paper
    text(300, 50, "light", "white"), text(300, 50, "dark", "#222222"),
    rect(290, 30, 90, 30, COLOURS["query"]) + text(300, 50, "ink"),  # 3.1 on blue, in the light theme
    rect(290, 30, 90, 30, COLOURS["query"]) + text(390, 50, "beside it", "white"),
    text(300, 50, "halo", "white", stroke=PAPER),
])
def test_pale_text_is_refused(other):
    with pytest.raises(AssertionError):
        assert_readable(drawing(other), 200)


def test_contrast_is_that_with_what_lies_below():
    on_blue = drawing(rect(290, 30, 90, 30, COLOURS["query"]), text(300, 50, "on blue", "white"))
    assert_readable(on_blue, 200)
    for theme in ("light", "dark"):
        assert contrasts(on_blue, theme)[1] == ("on blue", contrast(COLOURS["query"], "#ffffff"))
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_height_size_and_length_are_judged():
    for wrong in (drawing(height=201), drawing("<g/>" * 10_000), drawing(caption="word " * 90)):
        with pytest.raises(AssertionError):
            assert_readable(wrong, 200)
    assert_readable(drawing(text(300, 50, "o[0] is nan")), 200, plain_numbers=False)


def test_what_is_said():
    found = drawing(text(300, 50, "a < b"), text(300, 80, ""))
    assert words(found) == ["ten lettrs", "a < b"] and said(found) == "ten lettrs | a < b"
    assert (texts(found)[1].left, texts(found)[1].right, texts(found)[1].y) == (300, 351, 50)


@pytest.mark.parametrize("place, found", [
    ((0.5, 0.5), []), ((0.5, 0.9), []), ((0.12, 0.5), [("a long note", "another")]), ((0.97, 0.5), [("a long note", "outside")]),
])
def test_words_of_a_figure_are_apart_and_inside(place, found):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3))
    axes = figure.subplots()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.text(*place, "a long note")
    axes.text(0.1, 0.52, "another")
    assert words_in_the_way(figure) == found
