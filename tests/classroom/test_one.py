"""One notebook: what is right, wrong and missing is graded as `check` grades it, and nothing that it does costs more than itself."""
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import submissions
from submissions import cell_crashes, handed_out, right, source, stub, with_answer, with_first, with_last, wrong

from flashedu.classroom import one
from flashedu.classroom.one import STATES, Limits, grade_notebook
from flashedu.grading import EXERCISES
from flashedu.grading.judging import judge
from flashedu.grading.mistakes import MISTAKES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limits are Linux's")
CHAPTERS = range(1, 9)
IN_NUMPY = (1, 2, 3, 6, 7, 8)
BRIEF = Limits(seconds=6)  # 2 for a cell


def exercises_of(number):
    return [name for name, exercise in EXERCISES.items() if exercise.chapter == number]


def rows(graded):
    return {row.exercise: row for row in graded.exercises}


@pytest.mark.parametrize("number", CHAPTERS)
def test_the_solutions_have_every_point(number):
    graded = grade_notebook(right(number), handed_out(number))
    assert (graded.state, graded.reason) == ("graded", "")
    assert {row.exercise: (row.state, row.score) for row in graded.exercises} == {name: ("passed", 1.0) for name in exercises_of(number)}


@pytest.mark.parametrize("number", CHAPTERS)
def test_what_was_handed_out_is_not_attempted(number):
    graded = grade_notebook(handed_out(number), handed_out(number))
    assert graded.state == "graded"
    assert {(row.state, row.score) for row in graded.exercises} == {("not attempted", 0.0)}
    assert all("There is no answer here yet" in row.message for row in graded.exercises)


