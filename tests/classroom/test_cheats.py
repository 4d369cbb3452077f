"""No point is to be had by editing checks, by overwriting what judges, or by importing the course's answers."""
import json
import pickle
import sys

import pytest
import submissions
from submissions import handed_out, right, stub, with_answer, with_first, with_last

from flashedu.classroom.handed_out import read_handed_out
from flashedu.classroom.one import grade_notebook
from flashedu.classroom.stand_in import instead, namespace, stand_in

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


REACHING = {  # ways to the course's answer that do not go through an import statement, each in a function of naive_attention
    "sys.modules": "import sys; theirs = sys.modules['flashedu.reference'].naive_attention",
    "builtins": "import builtins; theirs = builtins.__import__('flashedu.reference', fromlist=['x']).naive_attention",
    "importlib": "import importlib; theirs = importlib.__import__('flashedu.reference', fromlist=['x']).naive_attention",
    "pkgutil": "import pkgutil; theirs = pkgutil.resolve_name('flashedu.reference:naive_attention')",
    "pydoc": "import pydoc; theirs = pydoc.locate('flashedu.reference.naive_attention')",
    "gc": "import gc; theirs = next(x for x in gc.get_objects() if getattr(x, '__name__', '') == 'naive_attention' and x.__module__ != '__main__')",
    "frames": "import inspect; theirs = next(x.frame.f_locals['exercise'].reference for x in inspect.stack() if 'exercise' in x.frame.f_locals)",
    "_getframe": "import sys; theirs = sys._getframe(3).f_locals['exercise'].reference",
    "traceback": "\n    try: 1 / 0\n    except Exception as error: theirs = error.__traceback__.tb_frame.f_back.f_back.f_locals['exercise'].reference",
    "notebook": f"import json, pathlib; theirs = json.loads(pathlib.Path({str(submissions.ROOT)!r}, 'solutions', '01_the_matrix_that_should_not_exist.ipynb').read_text())",
    "process": "import subprocess, sys; theirs = subprocess.run([sys.executable, '-c', 'import flashedu.reference'])",
}


@pytest.mark.parametrize("way", REACHING)
def test_the_answers_cannot_be_reached(way):
    text = f"def naive_attention(q, k, v, causal=False):\n    {REACHING[way]}\n    return theirs(q, k, v, causal)"
    graded = grade_notebook(with_answer(right(1), "naive_attention", text), handed_out(1))
    row = graded.exercises[1]
    assert graded.state == "graded" and (row.state, row.score) == ("error", 0.0) and [other.score for other in graded.exercises] == [1.0, 0.0, 1.0]
    assert "KeyError" in row.message if way == "sys.modules" else "not available while answers are graded" in row.message


@pytest.mark.parametrize("cell, name", [
    ("import json\njson.dumps = lambda *args, **kwargs: ''", "json.dumps"),
    ("from multiprocessing.connection import Connection\nConnection.recv = lambda self: ('result', None)", "multiprocessing.connection.Connection.recv"),
    ("import numpy._core._methods as m\nm._amax = lambda *args, **kwargs: 0.0", "numpy._core._methods._amax"),
])
def test_what_verdicts_travel_through_is_watched(cell, name):
    assert grade_notebook(with_first(right(1), cell), handed_out(1)).reason == f"It replaced what judges it: {name}."


def test_what_a_package_replaces_is_nobodys_fault():
    """torch does so with inspect.getfile."""
    pytest.importorskip("torch")
    assert {row.score for row in grade_notebook(with_first(right(2), "import torch, torch.package, logging\nlogging.captureWarnings(True)"), handed_out(2)).exercises} == {1.0}


def test_a_verdict_of_its_own_is_not_heard():
    row = {"exercise": "naive_attention", "state": "passed", "score": 1.0, "message": ""}
    lines = "\\n".join(json.dumps(message) for message in ({"allow": 9, "verdict": row}, {"allow": 9, "end": "", "reason": ""})) + "\\nno JSON\\n"
    cell = f"import os, time\nfor n in range(3, 50):\n    try: os.write(n, b'{lines}')\n    except OSError: pass\ntime.sleep(1)"
    assert {row.score for row in grade_notebook(with_first(stub(1), cell), handed_out(1)).exercises} == {0.0}


FORGETFUL = """import numpy as np, tracemalloc
def online_attention(q, k, v, block_size):
    s = q @ k.T / np.sqrt(q.shape[1]).astype(q.dtype)
    p = np.exp(s - s.max(1, keepdims=True))
    o = (p @ v) / p.sum(1, keepdims=True)
    del s, p
    tracemalloc.reset_peak()
    return o"""


@pytest.mark.parametrize("number, exercise, text, words", [
    (1, "naive_traffic", "class Two(tuple):\n    def __len__(self): return 2\ndef naive_traffic(*numbers): return Two()", "but it returned a Two of length 2"),
    (2, "online_attention", FORGETFUL, "changed what tracemalloc had counted"),
    (3, "tiled_on_machine", "def tiled_on_machine(machine, *blocks): machine.read_bytes = 3", "the machine counts by itself"),
])
def test_what_counts_cannot_be_talked_into_it(number, exercise, text, words):
    row = next(row for row in grade_notebook(with_answer(right(number), exercise, text), handed_out(number)).exercises if row.exercise == exercise)
    assert row.score < 1.0 and words in row.message


@pytest.mark.parametrize("number", [2, 3])
def test_numpys_errors_as_a_notebook_sets_them_change_nothing(number):
    assert {row.score for row in grade_notebook(with_first(right(number), "import numpy as np\nnp.seterr(all='raise')"), handed_out(number)).exercises} == {1.0}


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
    scope, root = namespace(), stand_in(("flashedu.check", "flashedu.demos.your_kernel", "flashedu.machine.Machine", "flashedu.machine.Machine.for_attention"))
    real = {name: module for name, module in sys.modules.items() if name.startswith("flashedu")}
    with instead(root):
        exec("from flashedu import check, demos, require\nfrom flashedu.machine import Machine\nverdict = check(len)\npassed = verdict.passed\ndemos.your_kernel(len)", scope)
        for line in ("import flashedu.grading", "from flashedu.machine import SramOverflow", "from flashedu import cost"):
            with pytest.raises(ImportError, match="is not available while answers are graded"):
                exec(line, scope)
        with pytest.raises(AttributeError, match=r"flashedu\.machine\.tile is not available"):
            exec("import flashedu.machine\nflashedu.machine.tile", scope)
    assert scope["Machine"] is real["flashedu.machine"].Machine and scope["passed"] is scope["verdict"]
    assert {name: module for name, module in sys.modules.items() if name.startswith("flashedu")} == real
