"""Which part of the package may import which, what importing it costs, and how large it may be."""
import ast
import graphlib
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "flashedu"
MODULES = sorted(PACKAGE.rglob("*.py"))

# part -> the parts that it may import. "flashedu" is the package's front door, flashedu/__init__.py.
MAY_IMPORT = {
    "arguments": set(),
    "hardware": set(),
    "results": set(),
    "splits": set(),
    "data": set(),
    "machine": {"arguments"},
    "cost": {"arguments"},
    "reference": {"arguments", "machine"},
    "exactness": {"arguments", "reference"},
    "gradient_bounds": {"arguments", "exactness"},
    "bench": {"arguments", "cost", "results", "kernels"},
    "kernels": {"arguments", "hardware", "reference", "splits"},
    "processes": set(),
    "ring": {"arguments", "kernels"},
    "grading": {"arguments", "machine", "cost", "reference", "exactness", "gradient_bounds", "kernels"},
    "viz": {"arguments", "hardware", "cost", "splits"},
    "demos": {"arguments", "hardware", "cost", "machine", "reference", "exactness", "gradient_bounds", "results", "data", "grading", "viz"},
    "health": {"arguments", "reference", "exactness", "gradient_bounds", "grading", "kernels"},
    "flashedu": {"grading", "health"},
    "classroom": {"arguments", "grading"},
    "__main__": {"flashedu", "grading", "health", "bench", "classroom"},
}
NUMPY_ONLY = {"arguments", "machine", "cost", "reference", "exactness", "gradient_bounds", "hardware", "splits"}


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {module_name(path) for path in MODULES}


def part(module):
    return module.split(".")[1] if "." in module else module


def imports(path, inside_functions=True):
    """The modules that a file imports, by full name; `from flashedu import x` is x when x is a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]
    hidden = set() if inside_functions else {id(inner) for function in functions for inner in ast.walk(function)}
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in NAMES else node.module


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_point_one_way(path):
    me = part(module_name(path))
    assert me in MAY_IMPORT, f"flashedu.{me} is new: say in this file what it may import"
    used = {part(name) for name in imports(path) if name.split(".")[0] == "flashedu"} - {me}
    assert used <= MAY_IMPORT[me], f"{module_name(path)} imports {', '.join(sorted(used - MAY_IMPORT[me]))}"


def test_the_rule_has_no_circle():
    list(graphlib.TopologicalSorter(MAY_IMPORT).static_order())


def test_no_two_modules_import_each_other():
    graph = {module_name(path): {name for name in imports(path) if name in NAMES} - {module_name(path)} for path in MODULES}
    list(graphlib.TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_third_party_packages_are_imported_where_they_are_used(path):
    me = part(module_name(path))
    ours = set(sys.stdlib_module_names) | {"flashedu", "numpy"}
    if me == "ring":  # its passes are an autograd function of torch
        ours.add("torch")
    if me != "kernels":  # a kernel's decorator needs Triton when its module is imported, and a demo is a widget
        widgets = {"ipywidgets"} if me == "demos" else set()
        assert {name.split(".")[0] for name in imports(path, inside_functions=False)} <= ours | widgets
    if me in NUMPY_ONLY:
        assert {name.split(".")[0] for name in imports(path)} <= ours


def in_a_fresh_interpreter(*arguments):
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)


def test_importing_brings_in_numpy_and_the_standard_library_only():
    show = "import sys; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    before, after = (set(in_a_fresh_interpreter("-c", code + show).stdout.split()) for code in ("", "import flashedu; "))
    assert after - before - set(sys.stdlib_module_names) == {"flashedu", "numpy"}


def test_numpy_half_imports_without_anything_else():
    """Every module of it, with all other packages hidden."""
    numpy_half = [name for name in sorted(NAMES) if part(name) in NUMPY_ONLY | {"bench", "grading", "health", "flashedu", "classroom"}]
    hide = ("import sys; own = {'flashedu', 'numpy', *sys.stdlib_module_names, *(m.split('.')[0] for m in sys.modules)}\n"
            "class Hide:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name.split('.')[0] not in own: raise ModuleNotFoundError(name)\n"
            "sys.meta_path.insert(0, Hide())\n")
    in_a_fresh_interpreter("-c", hide + f"import {', '.join(numpy_half)}")


def processor_seconds(code):
    """The least of five runs: what other processes do can only add to it."""
    show = "; import time; print(time.process_time())"
    return min(float(in_a_fresh_interpreter("-c", code + show).stdout) for _ in range(5))


def test_importing_is_quick():
    """Under 0.3 s of processor time beyond Python's own start."""
    assert processor_seconds("import flashedu") - processor_seconds("pass") < 0.3


def lines(path):
    return len(path.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_a_module_is_under_250_lines(path):
    assert lines(path) < 250


def test_an_algorithm_is_under_150_lines():
    """That is, whatever holds a kernel or a piece of the reference."""
    for path in MODULES:
        if part(module_name(path)) == "reference" or re.search(r"^@(triton|gluon)\.jit", path.read_text(encoding="utf-8"), re.M):
            assert lines(path) < 150, path


def code_lines(path):
    """Lines that hold code: no blank ones, no comments, no docstrings."""
    text = path.read_text(encoding="utf-8")
    documented = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    docstrings = {line for node in documented if ast.get_docstring(node) for line in range(node.body[0].lineno, node.body[0].end_lineno + 1)}
    nothing = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in nothing]
    return len({line for token in tokens for line in range(token.start[0], token.end[0] + 1)} - docstrings)


BUDGETS = {  # lines of code for each part of the house; the tables of cases and mistakes are data, and are not counted
    "kernels": 1500,
    "grading": 2100,
    "bench": 600,
    "classroom": 950,
    "viz and demos": 3000,
    "the rest": 1500,  # the algorithms, the machine, what exact means, and the front door
}


@pytest.mark.parametrize("room", BUDGETS)
def test_a_part_keeps_within_its_budget(room):
    data = {PACKAGE / "grading" / "cases", PACKAGE / "grading" / "mistakes"}
    rooms = {"viz": "viz and demos", "demos": "viz and demos"}
    counted = {name: 0 for name in BUDGETS}
    for path in MODULES:
        if path.parent not in data:
            own = part(module_name(path))
            counted[own if own in BUDGETS else rooms.get(own, "the rest")] += code_lines(path)
    assert 0 < counted[room] < BUDGETS[room]
