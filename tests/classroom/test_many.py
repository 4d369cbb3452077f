"""`python -m flashedu grade`: a folder of every kind of submission, its tables, and going on after an interruption."""
import csv
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import submissions
from submissions import cell_crashes, handed_out, right, stub, with_answer, with_first, with_last, write, wrong

from flashedu.__main__ import main
from flashedu.classroom import many, sheets
from flashedu.classroom.find import Submission
from flashedu.classroom.one import STATES, Graded
from flashedu.grading.judging import judge
from flashedu.grading.mistakes import MISTAKES
from flashedu.grading.verdict import Verdict

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="grading needs Linux's processes")
ONE, TWO = handed_out(1).name, handed_out(2).name
DEAF = submissions.CELL_CRASHES["endless loop, deaf"][0]
CLASS = {  # file: (what is in it, its state, the scores of its exercises, words of its remark)
    f"right/{ONE}": (right(1), "graded", [1, 1, 1], ""),
    f"right/{TWO}": (right(2), "graded", [1, 1, 1], ""),
    f"stub/{ONE}": (stub(1), "graded", [0, 0, 0], ""),
    f"wrong/{ONE}": (wrong(1, "naive_traffic", "elements-for-bytes"), "graded", [1, 1, None], ""),
    f"crashes/{ONE}": (cell_crashes(right(1), "stable_softmax", "import os; os._exit(3)"), "died", [1, 1, 1], "exit status 3"),
    f"killed/{ONE}": (cell_crashes(right(1), "stable_softmax", "import os; os.kill(os.getpid(), 9)"), "died", [1, 1, 1], "SIGKILL"),
    f"endless/{ONE}": (cell_crashes(right(1), "stable_softmax", DEAF), "stopped", [1, 1, 1], "still running"),
    f"slow/{ONE}": (cell_crashes(right(1), "stable_softmax", "while True: pass"), "stopped", [1, 1, 1], "Code cell 4 was still running after 1 s and was stopped."),
    f"tampered/{ONE}": (with_first(right(1), "import numpy as np\nnp.array_equal = None"), "tampered", [0, 0, 0], "numpy.array_equal"),
    f"checks edited/{ONE}": (with_last(stub(1), "import flashedu\nflashedu.check = lambda *args: None"), "graded", [0, 0, 0], ""),
    f"deleted/{ONE}": (with_answer(right(1), "naive_traffic", ""), "graded", [1, 1, 0], ""),
    f"syntax/{ONE}": (with_answer(right(1), "naive_traffic", "def naive_traffic("), "graded", [1, 1, 0], ""),
    f"memory/{ONE}": (with_answer(right(1), "naive_traffic", "def naive_traffic(*x): return np.ones(10 * 2**30 // 8)"), "graded", [1, 1, 0], ""),
    f"odd words/{ONE}": (with_answer(right(1), "naive_traffic", "def naive_traffic(*x): raise Exception('\\ud800\\0\\r\\n=1' * 10**6)"), "graded", [1, 1, 0], ""),
    f"same name/{ONE}": (right(1), "graded", [1, 1, 1], "several files"),
    "same name_01.ipynb": (stub(1), "graded", [0, 0, 0], "several files"),
    "ünïcode, \"quoted\"/my answers.ipynb": (right(1), "graded", [1, 1, 1], ""),
    "=1+1/01.ipynb": (stub(1), "graded", [0, 0, 0], ""),
    "other/holiday.ipynb": ({"cells": []}, "unknown", [], "none of the notebooks"),
}
BROKEN = {f"broken/{ONE}": "{", "broken/holiday.ipynb": "{", f"empty/{ONE}": ""}


