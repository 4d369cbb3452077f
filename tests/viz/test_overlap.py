"""The drawing of the timeline shows the schedule: every job at its time, and its numbers in words."""
import itertools
import re
import xml.etree.ElementTree as ET

import pytest
from readable import SVG, words

from flashedu.viz.overlap import KINDS, LEFT, RIGHT, exp_share, overlap_drawing
from flashedu.viz.schedule import finish, utilisation, version_2, version_3


def test_the_exponentials_share_is_the_hardwares():
    for head_dim, share in ((256, 0.25), (128, 0.5), (64, 1.0)):
        assert exp_share(head_dim) == pytest.approx(989e12 / (4 * head_dim) / (16 * 132 * 1.83e9))
        assert exp_share(head_dim) == pytest.approx(share, rel=1e-3)
    assert exp_share(128, "A100 80GB") == pytest.approx(312e12 / 512 / (16 * 108 * 1.41e9))


@pytest.mark.parametrize("ways", list(itertools.product((True, False), repeat=2)))
def test_each_job_is_a_box_at_its_time(ways):
    softmax, load, stages, tiles = 0.5, 0.75, 2, 5
    jobs = version_2(tiles, softmax, load) + version_3(tiles, softmax, load, stages, *ways)
    scale = (RIGHT - LEFT) / max(job.stop for job in jobs)
    root = ET.fromstring(overlap_drawing(softmax, load, stages, tiles, *ways).svg)
    for kind, (_, fill) in KINDS.items():
        d = "".join(found.get("d") for found in root.iter(f"{SVG}path") if found.get("fill") == fill)
        drawn = sorted((float(a), float(b)) for a, y, b in re.findall(r"M([\d.]+) ([\d.]+)H([\d.]+)v26", d) if float(y) < 400)
        expected = sorted((LEFT + scale * job.start, LEFT + scale * job.stop) for job in jobs if job.name == kind)
        assert drawn == [pytest.approx(box, abs=0.06) for box in expected]


@pytest.mark.parametrize("softmax, stages, ways", list(itertools.product((0.1, 0.5, 1.0, 2.0), (1, 2), ((True, False), (False, True)))))
def test_the_numbers_are_the_schedules(softmax, stages, ways):
    drawing = overlap_drawing(softmax, 0.75, stages, 6, *ways)
    second, third = version_2(6, softmax, 0.75), version_3(6, softmax, 0.75, stages, *ways)
    assert [line for line in words(drawing) if line.startswith("tensor core busy")] == [f"tensor core busy {utilisation(jobs):.0%}" for jobs in (second, third)]
    assert f"Version 3 is {finish(second) / finish(third):.2f} times as fast." in words(drawing)
    assert f"done at {finish(second):.1f} and {finish(third):.1f}" in drawing.caption
    long = [utilisation(version_2(128, softmax, 0.75)), utilisation(version_3(128, softmax, 0.75, stages, *ways))]
    assert f"over 128 tiles {long[0]:.1%} and {long[1]:.1%}" in drawing.caption


def test_notes_say_what_limits_version_3():
    assert "one buffer" in overlap_drawing(0.5, 1.0, 1, 6).note
    assert f"{utilisation(version_3(6, 0.5, 1.0, 2)):.0%}" in overlap_drawing(0.5, 1.0, 1, 6).note
    assert "exp unit is the limit" in overlap_drawing(2.0, 0.5, 2, 6).note and "at most 50%" in overlap_drawing(2.0, 0.5, 2, 6).note
    assert "producer is the limit" in overlap_drawing(0.5, 1.5, 2, 6).note and "at most 67%" in overlap_drawing(0.5, 1.5, 2, 6).note
    assert "Two buffers would do" in overlap_drawing(0.5, 0.5, 4, 6).note
    assert "Only loads" in overlap_drawing(0.5, 0.5, 2, 6, ping_pong=False).note
    assert overlap_drawing(0.5, 0.5, 2, 6).note == ""
