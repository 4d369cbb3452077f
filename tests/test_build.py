"""The builder, on sources of a few lines."""

import json
from pathlib import Path

import build
import nbformat
import pytest

PACKAGE = '''import numpy as np
from dataclasses import dataclass

from flashedu.arguments import validated


@validated
def double(x,
           y=1):
    """Twice x.

    Takes x (N,).
    """

    # why two
    s = 2 * x

    return s  # (N,)


@dataclass(frozen=True)
class Tile:
    """Rows of an array."""

    rows: int


def bare(x):
    return x


@triton.jit
def kernel(
    x_ptr, N: tl.constexpr,
):
    columns = tl.arange(0, N)
    tl.store(x_ptr + columns, 0)  # (N,)
'''


@pytest.fixture
def course(tmp_path):
    """A function that writes the sources of a course and returns its root."""

    def write(chapter="# %%\n1\n", exercise=None):
        files = {
            "flashedu/__init__.py": "",
            "flashedu/arguments.py": "def validated(f):\n    return f\n",
            "flashedu/small.py": PACKAGE,
            "sources/chapters/02_small_things.py": chapter,
        }
        if exercise is not None:
            files["sources/exercises/02_small_things.py"] = exercise
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def cells(root, kind="chapters", solutions=True):
    return build.notebook(root / f"sources/{kind}/02_small_things.py", solutions, root).cells


def test_include_is_the_packages_own_text(course):
    root = course("# %%\n# include: flashedu.small:double\n# %%\n# include: flashedu.small:Tile\nt = Tile(3)\n")
    function, with_more = cells(root)
    assert function.source == PACKAGE[PACKAGE.index("def double") : PACKAGE.index("\n\n\n@dataclass")]
    assert (
        with_more.source
        == '@dataclass(frozen=True)\nclass Tile:\n    """Rows of an array."""\n\n    rows: int\nt = Tile(3)'
    )


def test_exercise_keeps_signature_and_docstring(course):
    root = course(exercise="# %%\n# exercise: flashedu.small:double\n")
    head = 'def double(x,\n           y=1):\n    """Twice x.\n\n    Takes x (N,).\n    """\n'
    body = "    ### BEGIN SOLUTION\n    # why two\n    s = 2 * x\n\n    return s  # (N,)\n    ### END SOLUTION"
    assert cells(root, "exercises")[0].source == head + body
    assert cells(root, "exercises", solutions=False)[0].source == (
        head + "    raise NotImplementedError  # your code here"
    )


def test_a_kernel_becomes_an_exercise_without_a_docstring(course):
    root = course(exercise="# %%\n# exercise: flashedu.small:kernel\n")
    head = "@triton.jit\ndef kernel(\n    x_ptr, N: tl.constexpr,\n):\n"
    body = "    ### BEGIN SOLUTION\n    columns = tl.arange(0, N)\n    tl.store(x_ptr + columns, 0)  # (N,)\n    ### END SOLUTION"
    assert cells(root, "exercises")[0].source == head + body
    stub = cells(root, "exercises", solutions=False)[0].source
    assert stub == head + "    raise NotImplementedError  # your code here"


def test_solutions_written_by_hand_are_cut(course):
    text = "# %%\ndef f(x):\n    if x:\n        ### BEGIN SOLUTION\n        secret = 1\n        ### END SOLUTION\n    return 0\n"
    text += "# %%\ndef g():\n    ### BEGIN SOLUTION\n    secret = 2\n    ### END SOLUTION\n"
    f, g = cells(course(exercise=text), "exercises", solutions=False)
    assert f.source == "def f(x):\n    if x:\n        raise NotImplementedError  # your code here\n    return 0"
    assert g.source == "def g():\n    raise NotImplementedError  # your code here"


def test_prose_and_comments_are_left_alone(course):
    root = course("# %% [markdown]\n# include: this is prose\n# %%\n# note: see (a): b\n# !ls\n# %%timeit\nx = 1\n")
    prose, code = cells(root)
    assert prose.source == "include: this is prose"
    assert code.source == "# note: see (a): b\n# !ls\n# %%timeit\nx = 1"


