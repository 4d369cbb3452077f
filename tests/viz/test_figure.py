"""What every figure shares: the style reaches what is drawn, and each thing has a colour and a mark of its own."""
import io
import re

import pytest
from PIL import Image

from flashedu.demos.demo import failure
from flashedu.viz.block_grid import block_grid_svg
from flashedu.viz.figure import COLOURS, MARKERS, STYLE, Picture, drawing, new_figure
from flashedu.viz.svg import Drawing


@drawing
def one_line():
    figure, axes = new_figure()
    axes.plot([1, 2], label="a line")
    axes.legend()
    return figure


def test_the_style_is_in_force_while_a_figure_is_drawn():
    axes = one_line().axes[0]
    assert axes.lines[0].get_linewidth() == STYLE["lines.linewidth"]
    assert not axes.get_legend().get_frame_on()
    assert axes.get_legend().get_texts()[0].get_fontsize() == STYLE["font.size"]


def test_a_reader_s_own_figures_keep_their_style():
    import matplotlib

    before = matplotlib.rcParams["lines.linewidth"]
    one_line()
    assert matplotlib.rcParams["lines.linewidth"] == before


def test_no_two_things_share_a_colour_or_a_mark():
    assert len(set(COLOURS.values())) == len(COLOURS)
    assert len(set(MARKERS.values())) == len(MARKERS)


def test_colours_stand_out_from_white_by_three_to_one():
    for colour in COLOURS.values():
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
        assert 1.05 / (0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05) >= 3


def test_a_picture_hides_what_lies_behind_it():
    """A saved notebook is shown on white and on black pages: no pixel is transparent, and the paper is white."""
    figure = one_line()
    figure.patch.set_alpha(0)
    shown = Image.open(io.BytesIO(Picture(figure, "a caption", "alt").png))
    assert "transparency" not in shown.info and shown.convert("RGBA").getpixel((0, 0)) == (255, 255, 255, 255)


@pytest.mark.parametrize("markup", [
    Picture(one_line(), "a caption", "alt")._repr_mimebundle_()["text/html"], Drawing("", 10, "a caption")._repr_mimebundle_()["text/html"],
    failure(ValueError("no picture")), block_grid_svg(64, 16).split("</svg>")[1],
])
def test_words_beside_a_picture_have_the_page_s_colour_where_there_is_no_jupyterlab(markup):
    assert set(re.findall(r"(?<![\w-])color:([^;\"]+(?:\([^()]*\))?)", markup)) == {"var(--jp-ui-font-color1, inherit)"}


def test_the_words_go_with_the_picture():
    bundle = Picture(one_line(), "a caption", "two < three")._repr_mimebundle_()
    assert "a caption" in bundle["text/html"] and "two &lt; three" in bundle["text/html"]
    assert bundle["text/plain"] == "a caption\n[two < three]" and bundle["image/png"]
