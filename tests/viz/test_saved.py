"""The pictures that the built notebooks keep, for readers who run nothing: opaque, described, with a caption."""
import base64
import html
import io
import re
from pathlib import Path

import nbformat
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted([*ROOT.glob("chapters/*.ipynb"), *ROOT.glob("solutions/*.ipynb")])


def outputs(path):
    """The mimebundles of a notebook that have a picture."""
    cells = nbformat.read(path, as_version=4).cells
    found = (output.get("data", {}) for cell in cells if cell.cell_type == "code" for output in cell.outputs)
    return [data for data in found if "image/png" in data]


def test_every_chapter_has_pictures():
    assert [path.stem for path in NOTEBOOKS if path.parent.name == "chapters" and not outputs(path)] == []


@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if outputs(path)], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_pictures_are_opaque_described_and_captioned(path):
    for data in outputs(path):
        picture = Image.open(io.BytesIO(base64.b64decode(data["image/png"])))
        assert picture.convert("RGBA").getextrema()[3] == (255, 255)
        assert picture.convert("RGB").getpixel((0, 0)) == (255, 255, 255)  # dark letters stand on white paper, also on a dark page
        markup = data["text/html"]
        alt, caption = re.search(r'<img [^>]*alt="([^"]*)"', markup)[1], re.search(r"<figcaption[^>]*>(.*?)</figcaption>", markup, re.S)[1]
        assert html.unescape(alt).strip() and re.sub(r"<[^>]+>", "", caption).strip()
        assert f'data:image/png;base64,{data["image/png"].strip()}"' in markup
