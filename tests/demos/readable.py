"""What a drawing says and where, with a generous estimate of the room that words take, and whether all of it can be read."""
import itertools
import math
import re
from typing import NamedTuple
from xml.etree import ElementTree

from flashedu.viz.svg import WIDTH

SVG = "{http://www.w3.org/2000/svg}"
SMALLEST, MOST_BYTES, MOST_LETTERS = 16, 40_000, 440  # of a text; of the markup; of caption and note, which have four lines


class Text(NamedTuple):
    """Words in the box that they need, before they are turned by so many degrees about the point (x, y)."""

    words: str
    left: float
    right: float
    y: float  # of the baseline
    size: float
    turned: tuple = (0.0, 0.0, 0.0)

    @property
    def corners(self):
        degrees, x, y = self.turned
        cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        box = itertools.product((self.left - x, self.right - x), (self.y - self.size - y, self.y + 0.15 * self.size - y))
        return [(x + a * cosine - b * sine, y + a * sine + b * cosine) for a, b in box]


def texts(drawing):
    """Every text of a drawing that says something, as a `Text`."""
    found = []
    for element in ElementTree.fromstring(drawing.svg).iter(SVG + "text"):
        if not element.text:
            continue
        x, y, size = (float(element.get(key)) for key in ("x", "y", "font-size"))
        width = 0.6 * size * len(element.text)
        left = x - {"middle": width / 2, "end": width}.get(element.get("text-anchor"), 0)
        turned = re.fullmatch(r"rotate\((\S+) (\S+) (\S+)\)", element.get("transform", "rotate(0 0 0)"))
        found.append(Text(element.text, left, left + width, y, size, tuple(map(float, turned.groups()))))
    return found


def words(drawing):
    """What a drawing says, text by text."""
    return [text.words for text in texts(drawing)]


def said(drawing):
    """The same as one string."""
    return " | ".join(words(drawing))


def _apart(one, other, degrees):
    """Whether a line in that direction, or across it, passes between two texts."""
    for angle in (math.radians(degrees), math.radians(degrees + 90)):
        a, b = ([x * math.cos(angle) + y * math.sin(angle) for x, y in text.corners] for text in (one, other))
        if max(a) <= min(b) or max(b) <= min(a):
            return True
    return False


def assert_readable(drawing, height, plain_numbers=True):
    """No text is small, leaves the drawing or lies on another; the whole is as high, small and short as it must be."""
    found = texts(drawing)
    assert drawing.height == height
    assert len(drawing.markup) < MOST_BYTES, len(drawing.markup)
    assert len(drawing.caption + drawing.note) < MOST_LETTERS, len(drawing.caption + drawing.note)
    for text in found:
        assert text.size >= SMALLEST, text
        assert all(0 <= x <= WIDTH and 0 <= y <= height for x, y in text.corners) and text.y <= height - 4, text
        assert not (plain_numbers and re.search(r"e\+|nan|\binf", text.words)), text
    for one, other in itertools.combinations(found, 2):
        assert any(_apart(one, other, text.turned[0]) for text in (one, other)), (one, other)
