"""Every position of the causal mask's sliders draws: well-formed, inside its frame, never two words on each other."""
import re

import pytest
from readable import assert_readable

from flashedu.cost import tile_counts
from flashedu.demos.causal_tiles import BLOCKS, LENGTHS, causal_tiles
from flashedu.demos.demo import choices


@pytest.mark.parametrize("block_q", BLOCKS)
@pytest.mark.parametrize("n_q", LENGTHS)
def test_every_length_with_every_block(n_q, block_q):
    draw = causal_tiles().draw
    for n_k, block_k in ((n_q, block_q), (1024, 128), (128, 16), (8192, 16), (1000, 96), (2048, 512)):
        drawing = draw(n_q, n_k, block_q, block_k)
        assert_readable(drawing, 500)
        full, diagonal, skipped = tile_counts(n_q, n_k, block_q, block_k, causal=True)
        assert f"{full:,} full, {diagonal:,} diagonal and {skipped:,} skipped" in drawing.caption
        assert f"{skipped / (full + diagonal + skipped):.1%} saved" in drawing.caption


@pytest.mark.parametrize("name", ["n_q", "n_k", "block_q", "block_k"])
def test_each_slider_changes_the_picture_and_its_numbers(name):
    demo = causal_tiles()
    pictures = set()
    for _, value in choices(demo.controls[name]):
        demo.controls[name].value = value
        pictures.add(demo.picture.value)
        shown = int(re.search(r"([\d,]+) skipped: never loaded", demo.picture.value)[1].replace(",", ""))
        assert shown == tile_counts(**demo.values, causal=True)[2]
    assert len(pictures) == len(choices(demo.controls[name]))


def test_the_ragged_choices_are_offered():
    assert 1000 in LENGTHS and 96 in BLOCKS
    assert "cut off" in causal_tiles(1000, 1000, 96, 96).drawing.note
