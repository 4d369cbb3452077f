"""Every demo of the lecture notebook in a real JupyterLab: what a lecturer does with it, and what the room sees."""

import re

import pytest
from ipywidgets import Play
from lab_in_browser import names
from readable import contrast

from flashedu import demos
from flashedu.demos.demo import choices
from flashedu.viz.svg import SIZE

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

PLAYED = [name for name in names() if any(isinstance(part, Play) for part in getattr(demos, name)().children[0].children)]
SMALLEST_TEXT_PX = 14
SCREENS = [(1280, 720), (1920, 1080)]
# the smallest text of a demo: drawn letters through their matrix, all others as computed
TEXT_PX = """root => {
  const sizes = [];
  for (const node of root.querySelectorAll('*')) {
    if (![...node.childNodes].some(child => child.nodeType === Node.TEXT_NODE && child.data.trim())) continue;
    if (!node.getClientRects().length || node.closest('.jp-mod-hidden, defs, style')) continue;
    const drawn = node.getScreenCTM ? node.getScreenCTM() : null;
    const size = parseFloat(getComputedStyle(node).fontSize) * (drawn ? Math.hypot(drawn.a, drawn.b) : 1);
    sizes.push([size, node.textContent.trim().slice(0, 60)]);
  }
  return sizes.sort((a, b) => a[0] - b[0])[0];
}"""
# the letters of the controls, and those that a drawing has by default
LETTERS_PX = """(root, units) => {
  const drawn = root.querySelector('figure > svg').getScreenCTM().a * units;
  const controls = [...root.querySelector('.widget-hbox').querySelectorAll('.widget-label, .widget-readout, select, label')];
  return [Math.min(...controls.map(part => parseFloat(getComputedStyle(part).fontSize))), drawn];
}"""
OUT = "name => jupyterapp.shell.currentWidget.content.widgets.find(cell => cell.node.dataset.demo === name).model.executionCount"
PLACES = """cell => {
  const outer = cell.closest('.jp-WindowedPanel-outer') || document.scrollingElement;
  const next = cell.querySelector('.flashedu-demo figcaption'), below = cell.nextElementSibling;
  const bottom = next.parentElement.getBoundingClientRect().bottom;
  return [outer.scrollTop, next.getBoundingClientRect().top, bottom, below ? below.getBoundingClientRect().top : null];
}"""


def said(drawing):
    """What a drawing says of itself, in a label and a caption."""
    return alike(drawing.alt or drawing.caption), alike(f"{drawing.caption} {f'Note: {drawing.note}' if drawing.note else ''}")


def alike(words):
    """Without what is measured anew at every call: a peak of memory."""
    return " ".join(re.sub(r"[\d.,]+ [KM]iB at the peak", "so much at the peak", words).split())


def settle(shown):
    """Wait until the picture is that of the main control's value, as a demo of our own draws it with what the kernel holds."""
    out = shown.page.evaluate(OUT, shown.name)
    for _ in range(50):
        own = getattr(demos, shown.name)()
        values = shown.notebook.ask(f"Out[{out}].values")
        place = [value for _, value in choices(own.controls[own.moves])].index(values[own.moves])
        least = shown.demo.place[1]
        if shown.demo.place[0] - least == place and tuple(map(alike, shown.demo.words)) == said(own.draw(**values)):
            return
        shown.page.wait_for_timeout(100)
    assert shown.demo.place[0] - least == place
    assert tuple(map(alike, shown.demo.words)) == said(own.draw(**values))


def test_nothing_went_wrong(lecture):
    outputs = "() => jupyterapp.shell.currentWidget.content.widgets.flatMap(c => c.model.outputs ? c.model.outputs.toJSON() : [])"
    assert [output["output_type"] for output in lecture.page.evaluate(outputs) if output["output_type"] in ("error", "stream")] == []
    assert lecture.page.errors == []


def test_an_arrow_key_changes_the_pixels_and_the_words(shown):
    demo = shown.demo
    before, still = demo.picture.screenshot(), demo.picture.screenshot()
    assert before == still
    words = demo.words
    demo.press(demo.steps(1)[0])
    assert demo.picture.screenshot() != before
    assert demo.words[0] != words[0] and demo.words[1] != words[1]
    settle(shown)
    assert shown.page.errors == []


def test_it_is_one_picture_and_nothing_jumps(shown):
    demo = shown.demo
    demo.handle.focus()
    before = shown.cell.evaluate(PLACES)
    for key in demo.steps(10):
        demo.press(key)
        assert shown.cell.locator("figure").count() == shown.cell.locator("figure svg[role=img]").count() == 1
        assert shown.cell.locator(".jp-OutputArea-output img").count() == 0
        assert shown.cell.evaluate(PLACES) == before


