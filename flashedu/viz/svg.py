"""Drawings of the demos: SVG strings in the notebook's own colours, and the picture that a saved notebook keeps of them."""
import base64
import html
import math
import re
from dataclasses import dataclass
from pathlib import Path

from flashedu.viz.figure import WORDS, small_png

INK = "var(--jp-ui-font-color1, #222)"  # text and lines: dark on light, light on dark
PAPER = "var(--jp-layout-color0, #fff)"  # what lies behind
FAINT = "var(--jp-border-color1, #bbb)"  # rules, empty places
SIZE = 17  # of text, in units of which a drawing is WIDTH wide
WIDTH = 960


def attributes(**values):
    """SVG attributes from keywords: None is left out, `stroke_width` becomes stroke-width, numbers have one decimal."""
    words = ((key.replace("_", "-"), value) for key, value in values.items() if value is not None)
    return "".join(f' {key}="{number(value) if isinstance(value, float) else html.escape(str(value))}"' for key, value in words)


def number(value):
    """A coordinate: one decimal, and none where it is 0."""
    return f"{value:.1f}".removesuffix(".0")


def rect(x, y, width, height, fill, **options):
    return f"<rect{attributes(x=float(x), y=float(y), width=float(width), height=float(height), fill=fill, **options)}/>"


def line(x1, y1, x2, y2, stroke=INK, **options):
    return f"<line{attributes(x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), stroke=stroke, **options)}/>"


def path(d, fill="none", **options):
    """A path from a string of commands."""
    return f"<path{attributes(d=d, fill=fill, **options)}/>"


def polyline(points, stroke, **options):
    """A line through points (x, y)."""
    return path("M" + "L".join(f"{number(x)} {number(y)}" for x, y in points), stroke=stroke, **options)


def text(x, y, words, fill=INK, size=SIZE, anchor=None, weight=None, **options):
    """Words whose baseline is at y; anchor is None (their start is at x), "middle" or "end"."""
    given = attributes(x=float(x), y=float(y), fill=fill, font_size=size, text_anchor=anchor, font_weight=weight, **options)
    return f"<text{given}>{html.escape(str(words), quote=False)}</text>"


def hatch(colour, name):
    """(definition, fill): diagonal stripes, for surfaces that must differ in more than colour. `name` is its id."""
    stripes = f'<path d="M-2 2L2 -2M0 10L10 0M8 12L12 8" stroke="{colour}" stroke-width="2.5"/>'
    pattern = f'<pattern id="{name}" width="10" height="10" patternUnits="userSpaceOnUse">{stripes}</pattern>'
    return f"<defs>{pattern}</defs>", f"url(#{name})"


def steps(low, high, count=5):
    """About `count` round numbers from low to high."""
    from matplotlib.ticker import MaxNLocator

    return [x for x in MaxNLocator(count, steps=[1, 2, 5, 10]).tick_values(low, high) if low <= x <= high]


class Plot:
    """Two axes: `x` and `y` take data to the drawing's units, `frame` is what is drawn of the axes.

    box is (left, top, right, bottom) in the drawing's units; an axis is logarithmic when its range is given to `log`.
    """

    def __init__(self, box, x_range, y_range, log=""):
        self.box, self.ranges, self.log = box, {"x": x_range, "y": y_range}, log

    def _place(self, axis, value, start, stop):
        low, high = self.ranges[axis]
        if axis in self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return start + (value - low) / (high - low) * (stop - start)

    def x(self, value):
        return self._place("x", value, self.box[0], self.box[2])

    def y(self, value):
        return self._place("y", value, self.box[3], self.box[1])

    def ticks(self, axis):
        low, high = self.ranges[axis]
        if axis not in self.log:
            return steps(low, high)
        powers = [10.0**e for e in range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)]
        return powers[:: -(-len(powers) // 7)]

    def frame(self, x_label, y_label, x_text="{:g}".format, y_text="{:g}".format, x_ticks=None, y_ticks=None):
        """The two axes with ticks, faint rules and labels; `x_text` and `y_text` write a tick's value."""
        left, top, right, bottom = self.box
        drawn = [line(left, bottom, right, bottom), line(left, top, left, bottom)]
        for value in self.ticks("x") if x_ticks is None else x_ticks:
            drawn += [line(self.x(value), top, self.x(value), bottom, FAINT, stroke_width=0.5),
                      text(self.x(value), bottom + 26, x_text(value), anchor="middle")]
        for value in self.ticks("y") if y_ticks is None else y_ticks:
            drawn += [line(left, self.y(value), right, self.y(value), FAINT, stroke_width=0.5),
                      text(left - 8, self.y(value) + 6, y_text(value), anchor="end")]
        drawn += [text((left + right) / 2, bottom + 50, x_label, anchor="middle"), text(left, top - 12, y_label)]
        return "".join(drawn)


@dataclass(frozen=True)
class Drawing:
    """An SVG with what is said about it; the notebook shows it in its own theme.

    `body` is the SVG's content, WIDTH units wide and `height` high. `caption` says what is seen, with its numbers;
    `note`, where there is one, explains a choice of values that shows less than one would expect. Both stand below.
    `alt` is for those who do not see it; by default it is the caption.
    """

    body: str
    height: float
    caption: str
    note: str = ""
    alt: str = ""

    @property
    def svg(self):
        """The picture alone, as one SVG element."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{html.escape(self.alt or self.caption)}" '
            f'viewBox="0 0 {WIDTH} {number(self.height)}" width="{WIDTH}" height="{number(self.height)}" '
            f'font-family="var(--jp-ui-font-family, sans-serif)" '
            f'style="display:block;width:100%;max-width:var(--flashedu-width, {WIDTH}px);height:auto">{self.body}</svg>'
        )

    @property
    def words(self):
        """Caption and note as HTML of a constant height, so that nothing below moves."""
        note = f"<strong>Note: {html.escape(self.note)}</strong>" if self.note else ""
        return (
            f'<figcaption style="color:{WORDS};max-width:var(--flashedu-width, {WIDTH}px);line-height:1.4;'
            f'font-size:max({SIZE}px, var(--flashedu-width, {WIDTH}px) * {SIZE} / {WIDTH});min-height:5.6em">{html.escape(self.caption)} {note}</figcaption>'
        )

    @property
    def markup(self):
        """Picture and words as HTML."""
        return f'<figure style="margin:0">{self.svg}{self.words}</figure>'

    @property
    def png(self):
        """The picture in the light theme, as the bytes of a PNG."""
        import matplotlib
        import resvg_py

        plain = re.sub(r"var\(--[\w-]+, ([^()]*)\)", r"\1", self.svg)
        fonts = Path(matplotlib.get_data_path(), "fonts", "ttf")
        return small_png(resvg_py.svg_to_bytes(
            svg_string=plain,
            background="#ffffff",
            skip_system_fonts=True,  # the same letters everywhere
            font_files=[str(fonts / "DejaVuSans.ttf"), str(fonts / "DejaVuSans-Bold.ttf")],
            sans_serif_family="DejaVu Sans",
        ))

    def _repr_mimebundle_(self, include=None, exclude=None):
        data, alt = base64.b64encode(self.png).decode(), html.escape(self.alt or self.caption)
        still = f'<figure style="margin:0"><img src="data:image/png;base64,{data}" alt="{alt}" style="max-width:100%">{self.words}</figure>'
        return {"text/html": still, "image/png": data, "text/plain": f"{self.caption} {self.note}".strip()}
