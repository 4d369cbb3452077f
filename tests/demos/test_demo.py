"""The frame of the demos: errors are shown, a saved notebook keeps a picture, a page holds every frame."""

import base64
import io
import json
import re
from xml.etree import ElementTree

import ipywidgets as widgets
import numpy as np
import pytest
from PIL import Image

from flashedu import demos
from flashedu.demos.demo import MOST_FRAMES, Demo, choices, counter, menu, player, slider, switch
from flashedu.viz.svg import Drawing, text


def drawn(step, name="a", loud=False):
    """A picture of a step"""
    return Drawing(text(20, 40, f"{name}{step}{'!' * loud}"), 60, f"Step {step} of </script> & {name}.")


def make(draw=drawn, **options):
    controls = {"step": counter("step", 2, 5, least=1), "name": menu("name", ["a", "<b>"], "a"), "loud": switch("loud")}
    return Demo(draw, controls, moves="step", **options)


def failing(step, name, loud):
    if step == 3:
        raise ValueError("no <picture> for 3")
    return drawn(step, name, loud)


def frames(path):
    """What a page holds: its data, as a browser finds it, and its text."""
    page = path.read_text(encoding="utf-8")
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL)[1]), page


def test_each_change_is_drawn_and_each_control_is_heard():
    demo, seen = make(), set()
    for name, value in [("step", 4), ("name", "<b>"), ("loud", True)]:
        seen.add(demo.picture.value)
        demo.controls[name].value = value
        assert demo.picture.value == drawn(**demo.values).markup
    assert len(seen) == 3 and demo.picture.value not in seen


def test_an_error_is_shown_and_the_demo_lives_on():
    demo = make(failing)
    demo.controls["step"].value = 3
    shown = demo.picture.value
    assert 'role="alert"' in shown and "ValueError: no &lt;picture&gt; for 3" in shown and "<picture>" not in shown
    assert "in failing" in shown and "<figure" not in shown
    demo.controls["step"].value = 4
    assert demo.picture.value == drawn(4).markup


def test_an_error_at_the_start_does_not_hide_the_controls():
    demo = make(lambda step, name, loud: 1 / 0)
    assert "ZeroDivisionError" in demo.picture.value and demo.children[0].children[0] is demo.controls["step"]
    assert "ZeroDivisionError" in demo._repr_mimebundle_()["text/html"]
    assert "ZeroDivisionError" in demo._repr_mimebundle_()["text/plain"]


def test_an_interrupt_is_not_swallowed():
    def interrupted(step, name, loud):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(interrupted)


def test_adjust_may_move_controls_and_the_picture_is_drawn_once():
    calls = []

    def draw(step, name, loud):
        calls.append(step)
        return drawn(step, name, loud)

    def adjust(controls):
        controls["step"].max = 3 if controls["loud"].value else 5

    demo = make(draw, adjust=adjust)
    demo.controls["step"].value = 5
    calls.clear()
    demo.controls["loud"].value = True
    assert calls == [3] and demo.picture.value == drawn(3, loud=True).markup
    demo.controls["step"].value = 1
    assert calls == [3, 1]


def test_an_error_in_adjust_is_shown():
    demo = make(adjust=lambda controls: controls["nothing"])
    assert "KeyError" in demo.picture.value


def test_a_saved_notebook_keeps_a_picture():
    demo = make()
    demo.controls["step"].value = 5
    bundle = demo._repr_mimebundle_()
    assert set(bundle) == {"application/vnd.jupyter.widget-view+json", "text/html", "image/png", "text/plain"}
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == demo.model_id
    picture = Image.open(io.BytesIO(base64.b64decode(bundle["image/png"])))
    assert picture.format == "PNG" and picture.size == (960, 60)
    assert 20 < np.sum(np.asarray(picture.convert("L")) < 128) < 2000  # letters, and paper around them
    still = ElementTree.fromstring(re.sub("<img([^>]*)>", r"<img\1/>", bundle["text/html"]))
    assert still.tag == "figure" and still.find("img").get("alt") == "Step 5 of </script> & a."
    assert still.find("img").get("src") == f"data:image/png;base64,{bundle['image/png']}"
    assert bundle["text/plain"] == "Step 5 of </script> & a."