def test_fast_keys_end_at_the_last_value(shown):
    demo = shown.demo
    demo.handle.focus()
    for key in demo.steps(20):
        shown.page.keyboard.press(key)
    place = demo.place[0]
    settle(shown)
    assert demo.place[0] == place


def test_dragging_ends_at_the_last_value(shown):
    demo = shown.demo
    control = demo.handle.locator("xpath=ancestor::*[contains(@class, 'noUi-target')]").bounding_box()
    start = demo.handle.bounding_box()
    y = start["y"] + start["height"] / 2
    shown.page.mouse.move(start["x"] + start["width"] / 2, y)
    shown.page.mouse.down()
    for share in [*range(0, 101, 3), *range(100, 30, -2)]:
        shown.page.mouse.move(control["x"] + control["width"] * share / 100, y)
    shown.page.mouse.up()
    _, least, most = demo.place
    settle(shown)
    assert abs(demo.place[0] - (least + 0.32 * (most - least))) <= max(1, 0.05 * (most - least))


@pytest.mark.parametrize("shown", PLAYED, indirect=True)
def test_a_player_moves_its_demo(shown):
    demo = shown.demo
    player, before = demo.root.locator(".widget-play button"), demo.place[0]
    player.first.click()
    shown.page.wait_for_function("([handle, before]) => handle.getAttribute('aria-valuenow') >= before + 2 || handle.getAttribute('aria-valuenow') < before",
                                 arg=[demo.handle.element_handle(), before])
    player.first.click()
    settle(shown)


def test_labels_are_read_from_the_last_row(shown):
    size, words = shown.demo.root.evaluate(TEXT_PX)
    assert size >= SMALLEST_TEXT_PX, words


@pytest.mark.parametrize("screen", SCREENS, ids=str)
def test_controls_picture_and_caption_fit_on_the_screen_together(shown, screen):
    """With the controls at its top, no line of the caption is below it; and no control has smaller letters than the picture."""
    width, height = screen
    was = shown.page.viewport_size
    shown.page.set_viewport_size({"width": width, "height": height})
    try:
        shown.notebook.cell(shown.name)
        controls = shown.demo.root.locator(":scope > .widget-hbox").first.bounding_box()
        picture, caption = shown.demo.picture.bounding_box(), shown.demo.root.locator("figcaption").bounding_box()
        assert caption["y"] + caption["height"] - controls["y"] <= height
        assert picture["x"] >= 0 and picture["x"] + picture["width"] <= width
        smallest, drawn = shown.demo.root.evaluate(LETTERS_PX, SIZE)
        assert smallest >= drawn - 0.01
    finally:
        shown.page.set_viewport_size(was)


def test_every_control_has_a_name_and_is_reached_by_tab(shown):
    """Tab from the first control passes all of them."""
    controls = shown.demo.root.locator(":scope > .widget-hbox").first.locator(":scope > *")
    own = getattr(demos, shown.name)().controls
    for place, control in enumerate(own.values()):
        assert controls.nth(place).inner_text().startswith(control.description) and control.description
    reached = set()
    shown.demo.root.locator(".noUi-handle, select, input").first.focus()
    for _ in range(3 * len(own)):
        focus = shown.demo.root.evaluate(
            "root => [...root.querySelector('.widget-hbox').children].findIndex(child => child.contains(document.activeElement))")
        reached.add(focus)
        shown.page.keyboard.press("Tab")
    assert set(range(len(own))) <= reached


def test_both_themes(shown, keep):
    """Letters are dark on light, and light on dark; a slider's handle is seen on both."""
    ink = "root => getComputedStyle(root.querySelector('figure svg text')).fill.match(/\\d+/g).slice(0, 3).map(Number)"
    handle = """handle => [handle.closest('.jp-Notebook'), handle].map(part => '#' + getComputedStyle(part).backgroundColor
      .match(/\\d+/g).slice(0, 3).map(channel => Number(channel).toString(16).padStart(2, '0')).join(''))"""
    for theme, dark in (("Light", False), ("Dark", True)):
        shown.notebook.theme(theme)
        try:
            shown.notebook.cell(shown.name)
            keep(shown.page, f"{shown.name}-lab-{theme.lower()}")
            assert (sum(shown.demo.root.evaluate(ink)) > 3 * 128) == dark
            for part in shown.demo.root.locator(".noUi-handle").all():
                assert contrast(*part.evaluate(handle)) >= 3
        finally:
            shown.notebook.theme("Light")