def test_ids_and_metadata_follow_from_the_source(course):
    root = course('# %% [markdown]\n# # Title\n\n# %% tags=["a"]\nx = 1\n\n\n\n# %%\nx\n')
    nb = build.notebook(root / "sources/chapters/02_small_things.py", True, root)
    nbformat.validate(nb)
    assert [cell.id for cell in nb.cells] == [f"02-small-things-00{i}" for i in (1, 2, 3)]
    assert [cell.metadata for cell in nb.cells] == [{}, {"tags": ["a"]}, {}]
    assert (nb.nbformat, nb.nbformat_minor) == (4, 5)
    assert nb.metadata.language_info == {"name": "python"}


@pytest.mark.parametrize("solutions", [True, False])
def test_nbgrader_is_told_which_cells_are_solutions_and_checks(course, solutions):
    text = "# %% [markdown]\n# ### BEGIN SOLUTION\n\n# %%\nx = 1\ncheck(f)\n\n# %%\n# exercise: flashedu.small:kernel\n\n\ndef f(x):\n"
    text += "    ### BEGIN SOLUTION\n    return x\n    ### END SOLUTION\n\n# %%\ncheck(f).score\n"
    nb = build.notebook(course(exercise=text) / "sources/exercises/02_small_things.py", solutions, course())
    assert nb.cells[0].source == build.BEGIN
    marks = [cell.metadata.get("nbgrader") for cell in nb.cells]
    same = {"schema_version": 3, "task": False}
    assert marks == [
        None,
        None,
        {"grade": False, "grade_id": "f", "locked": False, "solution": True, **same},
        {"grade": True, "grade_id": "check_f", "locked": True, "points": 1, "solution": False, **same},
    ]


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("# %%\nx = 1\n# include: flashedu.small:triple\n", 3, "flashedu.small has no function or class 'triple'"),
        ("# %%\n# include: flashedu.large:double\n", 2, "there is no module 'flashedu.large'"),
        ("# %%\n# include:\n", 2, "there is no module ''"),
        ("# %%\n# inclde: flashedu.small:double\n", 2, "'inclde' is no directive"),
        ("# %%\n# exercise: flashedu.small:bare\n", 2, "needs a docstring and a body"),
        ("# %%\ndef f():\n    ### BEGIN SOLUTION\n    pass\n# %%\n", 3, "no end in its cell"),
        ("# %%\n### BEGIN SOLUTION\n", 2, "no end in its cell"),
        ("# %%\n### END SOLUTION\n", 2, "does not pair"),
        ("# %%\n### BEGIN SOLUTION\n### BEGIN SOLUTION\n", 3, "does not pair"),
    ],
)
def test_a_mistake_in_a_source_is_one_sentence(course, capsys, text, line, what):
    root = course(text)
    assert build.main([], root) == 1
    message = capsys.readouterr().err.strip()
    assert message.startswith(f"sources/chapters/02_small_things.py, line {line}: ")
    assert what in message and message.endswith(".") and "\n" not in message
    assert not list(root.glob("chapters/*.ipynb"))


def test_build_executes_and_a_rebuild_changes_nothing(course):
    chapter = "# %%\nimport os, sys\nprint(os.path.basename(os.getcwd()))\nprint('err', file=sys.stderr)\n# %%\n6 * 7\n"
    root = course(chapter, "# %%\n# exercise: flashedu.small:double\n# %%\nprint(double(4))\n")
    assert build.main([], root) == 0
    paths = [root / folder / "02_small_things.ipynb" for folder in build.TARGETS]
    first = [path.read_bytes() for path in paths]
    chapter, exercise, solution = (nbformat.read(path, 4).cells for path in paths)
    assert [output.text for output in chapter[0].outputs] == ["chapters\n", "err\n"]
    assert chapter[1].outputs[0].data["text/plain"] == "42"
    assert [cell.outputs for cell in exercise] == [[], []]
    assert solution[1].outputs[0].text == "8\n"
    assert build.main(["02"], root) == 0
    assert [path.read_bytes() for path in paths] == first
    assert b"NotImplementedError" in first[1] and b"2 * x" not in first[1] and b"SOLUTION" not in first[1]


def test_progress_of_a_learner_is_not_written(course, progress_file):
    root = course("# %%\nimport os\nopen(os.environ['FLASHEDU_PROGRESS'], 'w').write('{}');\n")
    assert build.main([], root) == 0
    assert not progress_file.exists()


