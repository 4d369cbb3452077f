"""The demo of tiling: every position draws, says what the machine counts, and tells why tiles do not fit."""
import itertools
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from readable import SVG, assert_readable, said

from flashedu import cost, hardware
from flashedu.demos.demo import choices
from flashedu.demos.tiling import moved_bytes, tiling
from flashedu.machine import Machine
from flashedu.reference import tiled_on_machine
from flashedu.viz.board import tile_at
from flashedu.viz.tiling import sram_parts, tiling_drawing


def boxes(drawing):
    """(x, y, width, height, fill) of every rectangle."""
    for element in ElementTree.fromstring(drawing.svg).iter(SVG + "rect"):
        yield (*(float(element.get(key)) for key in ("x", "y", "width", "height")), element.get("fill"))


@pytest.mark.parametrize("name", ["block_q", "block_k", "n", "head_dim", "itemsize", "gpu", "step"])
def test_every_position_of_a_control_changes_the_picture(name):
    demo = tiling(n=512, block_k=128)
    assert name != "step" or len(choices(demo.controls[name])) == 4 * 4 + 1
    pictures = []
    for _, value in choices(demo.controls[name]):
        demo.controls[name].value = value
        assert "could not be drawn" not in demo.picture.value
        assert_readable(demo.drawing, 580)
        pictures.append(demo.picture.value)
    assert len(set(pictures)) == len(pictures)


def test_nothing_runs_out_of_the_picture_or_over_its_neighbour_anywhere():
    demo = tiling()
    names = ["n", "block_q", "block_k", "head_dim", "itemsize", "gpu"]
    ends = [[value for _, value in choices(demo.controls[name])] for name in names]
    ends = [values if name in ("block_q", "block_k") else [values[0], values[-1]] for name, values in zip(names, ends)]
    ends[-1] = ["T4", "RTX 3090", "A100 40GB", "H100 PCIe"]  # one for each size of SRAM
    for values in itertools.product(*ends):
        chosen = dict(zip(names, values))
        gpu = chosen.pop("gpu")
        total = sum(cost.tiled_traffic(chosen["n"], *(chosen[name] for name in ("n", "head_dim", "block_q", "block_k", "itemsize"))))
        tiles = sum(cost.tile_counts(chosen["n"], chosen["n"], chosen["block_q"], chosen["block_k"]))
        drawing = tiling_drawing(**chosen, gpu_name=gpu, step=tiles, moved_bytes=total, total_bytes=total)
        assert_readable(drawing, 580)
        assert max(x + width for x, _, width, _, _ in boxes(drawing)) <= 941


@pytest.mark.parametrize("n, block_q, block_k, head_dim, itemsize", [
    (1024, 128, 64, 128, 2), (1000, 100, 128, 64, 4), (256, 512, 512, 32, 1), (4096, 16, 32, 96, 2), (1000, 512, 16, 256, 2)])
def test_bytes_are_those_of_the_closed_forms(n, block_q, block_k, head_dim, itemsize):
    demo = tiling(n, head_dim, block_q, block_k, itemsize)
    last = demo.controls["step"].max
    demo.controls["step"].value = last
    total, naive = sum(cost.tiled_traffic(n, n, head_dim, block_q, block_k, itemsize)), sum(cost.naive_traffic(n, head_dim, 1, 1, itemsize))
    assert moved_bytes(n, head_dim, block_q, block_k, itemsize, last) == total
    words = said(demo.drawing)
    assert f"tiled, so far: {total / 1e6:,.2f} MB of {total / 1e6:,.2f} MB" in words
    assert f"naive, in all: {naive / 1e6:,.2f} MB" in words and f"{total / naive:.0%} of naive's traffic" in words
    bars = {width for _, y, width, _, _ in boxes(demo.drawing) if y in (156, 232)}
    assert max(bars) == pytest.approx(480, abs=0.1)
    assert min(bars) == pytest.approx(480 * min(total, naive) / max(total, naive), abs=0.1)


@pytest.mark.parametrize("step", [0, 1, 4, 5, 7, 12, 15, 16])
def test_bytes_so_far_are_those_of_machines_that_stop_there(step):
    """One machine runs the finished rows of tiles, on real arrays; another the begun row as far as it has come."""
    n, d, block = 1000, 32, 256  # 4 x 4 tiles
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, d), dtype=np.float32) for _ in range(3))

    def run(q, k, v):
        machine = Machine.for_attention(q, k, v, 10**7, itemsize=2)
        tiled_on_machine(machine, block, block)
        return machine

    done, inner = divmod(step, 4)
    expected = 0
    if done:
        machine = run(q[: done * block], k, v)
        expected += machine.read_bytes + machine.written_bytes
    if inner:
        expected += run(q[done * block :][:block], k[: inner * block], v[: inner * block]).read_bytes  # nothing is written yet
    assert moved_bytes(n, d, block, block, 2, step) == expected
    assert f"tiled, so far: {expected / 1e6:,.2f} MB of" in said(tiling(n, d, block, block, 2, step=step).drawing)