def table(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("class")
    for file, (nb, *_) in CLASS.items():
        write(nb, folder / "in" / file)
    for file, text in BROKEN.items():
        (folder / "in" / file).parent.mkdir(exist_ok=True)
        (folder / "in" / file).write_text(text)
    command = [sys.executable, "-m", "flashedu", "grade", str(folder / "in"), "--csv", str(folder / "out.csv"), "--seconds", "3", "--gradescope", str(folder / "scope")]
    end = subprocess.run(command, capture_output=True, text=True)
    assert (end.returncode, end.stderr) == (0, ""), end.stderr
    return folder, end.stdout


@pytest.mark.parametrize("file", CLASS)
def test_every_file_has_its_rows(graded, file):
    state, scores, words = CLASS[file][1:]
    rows = [row for row in table(graded[0] / "out.details.csv") if row["file"] == sheets.cell(file)]
    assert {row["submission"] for row in rows} == {state}
    assert [row["exercise"] for row in rows] == ["stable_softmax", "naive_attention", "naive_traffic"][: len(scores)] or TWO in file or rows[0]["exercise"] == "" == "".join(map(str, scores))
    for row, score in zip(rows, scores):
        assert 0 < float(row["score"]) < 1 if score is None else float(row["score"]) == score
    assert all(row["reason"] or state == "graded" for row in rows)
    assert words in rows[0]["reason"] or words == "several files"


def test_what_is_not_json_has_rows_too(graded):
    rows = [row for row in table(graded[0] / "out.details.csv") if row["file"] in BROKEN]
    assert [row["file"] for row in rows] == [file for file, times in zip(BROKEN, (3, 1, 3)) for _ in range(times)]
    assert {row["submission"] for row in rows} == {"unreadable"} and {row["state"] for row in rows if row["exercise"]} == {"unreadable"}
    assert all(row["reason"] == "The file is empty." if row["student"] == "empty" else "not JSON" in row["reason"] for row in rows)


def test_what_cannot_be_read_does_not_count_as_not_attempted(graded):
    rows = [row for row in table(graded[0] / "out.details.csv") if row["exercise"] == "stable_softmax"]
    (line,) = [line for line in graded[1].splitlines() if line.startswith("stable_softmax")]
    stubs = {row["student"] for row in rows if row["state"] == "not attempted"}
    assert stubs == {"stub", "checks edited", "same name", "'=1+1"} and int(line.split()[3]) == sum(row["state"] == "not attempted" for row in rows)


def test_a_mistake_is_named_as_check_names_it(graded):
    (row,) = [row for row in table(graded[0] / "out.details.csv") if row["student"] == "wrong" and row["exercise"] == "naive_traffic"]
    mistake = next(mistake for mistake in MISTAKES["naive_traffic"] if mistake.slug == "elements-for-bytes")
    verdict = judge(mistake.function, "naive_traffic")
    assert (row["mistake"], row["message"], float(row["score"])) == (verdict.mistake, verdict.message, pytest.approx(verdict.score, abs=1e-5))


def test_a_partial_score_is_explained(graded):
    (row,) = [row for row in table(graded[0] / "out.details.csv") if row["student"] == "wrong" and row["exercise"] == "naive_traffic"]
    checks = judge(next(mistake for mistake in MISTAKES["naive_traffic"] if mistake.slug == "elements-for-bytes").function).checks
    failed = row["failed"].split("; ")
    assert len(failed) > 1 and failed == [name for name, state in checks if state == "failed"] and f'The check "{failed[0]}" failed.' in row["message"]
    passed, of, whole = row["checks passed"].split()
    assert (of, int(whole), int(passed)) == ("of", len(checks), sum(state == "passed" for _, state in checks))
    assert float(row["score"]) == pytest.approx(int(passed) / int(whole), abs=1e-3)
    output = json.loads((graded[0] / "scope" / "wrong" / "results.json").read_text())["tests"][2]["output"]
    assert output == f"{row['message']}\n\nChecks passed: {row['checks passed']}.\n\nFailed: {row['failed']}."


@pytest.mark.parametrize("failed, checks, listed, passed", [
    ("c", (("a", "failed"), ("b", "passed"), ("c", "failed"), ("d", "not run")), "c; a", "1 of 4"),  # the message is about c
    ("time limit", (), "time limit", ""),
    (None, (("a", "passed"), ("b", "passed")), "", "2 of 2"),
    (None, (), "", ""),
])
def test_every_check_that_failed_is_listed(failed, checks, listed, passed):
    verdict = Verdict("rotate", "wrong", 0.0, "Words.", checks, failed)
    (row,) = sheets.rows_of(Submission("ada", "ada.ipynb", None, ""), Graded("graded", "", (verdict,), 0.0), "")
    assert (row["failed"], row["checks passed"]) == (listed, passed)


def test_the_gradebook_has_a_row_for_each_student(graded):
    folder, out = graded
    rows = {row["student"]: row for row in table(folder / "out.csv")}
    people = {file.split("/")[0] for file in (*CLASS, *BROKEN) if not file.startswith("same name")}
    twice = {f"same name (same name/{ONE})", "same name (same name_01.ipynb)"}
    assert set(rows) == {sheets.cell(name) for name in people | twice}
    assert rows["right"]["total"] == "6" and rows["right"]["out of"] == "6" and rows["right"]["remarks"] == ""
    assert rows["stub"]["total"] == "0" and rows["stub"]["online_attention"] == ""
    assert sorted(rows[name]["total"] for name in twice) == ["0", "3"]
    assert all("several files for the same notebook" in rows[name]["remarks"] for name in twice)
    for name in ("crashes", "endless", "slow", "tampered", "broken", "empty", "other"):
        assert re.search(" (died|stopped|tampered|unreadable|unknown): ", rows[name]["remarks"])
    assert "22 files of 19 students: 13 graded" in out and "elements-for-bytes (1)" in out
    assert out.count("Several files for one notebook") == 2


def test_gradescope_gets_the_same_points(graded):
    folder, _ = graded
    result = json.loads((folder / "scope" / "wrong" / "results.json").read_text())
    rows = {row["student"]: row for row in table(folder / "out.csv")}
    assert result["score"] == pytest.approx(float(rows["wrong"]["total"]))
    assert [(test["name"], test["max_score"], test["visibility"]) for test in result["tests"]] == [(name, 1.0, "visible") for name in ("stable_softmax", "naive_attention", "naive_traffic")]
    assert "It behaves like this mistake (elements-for-bytes)" in result["tests"][2]["output"]
    assert "numpy.array_equal" in json.loads((folder / "scope" / "tampered" / "results.json").read_text())["output"]


def run(folder, *more):
    return main(["grade", str(folder / "in"), "--csv", str(folder / "out.csv"), *more])


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A class of two; calls: which files were really graded."""
    calls, real = [], many.grade_notebook
    monkeypatch.setattr(many, "grade_notebook", lambda path, *rest: calls.append(str(path.relative_to(tmp_path / "in"))) or real(path, *rest))
    write(right(1), tmp_path / "in" / "ada" / ONE)
    write(stub(1), tmp_path / "in" / "bob" / ONE)
    return tmp_path, calls


def test_only_what_changed_is_graded_again(small):
    folder, calls = small
    assert run(folder) == 0 and sorted(calls) == [f"ada/{ONE}", f"bob/{ONE}"]
    first = (folder / "out.csv").read_bytes(), (folder / "out.details.csv").read_bytes()
    calls.clear()
    assert run(folder) == 0 and calls == []
    assert ((folder / "out.csv").read_bytes(), (folder / "out.details.csv").read_bytes()) == first
    write(right(1), folder / "in" / "bob" / ONE)
    assert run(folder) == 0 and calls == [f"bob/{ONE}"]
    assert [row["total"] for row in table(folder / "out.csv")] == ["3", "3"]
    calls.clear()
    assert run(folder, "--seed", "a secret") == 0 and len(calls) == 2
    (folder / "in" / "ada" / ONE).unlink()
    assert run(folder, "--seed", "a secret") == 0 and len(calls) == 2
    assert [row["student"] for row in table(folder / "out.csv")] == ["bob"]


def test_a_table_that_was_cut_off_is_made_whole(small):
    folder, calls = small
    run(folder)
    details = folder / "out.details.csv"
    whole = details.read_bytes()
    for cut in (1, 40, 400, len(whole) // 2):
        details.write_bytes(whole[:-cut])
        calls.clear()
        assert run(folder) == 0 and (calls or cut == 1)  # the last line's end alone
        assert [{**row, "seconds": ""} for row in table(details)] == [{**row, "seconds": ""} for row in csv.DictReader(whole.decode().splitlines(keepends=True))]


def test_a_submission_that_the_grader_fails_on_costs_no_other(small, monkeypatch):
    folder, calls = small
    real = many.grade_notebook

    def fails(path, *rest):
        if "ada" in str(path):
            raise OSError("no more processes")
        return real(path, *rest)

    monkeypatch.setattr(many, "grade_notebook", fails)
    assert run(folder) == 0
    rows = table(folder / "out.details.csv")
    assert [row["submission"] for row in rows] == ["not graded"] * 3 + ["graded"] * 3 and "no more processes" in rows[0]["reason"]
    monkeypatch.setattr(many, "grade_notebook", real)
    calls.clear()
    assert run(folder) == 0 and calls == [f"ada/{ONE}"]
    assert {row["submission"] for row in table(folder / "out.details.csv")} == {"graded"}


def test_an_interruption_leaves_whole_tables_and_the_same_command_goes_on(tmp_path):
    for n in range(4):
        write(right(1) if n < 2 else with_first(right(1), DEAF), tmp_path / "in" / f"s{n}" / ONE)
    command = [sys.executable, "-m", "flashedu", "grade", str(tmp_path / "in"), "--csv", str(tmp_path / "out.csv"), "--seconds", "300"]
    heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # also where the tests themselves run in the background
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=heard)
    for _ in range(300):
        if (tmp_path / "out.details.csv").exists() and len(table(tmp_path / "out.details.csv")) == 6:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 1 and "Interrupted: 2 of 4 files are not graded yet." in out
    assert [(row["student"], row["total"]) for row in table(tmp_path / "out.csv")] == [("s0", "3"), ("s1", "3")]
    for n in (2, 3):
        write(stub(1), tmp_path / "in" / f"s{n}" / ONE)
    assert run(tmp_path, "--seconds", "300") == 0
    assert [row["total"] for row in table(tmp_path / "out.csv")] == ["3", "3", "0", "0"]


def test_nobody_who_reads_the_output_to_its_end_is_needed(tmp_path):
    write(right(1), tmp_path / "in" / "ada" / ONE)
    reader, writer = os.pipe()
    os.close(reader)
    more = ["--similar", "--gradescope", str(tmp_path / "scope")]
    command = [sys.executable, "-u", "-m", "flashedu", "grade", str(tmp_path / "in"), "--csv", str(tmp_path / "out.csv"), *more]
    end = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (end.returncode, end.stderr) == (128 + signal.SIGPIPE, "")
    assert table(tmp_path / "out.csv")[0]["total"] == "3" and (tmp_path / "out.similar.csv").exists() and (tmp_path / "scope/ada/results.json").exists()


def test_one_submission_without_a_name_gets_results_json_itself(tmp_path):
    write(right(1), tmp_path / "in" / ONE)
    assert run(tmp_path, "--gradescope", str(tmp_path / "results")) == 0
    assert json.loads((tmp_path / "results" / "results.json").read_text())["score"] == 3.0


@pytest.mark.parametrize("arguments, words", [
    (["nowhere", "--csv", "out.csv"], "nowhere is not a folder"),
    ([".", "--csv", "out.csv", "--jobs", "0"], "must be more than 0"),
    ([".", "--csv", "out.csv", "--handed-out", "."], "holds no notebook with exercises"),
    ([".", "--csv", "grades.csv"], "is no table of details of this program"),
    ([".", "--csv", "out.csv"], "there is no notebook in"),
    ([".", "--csv", "."], "--csv needs the name of a file"),
    ([".", "--csv", "pipe"], "--csv needs the name of a file"),
    ([".", "--csv", "out.csv", "--handed-out", "broken"], "a notebook in broken cannot be what was handed out. It is not a notebook"),
    ([".", "--csv", "out.csv", "--handed-out", "magic"], "a notebook in magic cannot be what was handed out. invalid syntax"),
])
def test_what_cannot_be_done_is_said_in_a_sentence(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grades.details.csv").write_text("name,points\nada,3\n")
    os.mkfifo(tmp_path / "pipe")
    for folder, text in (("broken", "{"), ("magic", json.dumps({"cells": [{"cell_type": "code", "source": "%pip install x"}]}))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "01.ipynb").write_text(text if arguments[-1] == folder else '{"cells": []}')
    if arguments[-1] == "out.csv":
        [path.unlink() for path in tmp_path.glob("*/01.ipynb")]
        (tmp_path / "out.csv").write_text("kept")
    with pytest.raises(SystemExit, match=words):
        main(["grade", *arguments])
    assert not (tmp_path / "out.csv").exists() or (tmp_path / "out.csv").read_text() == "kept"


def test_a_full_disk_and_a_second_run_are_said_in_a_sentence(small, monkeypatch, capsys):
    import fcntl

    folder, _ = small
    (folder / "in" / "zed.zip").write_bytes(b"")
    (folder / "out.details.csv").mkdir()
    with pytest.raises(SystemExit, match=r"Grading stopped: .*Is a directory.*The same command goes on"):
        run(folder)
    (folder / "out.details.csv").rmdir()
    held = os.open(folder / "in", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(SystemExit, match="another run is grading this folder"):
        run(folder)
    os.close(held)
    assert run(folder) == 0 and "No notebook was found in: zed.zip." in capsys.readouterr().out


def test_a_table_that_cannot_be_written_leaves_the_old_one_alone(tmp_path, monkeypatch):
    path = tmp_path / "out.csv"
    path.write_text("kept")
    monkeypatch.setattr(type(path), "replace", lambda *_: (_ for _ in ()).throw(OSError("No space left on device")))
    with pytest.raises(OSError, match="No space"):
        sheets.write_table(path, [], ("student",))
    assert [file.name for file in tmp_path.iterdir()] == ["out.csv"] and path.read_text() == "kept"


def test_help_says_what_every_state_means(capsys):
    with pytest.raises(SystemExit):
        main(["grade", "--help"])
    text = capsys.readouterr().out
    assert all(state in text and sentence in text for state, sentence in STATES.items())


def test_a_terminal_has_a_progress_bar(small):
    import pty
    import termios

    folder, _ = small
    terminal, end = pty.openpty()
    termios.tcsetwinsize(end, (24, 80))
    process = subprocess.Popen([sys.executable, "-m", "flashedu", "grade", str(folder / "in"), "--csv", str(folder / "out.csv")], stdout=subprocess.DEVNULL, stderr=end)
    os.close(end)
    shown = b""
    while True:
        try:
            shown += os.read(terminal, 1000)
        except OSError:  # the other side is closed
            break
    assert process.wait() == 0 and b"2/2" in shown


def test_a_class_can_be_measured():
    end = subprocess.run([sys.executable, str(many.ROOT / "tools" / "measure_class.py"), "--students", "2", "--chapters", "7"], capture_output=True, text=True)
    assert end.returncode == 0, end.stderr
    assert "2 files of 2 students" in end.stdout and re.search(r"2 notebooks of 2 students in [\d.]+ s with 2 at a time: [\d.]+ s a notebook", end.stdout)