def test_an_output_holds_no_live_widget(course):
    root = course("# %%\nimport ipywidgets\nipywidgets.IntSlider()\n")
    assert build.main([], root) == 0
    nb = json.loads((root / "chapters/02_small_things.ipynb").read_text())
    assert list(nb["cells"][0]["outputs"][0]["data"]) == ["text/plain"]
    assert "widgets" not in nb["metadata"]


def test_an_error_in_a_cell_names_notebook_cell_and_error(course, capsys):
    root = course("# %% [markdown]\n# # Title\n# %%\n1\n# %%\n1 / 0\n")
    assert build.main([], root) == 1
    assert (
        capsys.readouterr().err.strip() == "chapters/02_small_things.ipynb, cell 3: ZeroDivisionError: division by zero"
    )
    assert not list(root.glob("chapters/*.ipynb"))


def test_only_the_named_notebooks_are_built(course):
    root = course()
    assert build.main(["03"], root) == 1
    assert not (root / "chapters").exists()


def test_check_names_what_is_stale(course, capsys):
    root = course(exercise="# %%\n# exercise: flashedu.small:double\n")
    assert build.main([], root) == 0
    assert build.main(["--check"], root) == 0
    capsys.readouterr()
    (root / "flashedu/small.py").write_text(PACKAGE.replace("2 * x", "x + x"))
    (root / "sources/chapters/03_new.py").write_text("# %%\n1\n")
    (root / "sources/chapters/02_small_things.py").rename(root / "sources/chapters/02_renamed.py")
    assert build.main(["--check"], root) == 1
    stale = [line.split()[0] for line in capsys.readouterr().err.splitlines()]
    assert stale == [
        "chapters/02_renamed.ipynb",  # not built
        "chapters/02_small_things.ipynb",  # without a source
        "chapters/03_new.ipynb",
        "solutions/02_small_things.ipynb",  # the stub in exercises/ is the same as before
    ]


def test_answers_are_never_overwritten(course, capsys):
    root = course(exercise="# %%\n# exercise: flashedu.small:double\n")
    path = root / "exercises/02_small_things.ipynb"
    build.build(["02"], root)
    assert not build.is_saved_by_a_reader(path)
    nb = nbformat.read(path, 4)
    nb.cells[0].source = "my answer"
    nb.metadata.language_info = {"name": "python", "version": "3.12.1"}  # as JupyterLab saves it
    nbformat.write(nb, path)
    saved = path.read_bytes()
    build.build(["02"], root)
    assert path.read_bytes() == saved and "kept: it may hold answers" in capsys.readouterr().out
    assert build.main(["--check"], root) == 1
    assert "move it away" in capsys.readouterr().err


def test_a_prefix_without_a_source_is_told(course, capsys):
    assert build.main(["99"], course()) == 1
    assert "no source whose name begins with '99'" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"<<<<<<< HEAD", b"\xff\xfe"])
@pytest.mark.parametrize("arguments", [["02"], ["--check"]])
def test_what_is_no_notebook_is_kept_and_told(course, capsys, content, arguments):
    root = course(exercise="# %%\n# exercise: flashedu.small:double\n")
    path = root / "exercises/02_small_things.ipynb"
    path.parent.mkdir()
    path.write_bytes(content)
    assert build.main(arguments, root) == 1
    assert path.read_bytes() == content and "02_small_things.ipynb is not a notebook: mend it, or move it away" in capsys.readouterr().err


@pytest.mark.parametrize("error, words", [(OSError("No space left on device"), "No space left"), (KeyboardInterrupt(), "Interrupted")])
def test_a_build_that_stops_leaves_the_old_notebook_alone(course, capsys, monkeypatch, error, words):
    root = course(exercise="# %%\n# exercise: flashedu.small:double\n")
    path = root / "exercises/02_small_things.ipynb"
    build.build(["02"], root)
    saved = path.read_bytes()

    def half(nb, target):
        Path(target).write_text("half")
        raise error

    monkeypatch.setattr(build.nbformat, "write", half)
    assert build.main(["02"], root) == 1
    assert words in capsys.readouterr().err and path.read_bytes() == saved and [file.name for file in path.parent.iterdir()] == [path.name]
