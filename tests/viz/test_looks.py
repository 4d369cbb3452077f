"""One thing has one look in every figure: whoever is compared, what a mask hides, and what does not fit."""
import re
from collections import defaultdict

import pytest
from readable import words

from flashedu.viz import decode, kernels, ladder, limits, three_versions
from flashedu.viz.causal import causal_tiles_drawing
from flashedu.viz.figure import COLOURS, SHADE
from flashedu.viz.ring import ring_drawing
from flashedu.viz.tiles import EDGE, KINDS

ALIASES = {"this package": "flash", "one part": "flash", "keys split": "decode"}  # other names for this course's kernels


def looks():
    """{who: {(colour, marker)}} over all figures that compare."""
    found = defaultdict(set)
    for label, colour, marker, _ in [*kernels.CONTENDERS.values(), *ladder.RUNGS.values()]:
        found[label.removeprefix("torch, ")].add((colour, marker))
    for label, look in limits.LOOKS.items():
        found[label].add(look)
    for label, (colour, _, marker) in decode.LINES.items():
        if not label.endswith("predicted"):
            found[label].add((colour, marker))
    for label, (_, marker, _) in three_versions.WAYS.items():
        found[label.split(",")[0]].add(("output", marker))
    for label in list(found):
        name = ALIASES.get(label) or re.sub(r", (Triton|Gluon)$", "", label)
        if name != label:
            found[name] |= found.pop(label)
    return found


def test_who_is_compared_has_one_colour_and_one_mark():
    found = looks()
    assert {"naive", "flash", "decode", "FlashAttention-2", "cuDNN", "memory-efficient", "version 1", "version 2"} <= set(found)
    assert {name: look for name, look in found.items() if len(look) > 1} == {}


@pytest.mark.parametrize("drawing", [causal_tiles_drawing(256, 256, 64, 64), ring_drawing({"zigzag": [(0, 3), (1, 2)]})])
def test_what_a_mask_hides_is_the_same_grey(drawing):
    shades = re.findall(f'fill="{COLOURS["masked"]}"([^/]*)', drawing.svg)
    assert {re.search(r'opacity="([^"]*)"', shade)[1] for shade in shades} == {str(SHADE)}


def test_the_legend_has_the_words_of_the_tile_map():
    said = words(causal_tiles_drawing(256, 256, 64, 64))
    assert [next(word for word in said if word.endswith(kind)) for kind in KINDS.values()] == ["6 " + KINDS[2], "4 " + KINDS[1], "6 " + KINDS[0]]
    assert EDGE in said
