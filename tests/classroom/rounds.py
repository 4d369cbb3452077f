"""A round of nbgrader's commands, and submissions for it."""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import submissions as made
from build import ROOT

FIRST, KERNELS = "01_the_matrix_that_should_not_exist", "04_a_real_kernel"
PARTLY_RIGHT = "def stable_softmax(x):\n    e = np.exp(x - x.max(-1, keepdims=True))\n    return e / e.sum(-1, keepdims=True)"  # no row of -inf


def nbgrader(folder, *arguments, code=0):
    """Run nbgrader in a folder as somebody does who has not activated the environment; returns what it says."""
    programs = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    end = subprocess.run([sys.executable, "-m", "nbgrader", *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    assert end.returncode == code, end.stdout + end.stderr
    return end.stdout + end.stderr


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def kinds_of(stub, right):
    """{student: submission} of chapter 1, from the notebook that was handed out and the one with the solutions."""
    partly = made.with_answer(right, "stable_softmax", PARTLY_RIGHT)
    ids = {f"check_{name}" for name in ("stable_softmax", "naive_attention", "naive_traffic")}
    return {
        "right": right,
        "stub": stub,
        "wrong": partly,
        "crashing": made.with_answer(right, "naive_attention", f"def naive_attention(q, k, v, causal=False):\n    {made.ANSWER_CRASHES['exit'][0]}"),
        "crashing-cell": made.cell_crashes(stub, "stable_softmax", made.CELL_CRASHES["exit"][0]),
        "tampered": made.with_first(right, made.TAMPERED["numpy.array_equal"][0]),
        "overwritten": made.with_first(stub, made.HARMLESS_CHEATS["flashedu.check"]),
        "edited": {**partly, "cells": [{**cell, "source": "1.0"} if made.source(cell).startswith("check(") else cell for cell in partly["cells"]]},
        "deleted": {**partly, "cells": [cell for cell in partly["cells"] if cell["metadata"].get("nbgrader", {}).get("grade_id") not in ids]},
        "copied": {**partly, "cells": [{**cell, "id": f"{n}-{cell['id']}"} for cell in partly["cells"] for n in (1, 2)]},
        "without-metadata": {**partly, "cells": [{**cell, "metadata": {}} for cell in partly["cells"]]},
        "without-ids": {**partly, "nbformat_minor": 0, "cells": [{k: v for k, v in cell.items() if k != "id"} for cell in partly["cells"]][:-4]},
    }


def autograded(folder, student, name, assignment):
    """{exercise: its points} of an autograded notebook, as nbgrader reads them."""
    from nbgrader.utils import determine_grade, is_grade

    nb = nbformat.read(folder / "autograded" / student / assignment / f"{name}.ipynb", 4)
    return {cell.metadata.nbgrader.grade_id.removeprefix("check_"): determine_grade(cell)[0] for cell in nb.cells if is_grade(cell)}


def functions_in(nb):
    """{exercise: the function} that a harmless notebook defines, each as it finds the others."""
    names = {}
    for cell in nb["cells"]:
        if cell["cell_type"] == "code" and re.match(r"import numpy|def ", made.source(cell)):
            exec(made.source(cell), names)
    return {name: names[name] for name in ("stable_softmax", "naive_attention", "naive_traffic")}
