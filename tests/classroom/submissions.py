"""Submitted notebooks of every kind, made from those of the course: right, wrong, stubs, those that crash, and those that cheat."""
import copy
import inspect
import json
import random
from pathlib import Path

from flashedu import cost, reference
from flashedu.grading.mistakes import MISTAKES
from flashedu.grading.mistakes.edits import edited

ROOT = Path(__file__).parents[2]


def handed_out(number):
    """The path of exercises/NN_name.ipynb."""
    return next(ROOT.glob(f"exercises/{number:02d}_*.ipynb"))


def stub(number):
    """The notebook as it was handed out, a dict."""
    return json.loads(handed_out(number).read_text(encoding="utf-8"))


def right(number):
    """The same with the course's solutions."""
    return json.loads((ROOT / "solutions" / handed_out(number).name).read_text(encoding="utf-8"))


def source(cell):
    return "".join(cell["source"])


def code(text):
    return {"cell_type": "code", "id": f"added-{abs(hash(text)) % 10**8}", "metadata": {}, "execution_count": None, "outputs": [], "source": text}


def cell_of(nb, exercise):
    """The cell that defines a function."""
    return next(cell for cell in nb["cells"] if cell["cell_type"] == "code" and f"def {exercise}(" in source(cell))


def with_answer(nb, exercise, text):
    """A copy in which the cell that defines the exercise holds `text`."""
    nb = copy.deepcopy(nb)
    cell_of(nb, exercise)["source"] = text
    return nb


def with_first(nb, text):
    """A copy with one code cell more, at the top."""
    return {**nb, "cells": [code(text), *nb["cells"]]}


def with_last(nb, text):
    """A copy with one code cell more, at the end."""
    return {**nb, "cells": [*nb["cells"], code(text)]}


def wrong(number, exercise, slug, nb=None):
    """A copy of the solutions (or of nb) with one mistake of the zoo; of exercises in NumPy, and of triton_softmax."""
    nb = nb or right(number)
    mistake = next(mistake for mistake in MISTAKES[exercise] if mistake.slug == slug)
    if exercise == "triton_softmax":
        return with_answer(nb, exercise, edited(source(cell_of(nb, exercise)), mistake.edits, slug))
    text = inspect.getsource(inspect.unwrap(getattr(reference, exercise, None) or getattr(cost, exercise)))
    return with_answer(nb, exercise, edited(text[text.index("def "):], mistake.edits, slug))


def cell_crashes(nb, exercise, text):
    """A copy in which `text` runs after the function's definition, in a cell of its own."""
    nb = copy.deepcopy(nb)
    where = nb["cells"].index(cell_of(nb, exercise))
    nb["cells"].insert(where + 1, code(text))
    return nb


ANSWER_CRASHES = {  # bodies of functions that a check survives: (what the body does, words of the message)
    "exit": ("import os; os._exit(3)", "exit status 3"),
    "SIGKILL": ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
    "endless loop": ("while True: pass", "stopped while it was running"),
    "10 GB": ("return np.ones(10 * 2**30 // 8)", "MemoryError"),
    "recursion": ("return stable_softmax(x)", "RecursionError"),
}
CELL_CRASHES = {  # cells that end or hold up their process: (the cell, the state, words of the reason)
    "exit": ("import os; os._exit(3)", "died", "exit status 3"),
    "SIGKILL": ("import os; os.kill(os.getpid(), 9)", "died", "SIGKILL"),
    "segmentation fault": ("import ctypes; ctypes.string_at(0)", "died", "SIGSEGV"),
    "endless loop, deaf": ("import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})\nwhile True: pass", "stopped", "still running"),
}
CELL_NUISANCES = {  # cells that cost nothing but themselves: (the cell, words that a row would be told, or None)
    "10 GB": ("import numpy as np; whole = np.ones(10 * 2**30 // 8)", "MemoryError"),
    "threads without end": ("import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(1000,)).start()", "can't start new thread"),
    "prints of 100 MB": ("for _ in range(100): print('x' * 2**20)", None),
    "recursion": ("def deep(): return deep()\ndeep()", "RecursionError"),
    "endless loop": ("while True: pass", "still running"),
    "exit()": ("raise SystemExit(3)", "SystemExit"),
    "magics": ("%matplotlib inline\n!ls /\n%timeit 1 + 1\nx = !ls", None),
    "input": ("input()", "EOFError"),
}
TAMPERED = {  # cells that replace what judges them, in a notebook of chapter 3: (the cell, what was replaced)
    "numpy.array_equal": ("import numpy as np\nnp.array_equal = lambda *args, **kwargs: True", "numpy.array_equal"),
    "numpy.abs": ("import numpy as np\nnp.abs = np.zeros_like", "numpy.abs"),
    "isinstance": ("import builtins\nbuiltins.isinstance = lambda *args: True", "builtins.isinstance"),
    "Machine.load": ("from flashedu.machine import Machine\nMachine.load = lambda self, name, start, stop: self._hbm[name][start:stop]", "flashedu.machine.Machine.load"),
}
HARMLESS_CHEATS = {  # cells that try, and change nothing: none of them gives a stub a point
    "flashedu.check": "import flashedu\nflashedu.check = flashedu.score = lambda *args, **kwargs: 1.0",
    "judge": "import flashedu.grading.judging as judging\njudging.judge = None",
    "check": "check = require = lambda *args: None",
    "the answer's notebook": "%run ../solutions/01_the_matrix_that_should_not_exist.ipynb",
    "the course's answers": "from flashedu.reference import stable_softmax, naive_attention",
    "importlib": "import importlib\nstable_softmax = importlib.import_module('flashedu.reference').stable_softmax",
    "the course's tests": "from tests.grading.right_answers import RIGHT",
}


def write(nb, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(nb), encoding="utf-8")


def write_class(folder, students, numbers, seed=0):
    """A class's submissions, DIR/STUDENT/NN_name.ipynb: mostly right, some wrong, some stubs, some that crash or cheat.

    Returns {(student, number): kind}.
    """
    choose, kinds = random.Random(seed), {}
    for student in (f"student-{n:03d}" for n in range(1, students + 1)):
        for number in numbers:
            kind = choose.choices(("right", "wrong", "stub", "endless", "crash", "tampered"), (50, 30, 10, 4, 3, 3))[0]
            nb = stub(number) if kind == "stub" else right(number)
            exercise = choose.choice([name for name in MISTAKES if any(f"def {name}(" in source(cell) for cell in nb["cells"] if cell["cell_type"] == "code")])
            if kind == "wrong":
                nb = wrong(number, exercise, choose.choice(MISTAKES[exercise]).slug)
            elif kind == "endless":
                nb = with_answer(nb, exercise, f"def {exercise}(*args):\n    while True: pass")
            elif kind == "crash":
                nb = cell_crashes(nb, exercise, CELL_CRASHES["exit"][0])
            elif kind == "tampered":
                nb = with_first(nb, TAMPERED["numpy.array_equal"][0])
            write(nb, folder / student / handed_out(number).name)
            kinds[student, number] = kind
    return kinds