def test_a_page_holds_each_position_and_starts_at_the_present_one(tmp_path):
    demo, path = make(), tmp_path / "page.html"
    demo.controls["step"].value = 4
    demo.to_html(path)
    data, page = frames(path)
    assert data["controls"] == [{"label": "step", "options": ["1", "2", "3", "4", "5"], "start": 3}]
    assert data["frames"] == [drawn(step).markup for step in range(1, 6)]
    assert "name: a, loud: off" in page and "<title>A picture of a step</title>" in page
    assert "://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert demo.values["step"] == 4


def test_a_page_over_several_controls_holds_every_combination(tmp_path):
    demo, path = make(), tmp_path / "page.html"
    demo.controls["loud"].value = True
    demo.to_html(path, over=["loud", "step"])
    data, _ = frames(path)
    assert [(c["options"], c["start"]) for c in data["controls"]] == [(["off", "on"], 1), (["1", "2", "3", "4", "5"], 1)]
    assert data["frames"] == [drawn(step, loud=loud).markup for loud in (False, True) for step in range(1, 6)]


def test_nothing_in_a_frame_ends_the_script(tmp_path):
    make().to_html(tmp_path / "page.html", over="name")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("</script>") == 2  # of the data, and of the code
    assert "&lt;/script&gt;" in frames(tmp_path / "page.html")[0]["frames"][0]


@pytest.mark.parametrize("over", ["stepp", ["step", "colour"], []])
def test_a_page_over_no_control_is_refused(over, tmp_path):
    with pytest.raises(ValueError, match="step, name, loud"):
        make().to_html(tmp_path / "page.html", over=over)
    assert not (tmp_path / "page.html").exists()


def test_a_page_of_too_many_frames_is_refused(tmp_path):
    many = {"a": counter("a", 0, 49), "b": counter("b", 0, 20)}
    demo = Demo(lambda a, b: drawn(a), many, moves="a")
    with pytest.raises(ValueError, match=f"50 x 21 positions of a, b are 1,050 pictures, and a page holds {MOST_FRAMES:,}"):
        demo.to_html(tmp_path / "page.html", over=["a", "b"])


def test_choices_are_what_a_control_takes():
    assert choices(switch("s")) == [("off", False), ("on", True)]
    assert choices(counter("c", 3, 4, least=2)) == [("2", 2), ("3", 3), ("4", 4)]
    assert choices(slider("s", [16, 32], 32)) == [("16", 16), ("32", 32)]
    assert choices(menu("m", [("half", 2), ("single", 4)], 4)) == [("half", 2), ("single", 4)]


def test_a_player_follows_its_counter():
    steps = counter("step", 2, 5)
    play = player(steps)
    assert (play.min, play.max, play.value) == (0, 5, 2)
    steps.max = 9
    steps.value = 7
    assert (play.max, play.value) == (9, 7)
    play.value = 8
    assert steps.value == 8
    steps.max = 4
    assert (play.max, play.value, steps.value) == (4, 4, 4)


def test_controls_are_labelled_and_reached():
    for control in (slider("s (keys)", [1, 2], 1), counter("c", 0, 3), menu("m", ["x"], "x"), switch("w")):
        assert isinstance(control, widgets.Widget) and control.description and not control.disabled


@pytest.mark.parametrize("name", demos.__all__)
def test_each_position_of_the_main_control_is_another_picture(name):
    """Also without what is measured anew at every call."""
    demo = getattr(demos, name)()
    main, kept = demo.controls[demo.moves], demo.values
    bodies = [re.sub(r"[\d.,]+ [KM]iB", "so much", demo.draw(**{**kept, demo.moves: value}).body) for _, value in choices(main)]
    assert [label for (label, _), before, body in zip(choices(main)[1:], bodies, bodies[1:]) if body == before] == []