@pytest.mark.parametrize("block_q, block_k, head_dim", [(128, 64, 128), (512, 512, 256), (16, 100, 96)])
def test_sram_counts_every_part(block_q, block_k, head_dim):
    assert sum(sram_parts(block_q, block_k, head_dim, 4).values()) == cost.tiled_sram(block_q, block_k, head_dim, 4)
    two = sram_parts(block_q, block_k, head_dim, 2)
    inputs = (block_q + 2 * block_k) * head_dim
    assert sum(two.values()) == cost.tiled_sram(block_q, block_k, head_dim, 4) - 2 * inputs  # only these are 16 bits wide


@pytest.mark.parametrize("gpu", hardware.GPUS)
@pytest.mark.parametrize("block_k", [16, 64, 128, 256, 512])
def test_the_bar_overflows_exactly_where_the_parts_do(gpu, block_k):
    drawing = tiling(n=1024, head_dim=128, block_q=128, block_k=block_k, itemsize=2, gpu=gpu).drawing
    needed, capacity = sum(sram_parts(128, block_k, 128, 2).values()), hardware.gpu(gpu).block_shared_bytes
    formula = cost.block_sizes(capacity, 128, 2)
    formula_needs = sum(sram_parts(*formula, 128, 2).values())
    words, spilt = said(drawing), [box for box in boxes(drawing) if box[4] == "url(#flashedu-tiling-spill)"]
    unit = 920 / max(1.7 * capacity, needed, formula_needs)
    filled = [(width, fill) for _, y, width, height, fill in boxes(drawing) if (y, height) == (474, 34) and fill != "none" and "spill" not in fill]
    assert sum(width for width, _ in filled) == pytest.approx(needed * unit, abs=0.4) and len(filled) == 6
    assert f"block_q {formula[0]}, block_k {formula[1]} would need {formula_needs / 1024:,.1f}".removesuffix(".0") in words
    assert f"needs {needed / 1024:,.1f}".removesuffix(".0") + " KiB" in words and f"capacity of a block {capacity // 1024} KiB" in words
    if needed <= capacity:
        assert "fits" in words and not spilt and "Needs" not in drawing.note
    else:
        assert f"{(needed - capacity) / 1024:,.1f}".removesuffix(".0") + " KiB too much" in words
        assert spilt[0][2] == pytest.approx((needed - capacity) * unit, abs=0.2)
        assert drawing.note.startswith("Needs ") and f"a block of {gpu} has {capacity // 1024} KiB" in drawing.note


@pytest.mark.parametrize("block_q, block_k, head_dim, itemsize, guilty, size_kib", [
    (512, 512, 32, 2, "S", 1024), (16, 512, 256, 4, "k and v", 1024), (512, 16, 256, 1, "the accumulator", 512), (128, 256, 128, 2, "k and v", 128)])
def test_the_note_says_which_part_is_to_blame(block_q, block_k, head_dim, itemsize, guilty, size_kib):
    note = tiling(1024, head_dim, block_q, block_k, itemsize).drawing.note
    assert re.search(rf"The largest part is {guilty}, {size_kib:,} KiB:", note), note


@pytest.mark.parametrize("options, words", [
    ({"n": 256, "block_q": 16, "block_k": 512, "head_dim": 32}, "larger than N = 256 is cut"),
    ({"n": 4096, "block_q": 16, "block_k": 16, "head_dim": 256}, "read 256 times"),
    ({"n": 1000, "block_q": 64, "block_k": 64, "head_dim": 32}, "no block size has to divide N"),
    ({"n": 1024, "block_q": 64, "block_k": 64, "head_dim": 64}, ""),
])
def test_odd_choices_explain_themselves(options, words):
    note = tiling(**options).drawing.note
    assert words in note and bool(words) is bool(note)


def test_the_step_follows_the_number_of_tiles():
    demo = tiling(n=1024, block_q=128, block_k=128, step=64)
    demo.controls["block_k"].value = 512
    assert demo.controls["step"].max == demo.controls["step"].value == 16
    demo.controls["block_k"].value = 64
    assert demo.controls["step"].max == 128
    assert demo.children[0].children[-1].max == 128  # the player's
    assert "Tile 16 of 128" in said(demo.drawing) and "query tile 1 of 8, key tile 16 of 16" in said(demo.drawing)


@pytest.mark.parametrize("queries_outside", [True, False])
def test_tiles_come_in_loop_order(queries_outside):
    order = [tile_at(step, 10, 4, 3, queries_outside) for step in range(13)]  # 3 x 4 tiles
    pairs = list(itertools.product(range(3), range(4))) if queries_outside else [(i, j) for j in range(4) for i in range(3)]
    assert order == [None, *pairs]
