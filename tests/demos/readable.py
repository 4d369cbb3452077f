"""What a drawing says and where, with a generous estimate of the room that words take, and whether all of it, or of a figure, can be read."""
import itertools
import math
import re
from typing import NamedTuple
from xml.etree import ElementTree

from flashedu.viz.svg import WIDTH

SVG = "{http://www.w3.org/2000/svg}"
SMALLEST, MOST_BYTES, MOST_LETTERS = 16, 40_000, 440  # of a text; of the markup; of caption and note, which have four lines
NUMBER = r"-?[\d.]+"
CONTRAST = 4.5  # of text of this size, WCAG 2.2, 1.4.3


THEMES = {  # what JupyterLab's variables are in its light and in its dark theme
    "light": {"--jp-ui-font-color1": "#222222", "--jp-layout-color0": "#ffffff", "--jp-border-color1": "#bdbdbd"},
    "dark": {"--jp-ui-font-color1": "#e0e0e0", "--jp-layout-color0": "#111111", "--jp-border-color1": "#616161"},
}


def luminance(colour):
    """Relative luminance as WCAG 2 defines it."""
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    """How well two colours are told apart as WCAG 2 defines it: 1 (not at all) to 21."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def colour(value, theme):
    """A colour of a drawing in a theme, as #rrggbb."""
    value = re.sub(r"var\((--[\w-]+), [^()]*\)", lambda found: THEMES[theme][found[1]], value)
    return {"white": "#ffffff", "#fff": "#ffffff"}.get(value, value)


def rectangles(element):
    """[(left, top, right, bottom)] of a rect, or of the boxes of a path."""
    if element.tag == SVG + "rect":
        x, y, width, height = (float(element.get(key)) for key in ("x", "y", "width", "height"))
        return [(x, y, x + width, y + height)]
    found = []
    for x, y, across, width, down, height in re.findall(rf"M({NUMBER}) ({NUMBER})([Hh])({NUMBER})([Vv])({NUMBER})[Hh]{NUMBER}[Zz]", element.get("d", "")):
        x, y = float(x), float(y)
        ends = float(width) + (x if across == "h" else 0), float(height) + (y if down == "v" else 0)
        found.append((min(x, ends[0]), min(y, ends[1]), max(x, ends[0]), max(y, ends[1])))
    return found


def contrasts(drawing, theme):
    """[(words, contrast)] of every text with its halo, else with the last opaque box below its middle, else with the paper."""
    found, surfaces = [], []
    for element in ElementTree.fromstring(drawing.svg).iter():
        fill = element.get("fill", "none")
        if fill != "none" and not fill.startswith("url") and not {"opacity", "fill-opacity"} & set(element.keys()):
            surfaces += [(*box, fill) for box in rectangles(element)]
        if element.tag == SVG + "text" and element.text:
            x, y, size = (float(element.get(key)) for key in ("x", "y", "font-size"))
            x += {"middle": 0, "end": -0.3}.get(element.get("text-anchor"), 0.3) * size * len(element.text)
            y -= 0.3 * size
            below = [surface for *box, surface in surfaces if box[0] <= x <= box[2] and box[1] <= y <= box[3]]
            back = element.get("stroke") or (below or ["var(--jp-layout-color0, #fff)"])[-1]
            found.append((element.text, contrast(colour(fill, theme), colour(back, theme))))
    return found


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
    """No text is small or pale, leaves the drawing or lies on another; the whole is as high, small and short as it must be."""
    found = texts(drawing)
    assert drawing.height == height
    assert len(drawing.markup) < MOST_BYTES, len(drawing.markup)
    assert len(drawing.caption + drawing.note) < MOST_LETTERS, len(drawing.caption + drawing.note)
    for text in found:
        assert text.size >= SMALLEST, text
        assert all(0 <= x <= WIDTH and 0 <= y <= height for x, y in text.corners) and text.y <= height - 4, text
        assert not (plain_numbers and re.search(r"e\+|nan|\binf", text.words)), text
    for theme in THEMES:
        pale = [(words, seen) for words, seen in contrasts(drawing, theme) if seen < CONTRAST]
        assert not pale, (theme, pale)
    for one, other in itertools.combinations(found, 2):
        assert any(_apart(one, other, text.turned[0]) for text in (one, other)), (one, other)


def words_in_the_way(figure):
    """[(words, other words or "outside")] of the texts of a matplotlib figure that touch each other or its border."""
    from matplotlib.text import Text

    figure.draw_without_rendering()
    axes = [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    unused = {id(label) for axis in axes for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]
              for label in (tick.label1, tick.label2) if not _within(tick.get_loc(), axis.get_view_interval())}
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip() and id(text) not in unused]
    boxes = [(text.get_text(), text.get_window_extent().padded(-1)) for text in texts]
    page = figure.bbox.padded(1)
    outside = [(words, "outside") for words, box in boxes if not (page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1)]
    return outside + [(one, other) for (one, a), (other, b) in itertools.combinations(boxes, 2) if a.overlaps(b)]


def _within(place, limits):
    low, high = sorted(limits)
    return low - 1e-9 * abs(low) <= place <= high + 1e-9 * abs(high)
