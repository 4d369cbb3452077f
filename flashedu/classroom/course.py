"""Laying out an nbgrader course: an assignment for each chapter, from the course's solutions."""
import json
import os
import secrets
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

SOLUTIONS = Path(__file__).parents[2] / "solutions"
CONFIG = '''\
from pathlib import Path

from nbgrader.converters.autograde import Autograde

from flashedu.classroom.nbgrader import grader, restorer

c = get_config()
here = Path(__file__).parent

# What a student finds in place of a solution.
c.ClearSolutions.code_stub = {"python": "raise NotImplementedError  # your code here"}

# Which cells are checks is what release/ says, whatever was copied, deleted or edited.
c.Autograde.sanitize_preprocessors = [restorer(here), *Autograde.sanitize_preprocessors.default()]

# flashedu judges the functions, in a process of its own and on hidden cases; nbgrader's first step would run the notebook's own cells.
_, *further = Autograde.autograde_preprocessors.default()
c.Autograde.autograde_preprocessors = [grader(here), *further]
'''
README = """\
1. Hand out what is in release/, one folder for each chapter; source/ has the solutions.
2. Put what comes back into submitted/STUDENT/chapter_1/, under the name that it was handed out with.
3. Grade it in this folder: `{nbgrader} autograde chapter_1`; then `{nbgrader} export` writes grades.csv, and `{nbgrader} generate_feedback chapter_1` pages.
4. The hidden cases follow from seed.txt. Keep that file to yourself, and keep it: the same seed gives the same grades.
5. Grading runs the students' code with your rights; it is no sandbox.
"""


def lay_out(folder):
    """Make `folder`, which may not hold anything, an nbgrader course with source/ and release/; raises SystemExit with one sentence."""
    folder = Path(folder).absolute()
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise SystemExit(f"{folder} is not empty: name a folder that does not exist yet.")
    if find_spec("nbgrader") is None:
        raise SystemExit("nbgrader is not installed here: `make class DIR=...` installs it and then does the same.")
    notebooks = sorted(SOLUTIONS.glob("*.ipynb"))
    if not notebooks:
        raise SystemExit(f"There are no notebooks in {SOLUTIONS}: a class is made from a copy of the whole course.")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _fill(folder, notebooks)
    except BaseException:  # nothing half made, which the next try would refuse
        shutil.rmtree(folder)
        raise
    print(f"{folder} is an nbgrader course of {len(notebooks)} assignments: its README.md says how to go on.")


def _fill(folder, notebooks):
    programs = Path(sys.executable).parent
    (folder / "nbgrader_config.py").write_text(CONFIG, encoding="utf-8")
    (folder / "README.md").write_text(README.format(nbgrader=programs / "nbgrader"), encoding="utf-8")
    with open(os.open(folder / "seed.txt", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as seed:
        seed.write(secrets.token_hex(16) + "\n")
    for path in notebooks:
        source = folder / "source" / f"chapter_{int(path.name[:2])}" / path.name
        source.parent.mkdir(parents=True)
        nb = json.loads(path.read_text(encoding="utf-8"))
        for cell in nb["cells"]:
            cell.update({"outputs": [], "execution_count": None} if cell["cell_type"] == "code" else {})
        source.write_text(json.dumps(nb, indent=1) + "\n", encoding="utf-8")
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"}  # nbgrader looks for alembic there
    end = subprocess.run([sys.executable, "-m", "nbgrader", "generate_assignment", "chapter_*"], cwd=folder, env=environment, capture_output=True, text=True)
    if end.returncode:
        raise SystemExit(f"nbgrader could not make release/: {(end.stderr or end.stdout).strip()}")
