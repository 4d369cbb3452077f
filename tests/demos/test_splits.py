"""The splits demo: every position of every control, its waves against programs that are given out one by one."""
import heapq
import itertools
import re

import pytest
from readable import assert_readable, said

from flashedu.demos.demo import choices
from flashedu.demos.splits import splits
from flashedu.hardware import GPUS
from flashedu.splits import MERGE, PROGRAMS, START, bandwidth_share
from flashedu.viz.splits import BLOCK_K, HEIGHT, splits_drawing

POSITIONS = {name: [value for _, value in choices(control)] for name, control in splits().controls.items()}
LAYER = splits().values


def finish(heads, tiles, parts, places):
    """(time, waves) in units of a tile: each program goes to the place that is free first."""
    free = [0] * places
    for _ in range(heads * parts):
        heapq.heapreplace(free, free[0] + -(-tiles // parts) + START)
    return max(free), max(free) // (-(-tiles // parts) + START)


@pytest.mark.parametrize("name", POSITIONS)
def test_every_position_draws_another_picture(name):
    demo, seen = splits(), set()
    for value in POSITIONS[name]:
        demo.controls[name].value = value
        assert "could not be drawn" not in demo.picture.value
        assert_readable(demo.drawing, HEIGHT)
        seen.add(demo.picture.value)
    assert len(seen) == len(POSITIONS[name])


@pytest.mark.parametrize("gpu", GPUS)
def test_extremes_can_be_read(gpu):
    ends = [(values[0], values[-1]) for values in list(POSITIONS.values())[:4]]
    for chosen in itertools.product(*ends):
        assert_readable(splits_drawing(*chosen, gpu), HEIGHT)


@pytest.mark.parametrize("heads, tiles, parts, sms", [(8, 2048, 1, 132), (8, 2048, 33, 132), (8, 2048, 34, 132), (128, 256, 3, 108), (1, 5, 16, 40), (264, 16, 1, 132)])
def test_the_share_is_that_of_programs_given_out_one_by_one(heads, tiles, parts, sms):
    time, _ = finish(heads, tiles, parts, PROGRAMS * sms)
    memory = heads * tiles / sms
    assert bandwidth_share(heads, tiles, parts, sms) == pytest.approx(memory / (max(time, START + memory) + (MERGE if parts > 1 else 0)))


@pytest.mark.parametrize("parts, n, batch, gpu", list(itertools.product((1, 33, 512), (512, 131_072), (1, 16), ("T4", "H200", "B200"))))
def test_it_says_and_draws_what_was_counted(parts, n, batch, gpu):
    heads, tiles, sms = 8 * batch, n // BLOCK_K, GPUS[gpu].sms
    drawing = splits_drawing(parts, n, batch, 8, gpu)
    _, waves = finish(heads, tiles, parts, PROGRAMS * sms)
    last = heads * parts - (waves - 1) * PROGRAMS * sms
    assert f"= {heads * parts:,} programs" in said(drawing)
    assert f"{last:,} of {PROGRAMS * sms:,} places busy in {f'the last of {waves:,} waves' if waves > 1 else 'the only wave'}" in said(drawing)
    filled = re.search(r'<path d="([^"]*)" fill="#00755e"/>', drawing.body)[1]
    assert filled.count("M") == last
    width, dash, gap = map(float, re.search(r'x2="(\d+)"[^>]*stroke="#b35900"[^>]*stroke-dasharray="(\S+) (\S+)"', drawing.body).groups())
    assert (width - 20) / (dash + gap) == pytest.approx(min(parts, tiles), rel=1e-3)
    share = bandwidth_share(heads, tiles, parts, sms)
    assert f"{share:.1%} of the bandwidth" in said(drawing)
    assert ("parts are empty" in drawing.note) == (parts > tiles)


def test_the_layer_in_numbers():
    cache_bytes = 2 * 131_072 * 8 * 128 * 2
    drawing = splits_drawing(**{**LAYER, "splits": 33})
    assert f"the cache: {cache_bytes / 1e6:.0f} MB" in said(drawing)
    assert f"at full bandwidth: {cache_bytes / GPUS['H200'].hbm_bytes_per_s * 1e6:.0f} µs" in said(drawing)
    assert "the best is" in drawing.caption and "with 33 parts" in drawing.caption


def test_it_says_that_no_cut_is_faster_only_where_none_is():
    seen = set()
    for parts, n, batch in itertools.product(POSITIONS["splits"], POSITIONS["n"], (1, 16, 64)):
        note = splits_drawing(parts, n, batch, 8, "H200").note
        if note.startswith("The memory is at work"):
            shares = {other: bandwidth_share(8 * batch, n // BLOCK_K, other, 132) for other in range(1, 513)}
            fastest = {other for other, share in shares.items() if share == max(shares.values())}
            assert parts in fastest if "no other cut" in note else fastest == {1}
            seen.add("no other cut" in note)
    assert seen == {True, False}
