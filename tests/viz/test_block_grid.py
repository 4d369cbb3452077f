"""The square of the slider says how large a block is and whether it fits."""

import xml.etree.ElementTree as ET

import pytest

from flashedu.hardware import gpu
from flashedu.viz import block_grid as module
from flashedu.viz.block_grid import block_facts, block_grid, block_grid_svg

SRAM = gpu("H100 SXM").block_shared_bytes


def tree(svg):
    return ET.fromstring(f"<div>{svg}</div>")


@pytest.mark.parametrize(
    ("n", "block", "blocks", "one"), [(1024, 128, 64, 65536), (1024, 1000, 4, 4_000_000), (8, 16, 1, 1024)]
)
def test_facts(n, block, blocks, one):
    assert block_facts(n, block, 4, SRAM)[:3] == (blocks, one, n * n * 4)


def test_the_answer_to_the_chapter_s_question():
    fits = [b for b in range(32, 513, 16) if "which fits" in block_grid_svg(1024, b)]
    assert max(fits) == max(b for b in range(32, 513, 16) if b * b * 4 <= SRAM) == 240


@pytest.mark.parametrize("block", [32, 128, 240, 512])
def test_svg_is_well_formed_to_scale_and_described(block):
    svg = tree(block_grid_svg(1024, block, side=256)).find("svg")
    assert float(svg.find("rect").get("width")) == pytest.approx(256 * block / 1024, abs=0.05)
    assert svg.find("path").get("d").count("V256M") == -(-1024 // block) - 1
    assert svg.get("role") == "img"
    assert f"Blocks of {block} x {block}" in svg.get("aria-label")


def test_colour_is_not_the_only_sign():
    small, large = block_grid_svg(1024, 240), block_grid_svg(1024, 256)
    assert "which fits in 227 KiB" in small
    assert "does NOT fit in 227 KiB" in large
    assert module.COLOURS["sram"] in small
    assert module.COLOURS["hbm"] in large


def test_the_still_picture_says_the_same():
    picture = block_grid(1024, 128)
    assert picture.caption in tree(block_grid_svg(1024, 128)).find("p").text
    assert picture.caption in picture.alt
