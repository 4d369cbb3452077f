"""The pieces of a drawing: what they write is XML, says what it was told, and is seen by everyone."""

import io
import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from readable import contrast

from flashedu.viz.figure import COLOURS
from flashedu.viz.svg import INK, WIDTH, Drawing, Plot, attributes, hatch, line, number, path, polyline, rect, text

NASTY = """<b>"quoted" & 'so'</b>"""
DARK = "#111111"  # JupyterLab's dark background
LIGHT = "#ffffff"


@pytest.mark.parametrize("name", [name for name in COLOURS if name != "text"])
def test_each_colour_is_seen_in_both_themes_and_carries_white_letters(name):
    assert contrast(COLOURS[name], LIGHT) >= 4.5  # also of white letters on it
    assert contrast(COLOURS[name], DARK) >= 3


def test_text_is_read_on_paper():
    assert contrast(COLOURS["text"], LIGHT) >= 7


def test_a_drawing_is_xml_and_says_what_it_was_told():
    definition, fill = hatch(COLOURS["key"], "stripes")
    body = definition + rect(1, 2, 30, 40, fill) + line(0, 0, 5, 5) + text(10, 20, NASTY, anchor="end", weight="bold")
    drawing = Drawing(body + path("M0 0H5", alt=None) + polyline([(0, 1), (2, 3)], INK), 80.5, NASTY, note=NASTY)
    root = ElementTree.fromstring(drawing.svg)
    assert root.get("aria-label") == NASTY and root.get("role") == "img" and root.get("viewBox") == f"0 0 {WIDTH} 80.5"
    found = root.find("{*}text")
    assert found.text == NASTY and found.get("text-anchor") == "end" and found.get("font-weight") == "bold"
    assert root.find("{*}rect").get("fill") == "url(#stripes)" and root.find(".//{*}pattern").get("id") == "stripes"
    figure = ElementTree.fromstring(drawing.markup)
    assert "".join(figure.find("figcaption").itertext()) == f"{NASTY} Note: {NASTY}"


def test_the_alternative_text_is_the_caption_unless_another_is_given():
    label = {alt: ElementTree.fromstring(Drawing("", 10, "said", alt=alt).svg).get("aria-label") for alt in ("", "other")}
    assert label == {"": "said", "other": "other"}


def test_attributes_are_short():
    assert attributes(x=1.0, y=2.25, stroke_width=3, fill=None, d='"') == ' x="1" y="2.2" stroke-width="3" d="&quot;"'
    assert [number(x) for x in (0.0, -0.25, 10.0, 10.04)] == ["0", "-0.2", "10", "10"]


def test_the_saved_picture_is_the_drawing_in_the_light_theme():
    png = Drawing(rect(0, 0, 480, 100, COLOURS["output"]) + rect(600, 0, 10, 100, INK), 100, "half").png
    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    assert pixels.shape == (100, WIDTH, 3)
    assert ["#{:02x}{:02x}{:02x}".format(*pixels[50, x]) for x in (100, 605, 900)] == [COLOURS["output"], "#222222", LIGHT]


def test_a_linear_axis():
    plot = Plot((100, 50, 300, 250), (0, 10), (-1, 1))
    assert (plot.x(0), plot.x(10), plot.x(5)) == (100, 300, 200)
    assert (plot.y(-1), plot.y(1), plot.y(0)) == (250, 50, 150)  # upwards
    assert plot.ticks("x") == [0, 2, 4, 6, 8, 10]
    assert plot.ticks("y")[0] >= -1 and plot.ticks("y")[-1] <= 1


def test_a_logarithmic_axis():
    plot = Plot((0, 0, 300, 100), (1, 1000), (1e-3, 1e17), log="xy")
    assert plot.x(1) == 0 and plot.x(1000) == 300
    assert plot.x(10) == pytest.approx(100) and plot.x(math.sqrt(1000)) == pytest.approx(150)
    assert plot.ticks("x") == pytest.approx([1, 10, 100, 1000])
    assert 4 <= len(plot.ticks("y")) <= 7  # every third power of ten, so that labels have room
    steps = np.diff(np.log10(plot.ticks("y")))
    assert steps == pytest.approx(steps[0]) and steps[0] == round(steps[0])


def test_the_frame_names_its_ticks_where_they_are():
    plot = Plot((100, 50, 300, 250), (0, 10), (0, 4))
    root = ElementTree.fromstring(f"<g>{plot.frame('keys & values', 'bytes', x_text='{:g} k'.format, y_ticks=[0, 3])}</g>")
    words = {found.text: (float(found.get("x")), float(found.get("y"))) for found in root.iter("text")}
    assert words["4 k"][0] == pytest.approx(plot.x(4), abs=0.1) and words["3"][1] == pytest.approx(plot.y(3) + 6, abs=0.1)
    assert "keys & values" in words and "bytes" in words and "1" not in words
    assert sum(re.fullmatch(r"\d+ k", word) is not None for word in words) == 6