def some_mistakes():
    for number in IN_NUMPY:
        for name in exercises_of(number):
            zoo = MISTAKES[name]
            chosen = {zoo[0], zoo[len(zoo) // 2], *(mistake for mistake in zoo if mistake.caught_by == "memory")}
            yield from ((number, name, slug) for slug in sorted({mistake.slug for mistake in chosen}))


@pytest.mark.parametrize("number, exercise, slug", [*some_mistakes(), (4, "triton_softmax", MISTAKES["triton_softmax"][0].slug)])
def test_a_mistake_has_the_verdict_that_check_gives(number, exercise, slug):
    mistake = next(mistake for mistake in MISTAKES[exercise] if mistake.slug == slug)
    verdict, row = judge(mistake.function, exercise), rows(grade_notebook(wrong(number, exercise, slug), handed_out(number)))[exercise]
    assert (row.state, row.score, row.failed, row.mistake) == (verdict.state, verdict.score, verdict.failed, slug)
    assert mistake.sentence in row.message


def test_a_seed_brings_other_cases():
    memorised = with_answer(right(1), "naive_traffic", "def naive_traffic(n, head_dim, heads, kv_heads, itemsize):\n    return ANSWERS[n, head_dim, heads, kv_heads, itemsize]")
    cases = [case.make(**case.params) for case in EXERCISES["naive_traffic"].cases]
    answers = {case: tuple(int(bound.exact) for _, bound in EXERCISES["naive_traffic"].expected(*case)) for case in cases}
    memorised = with_first(memorised, f"ANSWERS = {answers}")
    assert rows(grade_notebook(memorised, handed_out(1)))["naive_traffic"].state == "passed"
    assert rows(grade_notebook(memorised, handed_out(1), seed="a secret"))["naive_traffic"].state == "error"
    assert {row.score for row in grade_notebook(right(1), handed_out(1), seed="a secret").exercises} == {1.0}


@pytest.mark.parametrize("kind", submissions.ANSWER_CRASHES)
def test_an_answer_that_crashes_costs_itself(kind):
    body, words = submissions.ANSWER_CRASHES[kind]
    graded = grade_notebook(with_answer(right(1), "naive_traffic", f"def naive_traffic(x, *rest):\n    {body.replace('stable_softmax', 'naive_traffic')}"), handed_out(1), limits=BRIEF)
    row = rows(graded)["naive_traffic"]
    assert graded.state == "graded" and row.score == 0.0
    assert row.state == ("wrong" if kind == "endless loop" else "error") and words in row.message
    assert rows(graded)["stable_softmax"].score == rows(graded)["naive_attention"].score == 1.0


@pytest.mark.parametrize("kind", submissions.CELL_CRASHES)
def test_a_cell_that_ends_the_process_is_left_out(kind):
    cell, state, words = submissions.CELL_CRASHES[kind]
    graded = grade_notebook(cell_crashes(right(1), "stable_softmax", cell), handed_out(1), limits=BRIEF)
    assert graded.state == state and graded.reason.startswith("Code cell 4 ") and words in graded.reason
    assert [row.score for row in graded.exercises] == [1.0, 1.0, 1.0]


def test_a_cell_that_dies_with_its_function_costs_that_function():
    text = source(submissions.cell_of(right(1), "stable_softmax"))
    graded = grade_notebook(with_answer(right(1), "stable_softmax", f"{text}\nimport os\nos._exit(3)"), handed_out(1))
    lost, uses_it, other = graded.exercises
    assert graded.state == "died"
    assert lost.state == "not attempted" and "Code cell 3 should define stable_softmax, but it did not." in lost.message and "exit status 3" in lost.message
    assert uses_it.state == "error" and "'stable_softmax' is not defined" in uses_it.message and other.score == 1.0


@pytest.mark.parametrize("kind", submissions.CELL_NUISANCES)
def test_a_cell_that_fails_is_told_and_the_next_goes_on(kind):
    cell, words = submissions.CELL_NUISANCES[kind]
    graded = grade_notebook(cell_crashes(right(1), "stable_softmax", cell), handed_out(1), limits=BRIEF)
    stopped = ("stopped", "Code cell 4 was still running after 2 s and was stopped.")
    assert (graded.state, graded.reason) == (stopped if kind == "endless loop" else ("graded", "")) and [row.score for row in graded.exercises] == [1.0, 1.0, 1.0]
    broken = grade_notebook(cell_crashes(with_answer(stub(1), "naive_traffic", ""), "stable_softmax", cell), handed_out(1), limits=BRIEF)
    missing = rows(broken)["naive_traffic"]
    assert missing.state == "not attempted" and missing.message.startswith("No cell defines naive_traffic.")
    assert (words in missing.message) if words else missing.message == "No cell defines naive_traffic."


def test_an_answer_that_kills_its_judge_costs_itself():
    graded = grade_notebook(with_answer(right(1), "naive_traffic", "def naive_traffic(*x):\n    import os; os.kill(os.getppid(), 9)"), handed_out(1))
    assert graded.state == "died" and graded.reason == "naive_traffic ended the process (SIGKILL)."
    assert [row.score for row in graded.exercises] == [1.0, 1.0, 0.0]


def test_a_syntax_error_costs_its_cell():
    row = rows(grade_notebook(with_answer(stub(1), "stable_softmax", "import os\ndef stable_softmax(x):\n    return (x"), handed_out(1)))["stable_softmax"]
    assert row.state == "not attempted"
    assert row.message == "Code cell 3 should define stable_softmax, but it did not. Code cell 3: line 3: SyntaxError: '(' was never closed."


def test_cells_are_moved_doubled_and_edited_as_students_do():
    nb = right(1)
    late = {**nb, "cells": [cell for cell in nb["cells"] if cell is not submissions.cell_of(nb, "stable_softmax")] + [submissions.cell_of(nb, "stable_softmax")]}
    assert [row.score for row in grade_notebook(late, handed_out(1)).exercises] == [1.0, 1.0, 1.0]
    twice = with_last(nb, "def stable_softmax(x): return x")
    assert [row.state for row in grade_notebook(twice, handed_out(1)).exercises] == ["wrong", "wrong", "passed"]
    no_checks = {**nb, "cells": [cell for cell in nb["cells"] if cell["cell_type"] == "code" and not source(cell).startswith("check(")]}
    assert [row.score for row in grade_notebook(no_checks, handed_out(1)).exercises] == [1.0, 1.0, 1.0]
    timed = with_answer(nb, "stable_softmax", "%%time\n" + source(submissions.cell_of(nb, "stable_softmax")))
    assert [row.score for row in grade_notebook(timed, handed_out(1)).exercises] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("text, words", [
    ("{", "not JSON"),
    ("", "The file is empty."),
    ("[1, 2]", "no list of cells"),
    ('{"worksheets": [{"cells": []}], "nbformat": 3}', "no list of cells"),
    ("[" * 100_000, "not JSON"),
])
def test_what_is_no_notebook_is_unreadable(tmp_path, text, words):
    path = tmp_path / "01.ipynb"
    path.write_text(text)
    graded = grade_notebook(path, handed_out(1))
    assert graded.state == "unreadable" and words in graded.reason
    assert [(row.state, row.score, row.message) for row in graded.exercises] == [("not attempted", 0.0, graded.reason)] * 3
    with open(path, "wb") as file:
        file.truncate(51 << 20)
    assert "bytes; at most" in grade_notebook(path, handed_out(1)).reason


def test_cells_that_are_odd_json_are_passed_over():
    odd = [None, 3, {"cell_type": "code"}, {"cell_type": "code", "source": None}, {"cell_type": "code", "source": ["1\n", 2]}, {"cell_type": "raw", "source": "x"}]
    assert [row.score for row in grade_notebook({"cells": odd + right(1)["cells"]}, handed_out(1)).exercises] == [1.0, 1.0, 1.0]


def test_a_file_that_it_writes_is_bounded_and_gone(tmp_path):
    cell = f"import os\nopen({str(tmp_path / 'where')!r}, 'w').write(os.getcwd())\nwith open('large', 'wb') as file: file.write(bytes(2 << 20))"
    graded = grade_notebook(with_first(with_answer(stub(1), "naive_traffic", ""), cell), handed_out(1), limits=Limits(output_bytes=1 << 20))
    assert "File too large" in rows(graded)["naive_traffic"].message
    assert not Path((tmp_path / "where").read_text()).exists()


def test_nothing_that_it_started_is_left(tmp_path):
    """Not even what has a session of its own."""
    cell = f"""
import os
pids = []
for _ in range(20):
    pid = os.fork()
    if not pid:
        os.setsid()
        import time; time.sleep(1000)
    pids.append(pid)
open({str(tmp_path / "pids")!r}, "w").write(" ".join(map(str, pids)))
"""
    graded = grade_notebook(with_first(right(1), cell), handed_out(1))
    assert graded.state == "graded"
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 20 and not [pid for pid in pids if Path("/proc", pid, "cmdline").exists() and Path("/proc", pid, "cmdline").read_bytes()]


def test_what_surrounds_a_submission(tmp_path):
    cell = f"""
import json, os, resource, sys
told = dict(environment=dict(os.environ), session=os.getsid(0) == os.getpid(), files=os.listdir(), core=resource.getrlimit(resource.RLIMIT_CORE),
            descriptors=[os.readlink(f"/proc/self/fd/{{n}}") for n in (0, 1, 2)], tasks=resource.getrlimit(resource.RLIMIT_NPROC)[0])
open({str(tmp_path / "told")!r}, "w").write(json.dumps(told))
"""
    os.environ["FLASHEDU_TEST_SECRET"] = "x"
    try:
        grade_notebook(with_first(stub(1), cell), handed_out(1), seed="a secret")
    finally:
        del os.environ["FLASHEDU_TEST_SECRET"]
    told = json.loads((tmp_path / "told").read_text())
    assert "FLASHEDU_TEST_SECRET" not in told["environment"] and "a secret" not in str(told)
    assert told["environment"]["OMP_NUM_THREADS"] == "1" and told["environment"]["MPLBACKEND"] == "agg"
    assert told["session"] and told["files"] == [] and told["core"] == [0, 0] and told["descriptors"] == ["/dev/null"] * 3
    assert 500 <= told["tasks"] < 5000


def test_grading_can_be_given_up():
    graded = grade_notebook(with_first(right(1), "while True: pass"), handed_out(1), cancelled=lambda: True)
    assert graded.state == "not graded" and graded.reason == "Grading was interrupted."


def test_a_machine_that_lacks_a_package_says_so(monkeypatch):
    environment = one._environment
    hide = "import sys\nsys.modules['torch'] = None\n"
    monkeypatch.setattr(one, "_environment", lambda scratch, token: {**environment(scratch, token), "PYTHONPATH": f"{_with_sitecustomize(scratch, hide)}:{one.ROOT}"})
    graded = grade_notebook(right(4), handed_out(4))
    assert graded.state == "not graded" and "torch" in graded.reason and {row.score for row in graded.exercises} == {0.0}


def _with_sitecustomize(scratch, text):
    folder = Path(scratch, "hide")
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(text)
    return folder


def test_every_state_is_documented():
    assert set(STATES) >= {"graded", "stopped", "died", "tampered", "unreadable", "not graded"} and all(text.endswith(".") for text in STATES.values())


def test_a_worker_does_not_outlive_its_grader(tmp_path):
    """Not for long: it ends when there is nobody left to tell."""
    nb = with_first(right(1), f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(1)")
    program = f"import json, sys\nfrom flashedu.classroom.one import grade_notebook\ngrade_notebook(json.loads(sys.stdin.read()), {str(handed_out(1))!r})"
    grader = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    grader.stdin.write(json.dumps(nb).encode())
    grader.stdin.close()
    _until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    grader.kill()
    grader.wait()
    pid = (tmp_path / "pid").read_text()
    _until(lambda: not Path("/proc", pid, "cmdline").exists() or not Path("/proc", pid, "cmdline").read_bytes())


def _until(condition):
    for _ in range(200):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("It did not come about.")


def test_the_first_end_counts():
    run = SimpleNamespace(rows={}, raised={}, doing={}, finished=False, end="", reason="")
    for end in ("tampered", ""):
        one._hear({"allow": 1, "end": end, "reason": end}, run)
    assert (run.end, run.reason) == ("tampered", "tampered")
