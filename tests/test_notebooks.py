"""The notebooks are what their sources say, run from top to bottom, and give no solution away."""

import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import build
import jupytext
import nbformat
import pytest
from build import ROOT, TARGETS

from flashedu import demos

NOTEBOOK_TIMEOUT_S = 300
MAX_KB = 450  # of a chapter with a dozen pictures, each as text/html and as image/png
MAX_LECTURE_KB = 700  # a picture of every demo
MAX_LINES = 12
BUILT = {folder: sorted((ROOT / folder).glob("*.ipynb")) for folder in TARGETS}
SAVED = {path for paths in BUILT.values() for path in paths if build.is_saved_by_a_reader(path)}
if SAVED and "CI" not in os.environ:  # a reader's own notebooks, with answers perhaps: seen as skipped below, and not judged
    BUILT = {folder: [path for path in paths if path not in SAVED] for folder, paths in BUILT.items()}
NOTEBOOKS = [path for paths in BUILT.values() for path in paths]
SOURCES = sorted((ROOT / "sources").glob("*/*.py"))


def name(path):
    return path.relative_to(ROOT).as_posix()


def code_cells(path):
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


def outputs(path):
    return [output for cell in code_cells(path) for output in cell.outputs]


@pytest.fixture(scope="session")
def runs(request, tmp_path_factory):
    """For each notebook to be run, the future of its run: two at a time, in a copy of its folder."""
    copy = tmp_path_factory.mktemp("course")
    for folder in TARGETS:
        shutil.copytree(ROOT / folder, copy / folder)
    paths = [item.callspec.params["path"] for item in request.session.items if "runs" in item.fixturenames]
    pool = ThreadPoolExecutor(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "CELL_TIMEOUT_S", NOTEBOOK_TIMEOUT_S)
        yield {
            path: pool.submit(build.execute, nbformat.read(path, 4), copy / path.parent.name, name(path))
            for path in paths
        }
        pool.shutdown(cancel_futures=True)


@pytest.mark.timeout(NOTEBOOK_TIMEOUT_S)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_runs_from_top_to_bottom(path, runs):
    runs[path].result()  # raises with the cell and its error; a stub is "not attempted" and raises nothing


def test_the_first_chapters_are_there():
    numbers = {folder: sorted(path.name[:2] for path in (ROOT / folder).glob("*.ipynb")) for folder in TARGETS}
    assert numbers["chapters"][:4] == ["00", "01", "02", "03"]
    assert numbers["exercises"][:3] == numbers["solutions"][:3] == ["01", "02", "03"]


def test_a_rebuild_changes_nothing():
    stale = [path for path in build.stale() if ROOT / path not in SAVED or "CI" in os.environ]
    assert stale == []
    if SAVED:
        pytest.skip(f"saved from JupyterLab, so not compared: {', '.join(sorted(map(name, SAVED)))}")


def test_the_lecture_shows_every_demo_once():
    code = [cell.source for cell in jupytext.read(ROOT / "sources/chapters/lecture_demos.py").cells if cell.cell_type == "code"]
    assert sorted(source for source in code if source.startswith("demos.")) == sorted(f"demos.{name}()" for name in demos.__all__)


@pytest.mark.parametrize("path", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *SOURCES], ids=name)
def test_links_lead_somewhere(path):
    text = path.read_text(encoding="utf-8")
    prose = "\n".join(line for line in text.splitlines() if path.suffix == ".md" or line.startswith("#"))
    assert not re.search(r"\]\[\d+\]", prose), "a link by reference: its definition is easily lost"
    folder = ROOT / "chapters" if path.suffix == ".py" else ROOT  # chapters/ and exercises/ lie side by side
    for target in re.findall(r"\]\(([^)\s#:]+)\)", text):
        assert (folder / target).exists(), target


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_is_a_valid_notebook(path):
    nb = nbformat.read(path, 4)
    nbformat.validate(nb)
    assert len({cell.id for cell in nb.cells}) == len(nb.cells)


@pytest.mark.parametrize("path", BUILT["chapters"] + BUILT["solutions"], ids=name)
def test_carries_outputs(path):
    assert path.stat().st_size <= (MAX_LECTURE_KB if path.stem == "lecture_demos" else MAX_KB) * 1024
    assert outputs(path)
    assert all(cell.execution_count for cell in code_cells(path))
    assert not [output for output in outputs(path) if output.output_type == "error"]


@pytest.mark.parametrize("path", BUILT["exercises"], ids=name)
def test_gives_no_solution_away(path):
    assert not outputs(path)
    assert not [cell for cell in code_cells(path) if cell.execution_count]
    handed_out = path.read_text(encoding="utf-8")
    assert "SOLUTION" not in handed_out and build.STUB in handed_out
    handed_out = "\n".join(cell.source for cell in nbformat.read(path, 4).cells)
    solved = "\n".join(cell.source for cell in code_cells(ROOT / "solutions" / path.name))
    regions = re.findall(rf"{build.BEGIN}\n(.*?)\n *{build.END}", solved, flags=re.DOTALL)
    assert len(regions) == handed_out.count(build.STUB)
    for region in regions:
        assert region.strip() not in handed_out


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_cells_are_short_and_say_what_they_import(path):
    for cell in jupytext.reads(path.read_text(encoding="utf-8"), fmt=build.PERCENT).cells:
        if cell.cell_type != "code":
            continue
        assert not re.search(r"import \*|^%%capture|^\s*%", cell.source, flags=re.MULTILINE), cell.source
        if build.BEGIN not in cell.source:
            assert len(cell.source.splitlines()) <= MAX_LINES, cell.source
