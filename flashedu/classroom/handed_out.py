"""A notebook as it was handed out: its exercises, and what of flashedu it uses. Reading notebooks, which are JSON."""
import ast
import json
from dataclasses import dataclass
from pathlib import Path

from flashedu.grading import EXERCISES

LARGEST_BYTES = 50 << 20


class Unreadable(Exception):
    """Why something is not a notebook, in one sentence."""


@dataclass(frozen=True)
class HandedOut:
    """name: the file's, without its ending. exercises: in the order in which they are defined. cells: its code cells' sources.

    uses: what it uses of flashedu, by full name, such as "flashedu.machine.Machine"; not the answers to its own exercises.
    """

    name: str
    exercises: tuple
    cells: tuple
    uses: tuple


def read_handed_out(path_or_nb):
    """The HandedOut of a notebook, given by its path or as nbformat has it; one that was read already stays as it is."""
    if isinstance(path_or_nb, HandedOut):
        return path_or_nb
    cells = code_cells(path_or_nb)
    trees = [ast.parse(cell) for cell in cells]
    defined = [node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]
    exercises = tuple(name for name in dict.fromkeys(defined) if name in EXERCISES)
    uses = [name for name in _used(trees) if name.rpartition(".")[2] not in exercises]
    name = "" if isinstance(path_or_nb, dict) else Path(path_or_nb).stem
    return HandedOut(name, exercises, cells, tuple(uses))


def code_cells(path_or_nb):
    """The sources of a notebook's code cells; raises Unreadable."""
    nb = path_or_nb if isinstance(path_or_nb, dict) else _read(Path(path_or_nb))
    if not isinstance(nb, dict) or not isinstance(nb.get("cells"), list):
        raise Unreadable("It is JSON, but not a notebook: it has no list of cells. (JupyterLab turns a notebook in the format of 2013 into one of today's.)")
    return tuple(_source(cell) for cell in nb["cells"] if isinstance(cell, dict) and cell.get("cell_type") == "code")


def _read(path):
    try:
        size = path.stat().st_size
        if not 0 < size <= LARGEST_BYTES:
            raise Unreadable(f"It has {size:,} bytes; at most {LARGEST_BYTES:,} are read." if size else "The file is empty.")
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise Unreadable(f"It cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"It is not a notebook: not JSON ({error}).") from None


def _source(cell):
    source = cell.get("source", "")
    return "".join(map(str, source)) if isinstance(source, list) else str(source)


def _used(trees):
    """The full names of flashedu that some cells use: what they import, and the attributes of modules that they import."""
    names, bound = [], {}  # bound: local name -> full name
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "flashedu":
                    bound[alias.asname or "flashedu"] = alias.name if alias.asname else "flashedu"
                    names.append(alias.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flashedu":
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                names.append(f"{node.module}.{alias.name}")
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Attribute):
            first, *rest = ast.unparse(node).split(".")
            if first in bound and all(part.isidentifier() for part in rest):
                names.append(".".join((bound[first], *rest)))
    return list(dict.fromkeys(names))
