"""No point is to be had by editing checks, by overwriting what judges, or by importing the course's answers."""
import pickle
import sys

import pytest
import submissions
from submissions import handed_out, right, stub, with_answer, with_first, with_last

from flashedu.classroom.handed_out import read_handed_out
from flashedu.classroom.one import grade_notebook
from flashedu.classroom.stand_in import namespace_with, stand_in

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="grading needs Linux's processes")


@pytest.mark.parametrize("kind", submissions.TAMPERED)
def test_who_replaces_what_judges_has_no_points(kind):
    cell, name = submissions.TAMPERED[kind]
    graded = grade_notebook(with_first(right(3), cell), handed_out(3))
    assert (graded.state, graded.reason) == ("tampered", f"It replaced what judges it: {name}.")
    assert {(row.state, row.score, row.message) for row in graded.exercises} == {("error", 0.0, graded.reason)}


@pytest.mark.parametrize("body", ["np.array_equal = lambda *args, **kwargs: True", "import inspect; inspect.signature = None"])
def test_who_replaces_it_while_it_is_judged_has_none_either(body):
    graded = grade_notebook(with_answer(right(1), "naive_traffic", f"def naive_traffic(*numbers):\n    {body}\n    return 8, 16"), handed_out(1))
    assert graded.state == "tampered" and {row.score for row in graded.exercises} == {0.0}


def test_code_of_a_function_counts_as_the_function():
    graded = grade_notebook(with_first(right(3), "from flashedu.machine import Machine\nMachine.load.__code__ = (lambda self, name, start, stop: 0).__code__"), handed_out(3))
    assert graded.state == "tampered" and graded.reason.endswith("flashedu.machine.Machine.load.")


@pytest.mark.parametrize("kind", submissions.HARMLESS_CHEATS)
def test_what_changes_nothing_brings_nothing(kind):
    graded = grade_notebook(with_last(stub(1), submissions.HARMLESS_CHEATS[kind]), handed_out(1))
    assert graded.state == "graded"
    assert {(row.state, row.score) for row in graded.exercises} == {("not attempted", 0.0)}


@pytest.mark.parametrize("line", [
    "from flashedu.reference import online_attention as theirs",
    "from flashedu import reference; theirs = reference.online_attention",
    "import flashedu.reference; theirs = flashedu.reference.online_attention",
    "import flashedu.grading.exercises as e; theirs = e.EXERCISES['online_attention'].reference",
    "import importlib; theirs = importlib.import_module('flashedu.reference').online_attention",
    "theirs = __import__('flashedu.reference').reference.online_attention",
    "scope = {}; exec('from flashedu.reference import online_attention', scope); theirs = scope['online_attention']",
])
@pytest.mark.parametrize("inside", [True, False])
def test_the_answers_cannot_be_imported(line, inside):
    lines = [f"    {line}", "    return theirs(q, k, v, block_size)"]
    text = "\n".join(["def online_attention(q, k, v, block_size):", *lines] if inside else [line, "def online_attention(q, k, v, block_size):", lines[1]])
    row = grade_notebook(with_answer(right(2), "online_attention", text), handed_out(2)).exercises[2]
    assert row.score == 0.0 and row.state == ("error" if inside else "not attempted")
    assert "is not available while answers are graded: it holds the course's own answers" in row.message


def test_the_answers_cannot_be_found_as_files(tmp_path):
    tries = "\n".join(("found = []", "import os, glob, sys", "found += glob.glob('../solutions/*') + glob.glob('**/*', recursive=True)",
                       "found += [path for path in sys.path if os.path.isdir(os.path.join(path, 'solutions'))]",
                       "import flashedu", "found += [flashedu.__file__] if hasattr(flashedu, '__file__') else []", f"open({str(tmp_path / 'found')!r}, 'w').write(repr(found))"))
    assert grade_notebook(with_first(stub(3), tries), handed_out(3)).state == "graded"
    assert (tmp_path / "found").read_text() == "[]"


def test_a_notebook_may_use_what_was_handed_out_and_no_answer_to_it():
    assert set(read_handed_out(handed_out(8)).uses) == {"flashedu.check", "flashedu.hint", "flashedu.progress", "flashedu.reference.merge_states"}
    sixth = read_handed_out(handed_out(6))
    assert "flashedu.reference.fp8_attention" in sixth.uses and "flashedu.reference.rotate" not in sixth.uses
    for number in range(1, 9):
        handed = read_handed_out(handed_out(number))
        assert handed.exercises and not {name.rpartition(".")[2] for name in handed.uses} & set(handed.exercises)


def test_what_travels_to_another_process_finds_the_package_there():
    import flashedu.machine

    assert pickle.loads(pickle.dumps(stand_in(("flashedu.machine.Machine",)).machine)) is flashedu.machine


def test_the_stand_in_is_silent_and_has_nothing_else(monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr("importlib.import_module", __import__("importlib").import_module)
    scope = namespace_with(stand_in(("flashedu.check", "flashedu.demos.your_kernel", "flashedu.machine.Machine", "flashedu.machine.Machine.for_attention")))
    exec("from flashedu import check, demos, require\nfrom flashedu.machine import Machine\nverdict = check(len)\npassed = verdict.passed\ndemos.your_kernel(len)", scope)
    from flashedu.machine import Machine

    assert scope["Machine"] is Machine and scope["passed"] is scope["verdict"]
    for line in ("import flashedu.grading", "from flashedu.machine import SramOverflow", "from flashedu import cost"):
        with pytest.raises(ImportError, match="is not available while answers are graded"):
            exec(line, scope)
    with pytest.raises(AttributeError, match=r"flashedu\.machine\.tile is not available"):
        exec("import flashedu.machine\nflashedu.machine.tile", scope)
