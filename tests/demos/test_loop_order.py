"""The demo of the loop orders: both versions on the same tiles, and bytes that are those of the closed forms."""
import itertools
from xml.etree import ElementTree

import pytest
from readable import SVG, assert_readable, said

from flashedu import cost
from flashedu.demos.demo import choices
from flashedu.demos.loop_order import loop_order

PROBLEMS = [(1024, 128, 128, 128, 2), (1024, 256, 64, 512, 4), (1000, 64, 100, 64, 2), (256, 128, 512, 512, 2), (1000, 256, 64, 64, 1)]


@pytest.mark.parametrize("name", ["block_q", "block_k", "n", "head_dim", "itemsize", "step"])
def test_every_position_of_a_control_changes_the_picture(name):
    demo = loop_order(n=512)
    pictures = []
    for _, value in choices(demo.controls[name]):
        demo.controls[name].value = value
        assert "could not be drawn" not in demo.picture.value
        assert_readable(demo.drawing, 546)
        pictures.append(demo.picture.value)
    assert len(set(pictures)) == len(pictures)


def test_readable_with_every_pair_of_blocks():
    demo = loop_order(n=1024, head_dim=256, itemsize=4)
    for block_q, block_k in itertools.product(*([value for _, value in choices(demo.controls[name])] for name in ("block_q", "block_k"))):
        demo.controls["block_q"].value, demo.controls["block_k"].value = block_q, block_k
        for step in (0, 1, demo.controls["step"].max):
            demo.controls["step"].value = step
            assert_readable(demo.drawing, 546)


def closed_forms(n, head_dim, block_q, block_k, itemsize):
    return [form(n, n, head_dim, block_q, block_k, itemsize) for form in (cost.fa1_traffic, cost.tiled_traffic)]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_totals_are_those_of_the_closed_forms(problem):
    demo = loop_order(*problem)
    demo.controls["step"].value = demo.controls["step"].max
    first, second = closed_forms(*problem)
    naive = sum(cost.naive_traffic(problem[0], problem[1], 1, 1, problem[4]))
    words, caption = said(demo.drawing), demo.drawing.caption
    for read, written in (first, second):
        assert f"reads {read / 1e6:,.2f} MB and writes {written / 1e6:,.2f} MB" in caption
        assert f"{(read + written) / 1e6:,.2f} MB of {(read + written) / 1e6:,.2f} MB" in words
    assert f"{naive / 1e6:,.2f} MB" in words.split(" | ")
    assert f"Version 1 writes {first[1] / second[1]:.1f} times as much as version 2" in words
    ratio = sum(first) / sum(second)
    if 0.96 < ratio < 1.04:
        assert "as many bytes" in words
    else:
        more = 1 if ratio > 1 else 2
        assert f"Version {more} moves {max(ratio, 1 / ratio):.1f} times the bytes of version {3 - more}" in words


@pytest.mark.parametrize("problem", PROBLEMS)
def test_bars_are_as_long_as_their_numbers(problem):
    demo = loop_order(*problem)
    demo.controls["step"].value = demo.controls["step"].max
    rows = {}
    for element in ElementTree.fromstring(demo.drawing.svg).iter(SVG + "rect"):
        x, y, width, height = (float(element.get(key)) for key in ("x", "y", "width", "height"))
        if height == 30 and element.get("fill") != "none":
            rows.setdefault(y, []).append((x, width))
    naive = sum(cost.naive_traffic(problem[0], problem[1], 1, 1, problem[4]))
    first, second = closed_forms(*problem)
    unit = 580 / max(naive, sum(first), sum(second))
    for bars, sizes in zip((rows[y] for y in sorted(rows)), (first, second, (naive,)), strict=True):
        assert [width for _, width in bars] == pytest.approx([size * unit for size in sizes], abs=0.1)
        assert bars[-1][0] == pytest.approx(110 + sum(sizes[:-1]) * unit, abs=0.1)  # end to end


def test_halfway_through_both_have_done_the_same_tiles_in_another_order():
    n, d, block = 512, 64, 128  # 4 x 4 tiles
    words = said(loop_order(n, d, block, block, 2, step=8).drawing)
    rows = n // 2
    # two columns: half of the keys, all states to and fro twice; two rows: half of the queries and outputs, all keys twice
    first = 2 * (2 * rows * d + 2 * n * (3 * d + 4))
    second = 2 * (rows * (2 * d + 1) + 2 * 2 * n * d)
    assert f"{first / 1e6:.2f} MB of" in words and f"{second / 1e6:.2f} MB of" in words
    assert "q tile 4 of 4 | k tile 2 of 4" in words and "q tile 2 of 4 | k tile 4 of 4" in words
    assert "reads from HBM | q, o, m, l | writes to HBM | o, m, l |" in words
    assert "reads from HBM | k, v | writes to HBM | o, lse |" in words


@pytest.mark.parametrize("options, words", [
    ({"n": 256, "block_q": 512, "block_k": 256}, "no order"),
    ({"n": 256, "block_q": 512, "block_k": 64}, "larger than N = 256 is cut"),
    ({"block_q": 64, "block_k": 64, "head_dim": 256}, "3 x 256 elements of q and o, naive 4 x 64"),
    ({"block_q": 64, "block_k": 512, "head_dim": 64}, "Version 2 reads K and V 16 times, version 1 the state only 2 times"),
    ({"block_q": 128, "block_k": 128, "head_dim": 64}, ""),
])
def test_odd_choices_explain_themselves(options, words):
    note = loop_order(**options).drawing.note
    assert words in note and bool(words) is bool(note)
