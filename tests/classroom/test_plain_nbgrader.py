"""nbgrader on the notebooks as they are, without any configuration of ours: it runs their own cells."""
import build
import nbformat
import numpy as np
import pytest
import submissions as made
from build import ROOT
from nbclient import NotebookClient
from rounds import FIRST, autograded, functions_in, kinds_of, nbgrader, read

from flashedu import score

pytestmark = [pytest.mark.nbgrader, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A course of chapter 1 with four submissions, autograded."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "source/one").mkdir(parents=True)
    nbformat.write(build.notebook(ROOT / f"sources/exercises/{FIRST}.py", True), folder / f"source/one/{FIRST}.ipynb")
    nbgrader(folder, "generate_assignment", "one")
    kinds = kinds_of(read(folder / f"release/one/{FIRST}.ipynb"), read(folder / f"source/one/{FIRST}.ipynb"))
    kinds["overwritten"] = made.with_answer(kinds["stub"], "stable_softmax", "class check:\n    score = 1.0\n    def __init__(self, fn): pass\n\n\nstable_softmax = 0")
    for student in ("right", "stub", "wrong", "overwritten"):
        made.write(kinds[student], folder / "submitted" / student / "one" / f"{FIRST}.ipynb")
    nbgrader(folder, "autograde", "one")
    return folder


def test_without_our_configuration_the_cells_own_scores_are_the_points(plain):
    for student in ("right", "stub", "wrong"):
        functions = functions_in(read(plain / f"submitted/{student}/one/{FIRST}.ipynb"))
        assert autograded(plain, student, FIRST, "one") == {name: score(fn) for name, fn in functions.items()}
    assert 0 < autograded(plain, "wrong", FIRST, "one")["stable_softmax"] < 1


def test_without_our_configuration_a_student_can_overwrite_check(plain):
    """Which is why there is one."""
    assert list(autograded(plain, "overwritten", FIRST, "one").values()) == [1, 1, 1]


def test_without_our_configuration_a_copied_check_stops_the_whole_class(plain):
    made.write(kinds_of(*[read(plain / f"release/one/{FIRST}.ipynb")] * 2)["copied"], plain / f"submitted/a-copy/one/{FIRST}.ipynb")
    made.write(read(plain / f"submitted/right/one/{FIRST}.ipynb"), plain / f"submitted/b-right/one/{FIRST}.ipynb")
    assert "nbgrader update" in nbgrader(plain, "autograde", "one", code=1)
    assert not (plain / "autograded/b-right").exists()


@pytest.mark.parametrize("solutions, words", [(False, "VALIDATION FAILED ON 3 CELL(S)"), (True, "Success! Your notebook passes all the tests.")])
def test_validate_runs_on_the_notebooks_as_they_are(tmp_path, solutions, words):
    nbformat.write(build.notebook(ROOT / f"sources/exercises/{FIRST}.py", solutions), tmp_path / "notebook.ipynb")
    assert words in nbgrader(tmp_path, "validate", "notebook.ipynb")


NOISY = """
import sys, warnings
def stable_softmax(x):
    print("to stderr", file=sys.stderr)
    warnings.warn("a warning")
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
"""


def test_points_come_from_a_built_in_float_and_stderr_costs_them_all():
    """nbgrader's rules, by the cells that follow them or break them."""
    from nbgrader.utils import determine_grade

    names = {"np": np}
    exec(NOISY, names)
    partial = score(names["stable_softmax"])
    assert 0 < partial < 1
    checks = {
        "check(stable_softmax).score": partial,  # what the function itself writes to stderr is caught
        "score(stable_softmax)": partial,
        "check(stable_softmax)": 1.0,  # a card and no number
        "np.float64(0.5)": 1.0,  # repr is np.float64(0.5), which is no number
        "print('', file=sys.stderr); 0.5": 0.0,
    }
    cells = [nbformat.v4.new_code_cell(source) for source in ("import numpy as np\nfrom flashedu import check, score", NOISY, *checks)]
    nb = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": build.KERNEL})
    NotebookClient(nb, timeout=60).execute()
    for cell, points in zip(nb.cells[2:], checks.values(), strict=True):
        cell.metadata["nbgrader"] = {"grade": True, "solution": False, "points": 1}
        assert determine_grade(cell)[0] == points, cell.source
