"""Build the notebooks from their sources.

    sources/chapters/NAME.py   ->  chapters/NAME.ipynb    executed, with outputs
    sources/exercises/NAME.py  ->  exercises/NAME.ipynb   solutions cut out, no outputs
                               ->  solutions/NAME.ipynb   solutions in, executed

A source is jupytext's py:percent format. A code cell may hold a directive, alone on its line:

    # include: flashedu.machine:Machine                         the object's own source
    # exercise: flashedu.reference.online:online_attention      the same, its body between the solution markers

Solutions written by hand use the same markers, `### BEGIN SOLUTION` and `### END SOLUTION`. The cells that hold solutions, and
those that are `check(function).score`, are marked for nbgrader.
"""

import argparse
import ast
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

ROOT = Path(__file__).resolve().parent.parent
TARGETS = {  # folder of notebooks: (folder of its sources, are the solutions in and the cells run)
    "chapters": ("chapters", True),
    "exercises": ("exercises", False),
    "solutions": ("exercises", True),
}
LANGUAGE = {"name": "python"}
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
STUB = "raise NotImplementedError  # your code here"
PERCENT = {"extension": ".py", "format_name": "percent", "comment_magics": False}
NEITHER = {"grade": False, "locked": False, "schema_version": 3, "solution": False, "task": False}
WIDGET = "application/vnd.jupyter.widget-view+json"
CELL_TIMEOUT_S = 600


class BuildError(Exception):
    """What is wrong with a source or a notebook, in one sentence that names the place."""


def object_source(target: str, root: Path) -> list[str]:
    """The lines of the function or class `module:name`.

    The package's own decorators, such as argument checks, are dropped; others, such as `@dataclass`, stay.
    """
    module, _, name = target.partition(":")
    stem = root.joinpath(*module.split("."))
    path = next((p for p in (stem.with_suffix(".py"), stem / "__init__.py") if p.is_file()), None)
    if path is None:
        raise BuildError(f"there is no module {module!r}")
    lines = path.read_text(encoding="utf-8").splitlines()
    tree = ast.parse("\n".join(lines))
    defined = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    if name not in defined:
        raise BuildError(f"{module} has no function or class {name!r}")
    imports = [n for n in tree.body if isinstance(n, ast.ImportFrom) and (n.level or n.module.startswith("flashedu"))]
    own = {alias.asname or alias.name for n in imports for alias in n.names}
    node, kept = defined[name], []
    for decorator in node.decorator_list:
        if re.match(r"\w+", ast.unparse(decorator))[0] not in own:
            kept += lines[decorator.lineno - 1 : decorator.end_lineno]
    return kept + lines[node.lineno - 1 : node.end_lineno]


def exercise_source(target: str, root: Path) -> list[str]:
    """The same lines, with all that follows the docstring between the solution markers; a kernel needs no docstring."""
    lines = object_source(target, root)
    node = ast.parse("\n".join(lines)).body[0]
    described = ast.get_docstring(node) is not None
    kernel = "triton.jit" in map(ast.unparse, node.decorator_list)  # its launcher says what it does
    if not (described or kernel) or len(node.body) <= described:
        raise BuildError(f"{target} needs a docstring and a body to become an exercise")
    head = node.body[0].end_lineno if described else node.body[0].lineno - 1
    body = "\n".join(lines[head:]).strip("\n")
    return [*lines[:head], f"    {BEGIN}", body, f"    {END}"]


DIRECTIVES = {"include": object_source, "exercise": exercise_source}


def expand(source: Path, root: Path) -> str:
    """The source's text with its directives replaced; every solution in it ends in the cell where it begins."""
    out, in_code, begun = [], True, 0
    lines = source.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate([*lines, "# %%"], start=1):  # one header more, so that the last cell ends
        here = f"{source.relative_to(root).as_posix()}, line"
        directive = re.match(r"# (\w+): *(.*)", line) if in_code else None
        if re.match(r"# %%(\s|$)", line):
            if begun:
                raise BuildError(f"{here} {begun}: this solution has no end in its cell.")
            in_code = "[markdown]" not in line
        elif line.strip() in (BEGIN, END):
            if (line.strip() == END) != bool(begun):
                raise BuildError(f"{here} {number}: {line.strip()!r} does not pair with the marker before it.")
            begun = 0 if begun else number
        if directive and directive[1] in DIRECTIVES:
            try:
                out += DIRECTIVES[directive[1]](directive[2].strip(), root)
            except BuildError as error:
                raise BuildError(f"{here} {number}: {error}.") from None
        elif directive and directive[2].startswith("flashedu."):
            raise BuildError(f"{here} {number}: {directive[1]!r} is no directive; there are include and exercise.")
        else:
            out.append(line)
    return "\n".join(out[:-1]) + "\n"


def cut(text: str) -> str:
    """The text with each solution, markers included, replaced by a line that raises NotImplementedError."""
    return re.sub(rf"^([ \t]*){BEGIN}$.*?^[ \t]*{END}$", rf"\1{STUB}", text, flags=re.DOTALL | re.MULTILINE)


def mark(cell: nbformat.NotebookNode) -> None:
    """Tell nbgrader what a code cell is: a solution, named after the last function that it defines, or a check, worth one point."""
    if checked := re.fullmatch(r"check\((\w+)\)\.score", cell.source):
        cell.metadata.nbgrader = {**NEITHER, "grade": True, "locked": True, "points": 1, "grade_id": f"check_{checked[1]}"}
    elif BEGIN in cell.source:
        defined = re.findall(r"^def (\w+)", cell.source, re.MULTILINE)
        if not defined:
            raise BuildError(f"A solution belongs into a function, but this cell defines none: {cell.source!r}")
        cell.metadata.nbgrader = {**NEITHER, "solution": True, "grade_id": defined[-1]}


