"""The demos without JupyterLab's kernel: a saved notebook, Voilà, and pages that need a browser only; and a demo that fails."""

import json
import re
import sys

import lab_in_browser
import nbformat
import pytest
from build import ROOT
from lab_in_browser import LECTURE, LiveDemo, Notebook, names

from flashedu import demos

NAMES = names()
SCREENS = [(1920, 1080), (1280, 720)]  # the last is the one that pages are opened with
pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_an_error_is_shown_and_the_demo_lives_on(lab, new_page):
    notebook = Notebook(new_page()).open(lab("failing.ipynb")).run_all()
    demo = LiveDemo(notebook.cell("failing").locator(".flashedu-demo"), 0)
    demo.handle.press("ArrowRight")
    demo.picture.get_by_text("2", exact=True).wait_for()
    demo.handle.press("ArrowRight")
    alert = demo.root.get_by_role("alert")
    alert.wait_for()
    assert "ValueError: step 3 <has no> picture" in alert.inner_text()
    assert demo.picture.count() == 0
    demo.handle.press("ArrowRight")
    demo.picture.get_by_text("4", exact=True).wait_for()
    assert demo.root.get_by_role("alert").count() == 0


@pytest.mark.parametrize("saved_by", ["the build", "JupyterLab"])
def test_a_saved_notebook_that_is_not_trusted_shows_pictures(saved_by, course, lab, lecture, new_page):
    nb = nbformat.read(LECTURE, 4)
    if saved_by == "JupyterLab":
        nb = nbformat.reads(lecture.page.evaluate("JSON.stringify(jupyterapp.shell.currentWidget.content.model.toJSON())"), 4)
        assert "widget-view" in json.dumps(nb)
    nb.metadata["from"] = "elsewhere"  # its signature is not known here
    path = course / f"saved by {saved_by}.ipynb"
    nbformat.write(nb, path)
    notebook = Notebook(new_page()).open(lab(path.name))
    assert notebook.page.evaluate("jupyterapp.shell.currentWidget.content.widgets.every(cell => !cell.model.trusted)")
    for name in NAMES:
        cell = notebook.cell(name)
        picture = cell.locator("figure img")
        assert picture.count() == 1 and len(picture.get_attribute("alt")) > 40
        assert picture.evaluate("image => image.naturalWidth") >= 900
        assert not re.search("widget|Error|Loading", cell.inner_text())
    assert notebook.page.errors == []


@pytest.mark.parametrize("name", NAMES)
def test_a_page_needs_no_network(name, tmp_path, new_page, keep):
    demo = getattr(demos, name)()
    demo.to_html(tmp_path / "demo.html")
    for scheme in ("light", "dark"):
        page = new_page(offline=True, color_scheme=scheme)
        asked = []
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        page.goto((tmp_path / "demo.html").as_uri())
        picture, value = page.locator("figure > svg"), page.locator("output")
        before, words = picture.screenshot(), value.inner_text()
        keep(page, f"{name}-page-{scheme}")
        at_the_end = page.evaluate("document.activeElement.value === document.activeElement.max")
        page.keyboard.press("ArrowLeft" if at_the_end else "ArrowRight")  # the slider has the focus
        assert picture.screenshot() != before
        assert value.inner_text() != words
        assert page.evaluate("getComputedStyle(document.body).colorScheme, matchMedia('(prefers-color-scheme: dark)').matches") == (scheme == "dark")
        assert page.errors == [] and all(url.startswith("file:") for url in asked)
        for width, height in SCREENS:
            page.set_viewport_size({"width": width, "height": height})
            assert page.evaluate("document.documentElement.scrollHeight") <= height, "one has to scroll for the caption"


@pytest.fixture(scope="session")
def lecture_hall():
    """The address at which `make lecture` shows the demos."""
    port = lab_in_browser.free_port()
    command = ["make", "lecture", f"PYTHON={sys.executable}", f"LAB_FLAGS=--no-browser --port={port}"]
    address = f"http://localhost:{port}/"
    with lab_in_browser.served(command, f"{address}voila/static/main.js", ROOT):
        yield address


@pytest.fixture(scope="session", params=["light", "dark"])
def projected(request, lecture_hall, new_page):
    page = new_page()
    page.route(lambda url: not url.startswith(lecture_hall), lambda route: route.abort())  # a room without a network
    page.goto(f"{lecture_hall}?theme={request.param}", timeout=120_000)
    page.locator(".flashedu-demo figure > svg").nth(len(NAMES) - 1).wait_for(timeout=120_000)
    return request.param, page


@pytest.mark.parametrize("name", NAMES)
def test_voila_shows_a_live_demo_that_fits(name, projected, keep):
    theme, page = projected
    root = page.locator(".flashedu-demo").nth(NAMES.index(name))
    own = getattr(demos, name)()
    demo = LiveDemo(root, list(own.controls).index(own.moves))
    root.evaluate("root => root.scrollIntoView()")
    keep(page, f"{name}-voila-{theme}")
    before = demo.picture.screenshot()
    demo.press(demo.steps(1)[0])
    assert demo.picture.screenshot() != before
    for width, height in SCREENS:
        page.set_viewport_size({"width": width, "height": height})
        box = root.evaluate("root => [...root.children].slice(0, 2).map(c => c.getBoundingClientRect()).map(r => [r.left, r.top, r.right, r.bottom])")
        assert box[0][0] >= 0 and max(box[0][2], box[1][2]) <= width
        caption = root.locator("figcaption").bounding_box()
        assert caption["y"] + caption["height"] - box[0][1] <= height, "controls, picture and caption are higher than the screen"
        question = page.locator("h2").nth(NAMES.index(name)).bounding_box()
        picture = demo.picture.bounding_box()
        assert picture["y"] + picture["height"] - question["y"] <= height, "question, controls and picture are higher than the screen"


def test_voila_hides_the_code(projected):
    theme, page = projected
    assert page.get_by_text("demos.").count() == 0
    assert page.locator(".jp-CodeCell .jp-InputArea:visible").count() == 0
    assert page.locator(".flashedu-demo").count() == len(NAMES)
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor").count("255") < 3
    assert dark == (theme == "dark")
