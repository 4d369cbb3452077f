"""Every position of the timeline's controls draws: well-formed, inside its frame, never two words on each other."""
import itertools

import pytest
from readable import assert_readable

from flashedu.demos.demo import choices
from flashedu.demos.overlap import overlap
from flashedu.viz.overlap import exp_share


@pytest.fixture(scope="module")
def demo():
    return overlap()


def test_every_pair_of_positions_is_readable(demo):
    start = demo.values
    offered = {name: [value for _, value in choices(control)] for name, control in demo.controls.items()}
    for first, second in itertools.combinations(offered, 2):
        for one, other in itertools.product(offered[first], offered[second]):
            assert_readable(demo.draw(**{**start, first: one, second: other}), 500)


def test_the_widest_words_of_all(demo):
    for softmax, stages, ways in itertools.product((0.1, exp_share(32)), (1, 4), itertools.product((True, False), repeat=2)):
        assert_readable(demo.draw(softmax, 1.5, stages, 8, *ways), 500)


@pytest.mark.parametrize("name", ["softmax", "load", "tiles", "ping_pong", "inside"])
def test_each_control_changes_the_picture(name):
    demo = overlap()
    pictures = set()
    for _, value in choices(demo.controls[name]):
        demo.controls[name].value = value
        assert "could not be drawn" not in demo.picture.value
        pictures.add(demo.picture.value)
    assert len(pictures) == len(choices(demo.controls[name]))


def test_the_second_buffer_changes_the_picture_and_the_third_says_why_not():
    demo = overlap(load=1.0, stages=1)
    one = demo.drawing
    demo.controls["stages"].value = 2
    assert demo.drawing.body != one.body and demo.drawing.body in demo.picture.value
    demo.controls["stages"].value = 3
    assert "Two buffers would do" in demo.picture.value


def test_the_positions_are_head_dimensions_of_an_h100(demo):
    labels = [label for label, _ in choices(demo.controls["softmax"])]
    assert {"0.25 (D=256)", "0.50 (D=128)", "1.00 (D=64)", "2.00 (D=32)"} <= set(labels)
    values = [value for _, value in choices(demo.controls["softmax"])]
    assert values == sorted(values) and demo.values["softmax"] == exp_share(128)


@pytest.mark.parametrize("chosen", [{"head_dim": 64}, {"load": 1.5, "stages": 1}, {"tiles": 8, "ping_pong": False, "inside": True}])
def test_a_chapter_can_open_it_elsewhere(chosen):
    values = overlap(**chosen).values
    assert all(values[name] == value for name, value in chosen.items() if name in values)
    assert values["softmax"] == exp_share(chosen.get("head_dim", 128))
