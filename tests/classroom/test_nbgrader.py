"""The whole round with nbgrader: hand out, collect, autograde, export."""
import csv

import build
import nbformat
import pytest
import submissions as made
from build import ROOT
from rounds import FIRST, KERNELS, autograded, functions_in, kinds_of, nbgrader, read

from flashedu import score
from flashedu.__main__ import main
from flashedu.classroom import course
from flashedu.classroom import nbgrader as ours
from flashedu.classroom.one import Graded
from flashedu.classroom.sheets import details_file, read_details
from flashedu.grading.judging import judge
from flashedu.grading.verdict import Verdict

with_nbgrader = pytest.mark.nbgrader
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def classroom(tmp_path_factory):
    """A course, laid out, with submissions of chapter 1 of every kind and one of chapter 4, autograded and exported."""
    solutions, folder = tmp_path_factory.mktemp("solutions"), tmp_path_factory.mktemp("class") / "my course"
    for path in (ROOT / "sources/exercises").glob("*.py"):
        nbformat.write(build.notebook(path, True), solutions / f"{path.stem}.ipynb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(course, "SOLUTIONS", solutions)
        course.lay_out(folder)
    for student, nb in kinds_of(read(folder / f"release/chapter_1/{FIRST}.ipynb"), read(folder / f"source/chapter_1/{FIRST}.ipynb")).items():
        made.write(nb, folder / "submitted" / student / "chapter_1" / f"{FIRST}.ipynb")
    kernels = made.wrong(4, "triton_softmax", "no-maximum", read(folder / f"source/chapter_4/{KERNELS}.ipynb"))
    made.write(kernels, folder / f"submitted/wrong/chapter_4/{KERNELS}.ipynb")
    for assignment in ("chapter_1", "chapter_4"):
        nbgrader(folder, "autograde", assignment)
    nbgrader(folder, "export")
    return folder


@pytest.fixture(scope="module")
def points(classroom):
    """{(assignment, student): points} in the exported table."""
    rows = csv.DictReader((classroom / "grades.csv").read_text(encoding="utf-8").splitlines())
    return {(row["assignment"], row["student_id"]): float(row["score"]) for row in rows}


def seed_of(classroom):
    return (classroom / "seed.txt").read_text().strip()


@with_nbgrader
def test_the_table_of_grades(classroom, points):
    wrong = functions_in(read(classroom / f"submitted/wrong/chapter_1/{FIRST}.ipynb"))
    partial = sum(judge(fn, name, seed=seed_of(classroom)).score for name, fn in wrong.items())
    assert 2.5 < partial < 3
    wanted = {
        "right": 3, "stub": 0, "wrong": partial, "crashing": 2, "crashing-cell": 0, "tampered": 0, "overwritten": 0,
        "edited": partial, "deleted": partial, "copied": partial, "without-metadata": partial, "without-ids": partial,
    }  # fmt: skip
    assert {student: points["chapter_1", student] for student in wanted} == pytest.approx(wanted)
    assert 1 <= points["chapter_4", "wrong"] < 2


@with_nbgrader
def test_nbgrader_and_flashedu_grade_agree_on_every_exercise(classroom, tmp_path):
    for assignment, name in (("chapter_1", FIRST), ("chapter_4", KERNELS)):
        made.write(read(classroom / f"release/{assignment}/{name}.ipynb"), tmp_path / f"handed_out/{name}.ipynb")
    command = ["grade", str(classroom / "submitted"), "--csv", str(tmp_path / "grades.csv"), "--handed-out", str(tmp_path / "handed_out")]
    assert main([*command, "--seed", seed_of(classroom)]) == 0
    theirs = {}
    for row in read_details(details_file(tmp_path / "grades.csv")):
        theirs.setdefault((row["student"], row["notebook"]), {})[row["exercise"]] = float(row["score"])
    nbgraders = {(path.name, FIRST): autograded(classroom, path.name, FIRST, "chapter_1") for path in (classroom / "autograded").iterdir()}
    nbgraders["wrong", KERNELS] = autograded(classroom, "wrong", KERNELS, "chapter_4")
    assert len(nbgraders) == 13 and theirs == nbgraders


@with_nbgrader
def test_the_hidden_grade_of_a_right_or_unwritten_answer_is_that_of_check(classroom):
    for student in ("right", "stub"):
        functions = functions_in(read(classroom / f"submitted/{student}/chapter_1/{FIRST}.ipynb"))
        assert autograded(classroom, student, FIRST, "chapter_1") == {name: score(fn) for name, fn in functions.items()}


@with_nbgrader
def test_what_a_student_reads(classroom):
    nbgrader(classroom, "generate_feedback", "chapter_1", "--CourseDirectory.student_id=wrong")
    page = (classroom / f"feedback/wrong/chapter_1/{FIRST}.html").read_text(encoding="utf-8")
    assert "a row of -inf" in page and "It behaves like this mistake" in page
    assert seed_of(classroom) not in page
    page = nbformat.read(classroom / f"autograded/tampered/chapter_1/{FIRST}.ipynb", 4)
    assert "numpy.array_equal" in str([cell.outputs for cell in page.cells if cell.cell_type == "code"])


@with_nbgrader
def test_a_notebook_that_is_not_one_costs_the_others_nothing(classroom):
    path = classroom / f"submitted/broken/chapter_1/{FIRST}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    made.write(read(classroom / f"submitted/right/chapter_1/{FIRST}.ipynb"), classroom / f"submitted/late/chapter_1/{FIRST}.ipynb")
    said = nbgrader(classroom, "autograde", "chapter_1", code=1)
    assert "assignment 'chapter_1' for student 'broken'" in said
    assert sum(autograded(classroom, "late", FIRST, "chapter_1").values()) == 3


# What stands in the place of nbgrader's own step, without nbgrader.

ROWS = (Verdict("stable_softmax", "wrong", 0.947, "It is <wrong>."), Verdict("naive_attention", "passed", 1.0, "Exact."), Verdict("naive_traffic", "not attempted", 0.0, "Nothing."))


WHICH = {"nbgrader": {"assignment": "one", "notebook": FIRST}}


def handed_out():
    return build.notebook(ROOT / f"sources/exercises/{FIRST}.py", False)


@pytest.fixture
def small(tmp_path):
    """A course of one chapter."""
    made.write(handed_out(), tmp_path / f"release/one/{FIRST}.ipynb")
    (tmp_path / "seed.txt").write_text("a seed\n")
    return tmp_path


@pytest.fixture
def preprocess(small, monkeypatch):
    """A function that gives (graded, submission) to the course's grader, and returns the notebook."""

    def run(graded, submitted):
        def grade(submission, given, seed):
            assert submission is submitted and given == handed_out() and seed == "a seed"
            return graded

        monkeypatch.setattr(ours, "grade_notebook", grade)
        return ours.grader(small)(submitted, WHICH)[0]

    return run


def test_a_card_and_a_number_are_written_into_each_check(preprocess):
    nb = preprocess(Graded("graded", "", ROWS, 1.0), handed_out())
    nbformat.validate(nb)
    written = {cell.metadata.nbgrader.grade_id: cell.outputs for cell in nb.cells if cell.cell_type == "code" and cell.outputs}
    assert list(written) == [f"check_{row.exercise}" for row in ROWS]
    for row, (card, number) in zip(ROWS, written.values(), strict=True):
        assert (card.output_type, number.output_type) == ("display_data", "execute_result")
        assert row.message in card.data["text/plain"] and row.exercise in card.data["text/html"]
        assert number.data["text/plain"] == str(row.score)
    assert "It is &lt;wrong&gt;." in written["check_stable_softmax"][0].data["text/html"]


def copied(nb):
    nb.cells += [nbformat.from_dict({**cell, "id": f"{cell.id}-2"}) for cell in nb.cells]


def deleted(nb):
    nb.cells = [cell for cell in nb.cells if not cell.source.startswith("check(")]


def of_an_old_kind(nb):
    deleted(nb)
    nb.nbformat_minor = 4
    for cell in nb.cells:
        del cell["id"]


def forged(nb):
    for cell in nb.cells:
        cell.metadata.nbgrader = {"grade": True, "grade_id": cell.metadata.get("nbgrader", {}).get("grade_id", f"mine-{cell.id}"), "points": 100, "schema_version": 0}


@pytest.mark.parametrize("change", [copied, deleted, of_an_old_kind, forged])
def test_each_mark_of_release_stands_once_in_a_submission(small, change):
    def marks(nb):
        return {cell.metadata.nbgrader.grade_id: cell.metadata.nbgrader for cell in nb.cells if "nbgrader" in cell.metadata}

    nb = handed_out()
    change(nb)
    before = [cell.source for cell in nb.cells]
    nb, _ = ours.restorer(small)(nb, WHICH)
    nbformat.validate(nb)
    assert marks(nb) == marks(handed_out()) and sum("nbgrader" in cell.metadata for cell in nb.cells) == len(marks(nb))
    assert [cell.source for cell in nb.cells][: len(before)] == before
    assert [cell.source for cell in nb.cells][len(before) :] == (["check(stable_softmax).score", "check(naive_attention).score", "check(naive_traffic).score"]
                                                               if change in (deleted, of_an_old_kind) else [])


def test_machines_that_cannot_grade_give_no_grades(preprocess):
    with pytest.raises(RuntimeError, match="It lacks Triton"):
        preprocess(Graded("not graded", "It lacks Triton.", ROWS, 1.0), handed_out())
    with pytest.raises(RuntimeError, match="Nothing was checked"):
        preprocess(Graded("graded", "", (*ROWS[:2], Verdict("naive_traffic", "skipped", 0.0, "Nothing was checked.")), 1.0), handed_out())


def test_a_graded_cell_that_is_no_check_is_refused(preprocess):
    nb = handed_out()
    nb.cells.append(nbformat.v4.new_code_cell("assert True", metadata={"nbgrader": {"grade": True, "grade_id": "mine", "points": 1}}))
    with pytest.raises(ValueError, match="The graded cell mine is not one of check_stable_softmax, check_naive_attention, check_naive_traffic"):
        preprocess(Graded("graded", "", ROWS, 1.0), nb)
