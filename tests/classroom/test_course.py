"""An nbgrader course is laid out from the solutions, and what students get of it gives nothing away."""
import copy
import json
import re
import stat
from types import SimpleNamespace

import build
import nbformat
import pytest
from build import ROOT

from flashedu.__main__ import main
from flashedu.classroom import course
from flashedu.grading import EXERCISES
from flashedu.grading.cases import CASES
from flashedu.grading.cases.hidden import hidden_cases

SOURCES = sorted((ROOT / "sources/exercises").glob("*.py"))
NBGRADERS_OWN = ("checksum", "cell_type")  # what it adds to its metadata as it makes an assignment
TELLING = 12  # characters: what is shorter, such as `return o`, may stand anywhere


def name(path):
    return path.stem


def marked(nb, kind):
    """{grade_id: cell number} of a notebook's solution or grade cells."""
    return {cell.metadata.nbgrader.grade_id: number for number, cell in enumerate(nb.cells) if cell.metadata.get("nbgrader", {}).get(kind)}


@pytest.fixture
def built(tmp_path, monkeypatch):
    """Solutions as the builder makes them, without running them; a course is laid out from these."""
    for path in SOURCES:
        nbformat.write(build.notebook(path, True), tmp_path / f"{path.stem}.ipynb")
    monkeypatch.setattr(course, "SOLUTIONS", tmp_path)
    return tmp_path


@pytest.fixture
def no_nbgrader(monkeypatch):
    """nbgrader's end in lay_out: `end.returncode` may be set."""
    end = SimpleNamespace(returncode=0, stderr="it says why", stdout="")
    monkeypatch.setattr(course.subprocess, "run", lambda *args, **kwargs: end)
    monkeypatch.setattr(course, "find_spec", lambda name: name)
    return end


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_every_exercise_has_a_solution_and_after_it_a_check_worth_a_point(path):
    for nb in (build.notebook(path, solutions) for solutions in (True, False)):
        solutions, checks = marked(nb, "solution"), marked(nb, "grade")
        exercises = [exercise for exercise in solutions if exercise in EXERCISES]
        assert list(checks) == [f"check_{exercise}" for exercise in exercises]
        assert all(solutions[exercise] < checks[f"check_{exercise}"] for exercise in exercises)
        assert [nb.cells[number].source for number in checks.values()] == [f"check({exercise}).score" for exercise in exercises]
    assert {f"{chapter:02d}" for chapter in {EXERCISES[exercise].chapter for exercise in exercises}} == {path.name[:2]}


def test_every_exercise_stands_in_one_notebook():
    found = [exercise for path in SOURCES for exercise in marked(build.notebook(path, True), "solution") if exercise in EXERCISES]
    assert sorted(found) == sorted(EXERCISES)


def solution_lines(path):
    """The lines of a source's solutions, but for the shortest."""
    solved = "\n".join(cell.source for cell in build.notebook(path, True).cells)
    regions = re.findall(rf"{build.BEGIN}\n(.*?)\n *{build.END}", solved, flags=re.DOTALL)
    return {line.strip() for region in regions for line in region.splitlines() if len(line.strip()) >= TELLING}


def leaks(folder, seed=None):
    """What of the solutions, of the cases, and of the hidden ones of a seed stands in a folder's files."""
    lines = {line for path in SOURCES for line in solution_lines(path)}
    cases = [case for exercise in EXERCISES for case in (*CASES[exercise], *(hidden_cases(exercise, seed) if seed else ()))]
    words = {str(case.params["seed"]) for case in cases if "seed" in case.params} | {str(case.params) for case in cases}
    words |= {"flashedu.grading", "SOLUTION", *([seed] if seed else [])}
    assert len(lines) > 200 and len(words) > 200
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    handed_out = {line.strip() for path in files if path.suffix == ".ipynb" for cell in nbformat.read(path, 4).cells for line in cell.source.splitlines()}
    return sorted([*(lines & handed_out), *(word for word in words if word in text)])


def test_exercises_give_nothing_away(tmp_path):
    for path in SOURCES:
        nbformat.write(build.notebook(path, False), tmp_path / f"{path.stem}.ipynb")
    assert leaks(tmp_path) == []
    nb = build.notebook(SOURCES[0], False)  # what would have been seen:
    nb.cells[0].source += f"\n{min(solution_lines(SOURCES[0]))}\n"
    nbformat.write(nb, tmp_path / "other.ipynb")
    (tmp_path / "notes.txt").write_text(str(CASES["rotate"][0].params["seed"]))
    assert leaks(tmp_path) == sorted([min(solution_lines(SOURCES[0])), str(CASES["rotate"][0].params["seed"])])


