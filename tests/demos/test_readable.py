"""What the tests of drawings call unreadable is refused, and what is near to it passes."""
import pytest
from readable import assert_readable, said, texts, words

from flashedu.viz.svg import Drawing, text

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


def test_height_size_and_length_are_judged():
    for wrong in (drawing(height=201), drawing("<g/>" * 10_000), drawing(caption="word " * 90)):
        with pytest.raises(AssertionError):
            assert_readable(wrong, 200)
    assert_readable(drawing(text(300, 50, "o[0] is nan")), 200, plain_numbers=False)


def test_what_is_said():
    found = drawing(text(300, 50, "a < b"), text(300, 80, ""))
    assert words(found) == ["ten lettrs", "a < b"] and said(found) == "ten lettrs | a < b"
    assert (texts(found)[1].left, texts(found)[1].right, texts(found)[1].y) == (300, 351, 50)
