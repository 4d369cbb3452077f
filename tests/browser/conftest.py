"""One JupyterLab and one Chromium for all of these tests; the lecture notebook is run once and each demo tried on it."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import lab_in_browser
import nbformat
import pytest
from build import KERNEL
from lab_in_browser import LECTURE, LiveDemo, Notebook, names

from flashedu import demos

SCREEN = {"width": 1280, "height": 720}  # the smallest projector that is still met
FAILING = """\
from flashedu.demos.demo import Demo, counter
from flashedu.viz.svg import Drawing, text

def draw(step):
    if step == 3:
        raise ValueError("step 3 <has no> picture")
    return Drawing(text(20, 40, step), 60, f"Step {step}.")

"""


@pytest.fixture(scope="session")
def course(tmp_path_factory):
    """A folder with a copy of the lecture notebook, and a notebook whose demo fails at one position."""
    folder = tmp_path_factory.mktemp("lab") / "my course"
    folder.mkdir()
    shutil.copy(LECTURE, folder)
    cells = [FAILING, "class demos:\n    failing = lambda: Demo(draw, {'step': counter('step', 1, 5)}, moves='step')", "demos.failing()"]
    scratch = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells], metadata={"kernelspec": KERNEL})
    nbformat.write(scratch, folder / "failing.ipynb")
    return folder


@pytest.fixture(scope="session")
def lab(course):
    with lab_in_browser.jupyterlab(course) as address:
        yield address


@pytest.fixture(scope="session")
def browser():
    with lab_in_browser.chromium() as chromium:
        yield chromium


@pytest.fixture(scope="session")
def new_page(browser):
    """A function that opens a page the size of a projector; what its console calls an error is in `page.errors`."""
    contexts = []

    def open_page(**options):
        contexts.append(browser.new_context(viewport=SCREEN, **options))
        page = contexts[-1].new_page()
        page.errors = []
        page.on("console", lambda message: page.errors.append(f"{message.text} ({message.location['url']})") if message.type == "error" else None)
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.set_default_timeout(10_000)
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def lecture(lab, new_page):
    """The lecture notebook in JupyterLab, all cells run."""
    return Notebook(new_page()).open(lab(LECTURE.name)).run_all()


def live(lecture, name):
    """The demo on the page of a notebook that was run."""
    demo = getattr(demos, name)()
    root = lecture.cell(name).locator(".flashedu-demo")
    return LiveDemo(root, list(demo.controls).index(demo.moves))


@pytest.fixture(params=names())
def shown(request, lecture):
    """Each demo of the lecture notebook, in the light theme, its cell at the top of the screen."""
    demo = live(lecture, request.param)
    demo.picture.wait_for()
    return SimpleNamespace(name=request.param, demo=demo, notebook=lecture, page=lecture.page, cell=lecture.cell(request.param))


@pytest.fixture
def keep():
    """A function that keeps a screenshot in the folder FLASHEDU_SHOTS, if that is set."""
    folder = os.environ.get("FLASHEDU_SHOTS")

    def keep(page, name):
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=Path(folder, f"{name}.png"))

    return keep