def notebook(source: Path, solutions: bool, root: Path = ROOT) -> nbformat.NotebookNode:
    """The notebook that a source describes, not executed. Every byte of it follows from the source."""
    nb = jupytext.reads(expand(source, root), fmt=PERCENT)
    nb.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": LANGUAGE})
    for number, cell in enumerate(nb.cells, start=1):
        cell.id = f"{source.stem.replace('_', '-')}-{number:03d}"
        cell.metadata.pop("lines_to_next_cell", None)
        if cell.cell_type == "code":
            mark(cell)
            cell.source = cell.source if solutions else cut(cell.source)
    return nb


def execute(nb: nbformat.NotebookNode, folder: Path, name: str) -> None:
    """Run the cells in a fresh kernel in `folder`, and keep the outputs that are seen without a kernel."""
    client = NotebookClient(nb, timeout=CELL_TIMEOUT_S, record_timing=False, coalesce_streams=True)
    client.resources = {"metadata": {"path": str(folder)}}
    client.extra_arguments = ["--log-level=ERROR"]
    with tempfile.TemporaryDirectory() as scratch:  # no learner's progress, no user's IPython start-up files
        env = {**os.environ, "FLASHEDU_PROGRESS": str(Path(scratch, "progress.json")), "IPYTHONDIR": scratch}
        env.pop("MPLBACKEND", None)
        with client.setup_kernel(env=env):
            for number, cell in enumerate(nb.cells, start=1):
                try:
                    client.execute_cell(cell, number - 1)
                except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
                    what = f"{error.ename}: {error.evalue}" if isinstance(error, CellExecutionError) else error
                    raise BuildError(f"{name}, cell {number}: {what}") from None
                for output in cell.get("outputs", []):
                    output.get("data", {}).pop(WIDGET, None)  # a saved notebook cannot show a widget


def read(path: Path) -> nbformat.NotebookNode:
    try:
        return nbformat.read(path, 4)
    except (nbformat.reader.NotJSONError, UnicodeDecodeError):  # a merge left its marks in it, say
        raise BuildError(f"{path} is not a notebook: mend it, or move it away to have it built anew") from None


def write(nb: nbformat.NotebookNode, path: Path) -> None:
    """All of a notebook or, if something goes wrong meanwhile, the one that was there."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        nbformat.write(nb, scratch)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def is_saved_by_a_reader(path: Path) -> bool:
    """Whether JupyterLab has saved this notebook since it was built: it notes the kernel's language in detail."""
    return path.is_file() and read(path).metadata.get("language_info") != LANGUAGE


def skeleton(nb: nbformat.NotebookNode) -> list:
    """All of a notebook but its outputs: what a rebuild must reproduce to the byte."""
    return [nb.metadata, *((cell.id, cell.cell_type, cell.source, cell.metadata) for cell in nb.cells)]


def jobs(root: Path) -> list[tuple[Path, Path, bool]]:
    """(source, notebook, are the solutions in and the cells run) for every notebook that should exist."""
    return [
        (source, root / folder / f"{source.stem}.ipynb", solutions)
        for folder, (sources, solutions) in TARGETS.items()
        for source in sorted(root.glob(f"sources/{sources}/*.py"))
    ]


def stale(root: Path = ROOT) -> list[str]:
    """The notebooks that are not what their sources say, those missing, and those without a source."""
    wanted = {path: skeleton(notebook(source, solutions, root)) for source, path, solutions in jobs(root)}
    found = {path: skeleton(read(path)) for folder in TARGETS for path in root.glob(f"{folder}/*.ipynb")}
    paths = sorted(path for path in wanted.keys() | found.keys() if wanted.get(path) != found.get(path))
    return [path.relative_to(root).as_posix() for path in paths]


def build(prefixes: list[str], root: Path = ROOT) -> None:
    """Build the notebooks whose names begin with one of the prefixes, or all of them; an exercise with answers is kept."""
    for prefix in prefixes:
        if not any(source.name.startswith(prefix) for source, _, _ in jobs(root)):
            raise BuildError(f"there is no source whose name begins with {prefix!r}")
    for source, path, solutions in jobs(root):
        if source.name.startswith(tuple(prefixes) or ""):
            start, name = time.perf_counter(), path.relative_to(root).as_posix()
            print(f"{name:56}", end="", flush=True)
            if path.parent.name == "exercises" and is_saved_by_a_reader(path):
                print(" kept: it may hold answers; move it away to have it built anew")
                continue
            nb = notebook(source, solutions, root)
            path.parent.mkdir(exist_ok=True)
            if solutions:
                execute(nb, path.parent, name)
            write(nb, path)
            print(f"{time.perf_counter() - start:6.1f} s")


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Build the notebooks from sources/.")
    parser.add_argument("prefixes", nargs="*", metavar="NAME", help="build only the notebooks whose names begin so")
    parser.add_argument("--check", action="store_true", help="execute nothing; name the notebooks that are stale")
    args = parser.parse_args(argv)
    try:
        names = stale(root) if args.check else build(args.prefixes, root)
    except (BuildError, OSError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted: this notebook and those after it are as they were.", file=sys.stderr)
        return 1
    for name in names or []:
        saved = is_saved_by_a_reader(root / name)
        remedy = "it was saved from JupyterLab: move it away, then run `make notebooks`" if saved else "run `make notebooks`"
        print(f"{name} is not what its source says: {remedy}.", file=sys.stderr)
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