def test_a_seed_is_drawn_once_for_each_course_and_belongs_to_its_owner(built, no_nbgrader, tmp_path):
    seeds = []
    for folder in (tmp_path / "a b", tmp_path / "deeper/course"):
        course.lay_out(folder)
        path = folder / "seed.txt"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        seeds.append(path.read_text().strip())
    assert len(set(seeds)) == 2 and all(re.fullmatch(r"[0-9a-f]{32}", seed) for seed in seeds)
    assert len((tmp_path / "a b/README.md").read_text().splitlines()) == 5


def test_sources_have_no_outputs(built, no_nbgrader, tmp_path):
    nb = nbformat.read(built / f"{SOURCES[0].stem}.ipynb", 4)
    nb.cells[-1].update(outputs=[nbformat.v4.new_output("stream", text="ran")], execution_count=3)
    nbformat.write(nb, built / f"{SOURCES[0].stem}.ipynb")
    assert main(["class", str(tmp_path / "course")]) == 0
    for path in (tmp_path / "course/source").rglob("*.ipynb"):
        assert path.parent.name == f"chapter_{int(path.name[:2])}"
        assert not [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code" and (cell.outputs or cell.execution_count)]


def test_what_holds_something_is_refused(built, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/grades.csv").write_text("kept")
    (tmp_path / "file").write_text("kept")
    for where in ("full", "file"):
        with pytest.raises(SystemExit, match=f"{where} is not empty: name a folder that does not exist yet"):
            course.lay_out(tmp_path / where)
    assert (tmp_path / "full/grades.csv").read_text() == (tmp_path / "file").read_text() == "kept"


def test_nothing_half_made_stays(built, no_nbgrader, tmp_path):
    no_nbgrader.returncode = 1
    with pytest.raises(SystemExit, match="nbgrader could not make release/: it says why"):
        course.lay_out(tmp_path / "course")
    assert not (tmp_path / "course").exists()


def test_a_place_that_takes_no_folder_is_said_in_a_sentence(built, no_nbgrader, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match=r"No course was made: .*Not a directory"):
        main(["class", str(tmp_path / "file" / "course")])
    monkeypatch.setattr(course.secrets, "token_hex", lambda n: (_ for _ in ()).throw(OSError("No space left on device")))
    with pytest.raises(SystemExit, match="No course was made: No space left on device"):
        main(["class", str(tmp_path / "course")])
    assert not (tmp_path / "course").exists()


def test_nobody_who_reads_the_sentence_is_needed(built, no_nbgrader, monkeypatch, tmp_path):
    monkeypatch.setattr(course, "print", lambda text: (_ for _ in ()).throw(BrokenPipeError), raising=False)
    with pytest.raises(BrokenPipeError):  # and not "No course was made": what starts main catches it, for every command
        main(["class", str(tmp_path / "course")])
    assert (tmp_path / "course" / "source").is_dir()


def test_an_environment_without_nbgrader_is_told_what_installs_it(monkeypatch, tmp_path):
    monkeypatch.setattr(course, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="nbgrader is not installed here: `make class"):
        course.lay_out(tmp_path / "course")
    assert not (tmp_path / "course").exists()


def test_a_package_without_its_notebooks_cannot_make_a_class(no_nbgrader, monkeypatch, tmp_path):
    monkeypatch.setattr(course, "SOLUTIONS", tmp_path)
    with pytest.raises(SystemExit, match="a class is made from a copy of the whole course"):
        course.lay_out(tmp_path / "course")


@pytest.mark.nbgrader
@pytest.mark.timeout(300)
def test_what_nbgrader_releases_is_what_the_builder_makes(built, tmp_path):
    folder = tmp_path / "course"
    course.lay_out(folder)
    assert not list((folder / "release").rglob("seed.txt")) and not [path for path in (folder / "release").rglob("*.*") if path.suffix != ".ipynb"]
    assert leaks(folder / "release", (folder / "seed.txt").read_text().strip()) == []
    for path in SOURCES:
        ours = build.notebook(path, False)
        released = nbformat.read(folder / f"release/chapter_{int(path.name[:2])}/{path.stem}.ipynb", 4)
        assert [own(cell) for cell in released.cells] == [own(cell) for cell in ours.cells]
        locked = [cell.source for cell in released.cells if cell.metadata.get("editable") is False]
        assert locked == [f"check({exercise[6:]}).score" for exercise in marked(ours, "grade")]


def own(cell):
    """What a cell is, apart from what nbgrader adds."""
    metadata = copy.deepcopy(cell.metadata)
    for key in ("deletable", "editable"):
        metadata.pop(key, None)
    for key in NBGRADERS_OWN:
        metadata.get("nbgrader", {}).pop(key, None)
    return cell.id, cell.cell_type, cell.source, json.dumps(metadata, sort_keys=True)
