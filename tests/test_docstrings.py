"""A public docstring says in one sentence what it is about; then shapes and units, as they are, and what is raised."""
import ast
import functools
import inspect
import re
import runpy

import numpy as np
import pytest
from build import ROOT

from flashedu.exactness import Bound
from flashedu.machine import Machine

ARGUMENTS = runpy.run_path(str(ROOT / "tests" / "test_arguments.py"))
CALLS = ARGUMENTS["calls"]()
PACKAGE = ROOT / "flashedu"
TREES = {path.relative_to(ROOT).with_suffix("").as_posix().removesuffix("/__init__").replace("/", "."): ast.parse(path.read_text(encoding="utf-8"))
         for path in PACKAGE.rglob("*.py")}
# Modules whose every public name is read by users of the course; of others, it is what stands in a package's __all__.
READ = r"flashedu(\.(reference|kernels|data|results)(\.\w+)?|\.(cost|exactness|gradient_bounds|machine|hardware|processes|ring))?$"
METHODS = r"flashedu\.(reference|cost|exactness|gradient_bounds|machine|hardware|data|results)\b"
FROM_INSIDE = {"flashedu.kernels.pretended_gpu"}  # a program, which nothing imports
SHOWN = set(re.findall(r"^# (?:include|exercise): (\S+)", "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("sources/*/*.py")), re.M))

AXES = {"...", "B", "H", "Hkv", "N", "Nq", "Nk", "M", "R", "D", "Dv"}
ANY_SHAPE = r"\bany shape\b|\bin the shape of\b"
EXCEPTION = r"\b[A-Z]\w*(?:Error|Overflow|Failed)\b"
WHEN = rf"[Rr]aises? (?:as|what) `|[Rr]aises? [^.]*?{EXCEPTION}.*\b(?:for|when|unless|if|without|inside)\b"
UNITS = {  # a piece of a function's name: what it is counted in
    "bytes": "bytes", "traffic": "bytes", "sram": "bytes", "kept": "bytes", "flops": "FLOPs", "intensity": "FLOP per HBM byte",
    "share": "share", "counts": "tiles", "sizes": "rows", "ridge": "FLOP per byte", "rate": "per second",
}


@functools.cache
def top_level(module):
    return {node.name: node for node in TREES[module].body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


@functools.cache
def imported(module):
    """Name -> (module, name there) of what a module takes from the package."""
    return {alias.asname or alias.name: (node.module, alias.name) for node in TREES[module].body if isinstance(node, ast.ImportFrom) for alias in node.names}


def promised(module):
    """(module, name) of each function and class in a package's __all__, wherever it is defined."""
    lists = [node.value for node in TREES[module].body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
    for name in (name for each in lists for name in ast.literal_eval(each)):
        where = module
        while name not in top_level(where) and name in imported(where):
            where, name = imported(where)[name]
        if name in top_level(where):  # else it is data
            yield where, name


def members(module, name):
    """A function, or a class and, where the course is read in NumPy, its public methods; a kernel is called by its launcher alone."""
    node = top_level(module)[name]
    if any("jit" in ast.unparse(decorator) for decorator in node.decorator_list):
        return
    yield f"{module}.{name}", node
    if isinstance(node, ast.ClassDef) and re.match(METHODS, module):
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
                yield f"{module}.{name}.{method.name}", method


FOUND = {(module, name) for module in TREES if re.match(READ, module) and module not in FROM_INSIDE for name in top_level(module) if not name.startswith("_")}
FOUND |= {pair for module in TREES for pair in promised(module)} | {("flashedu.grading.judging", "judge")}
PUBLIC = {name: node for pair in sorted(FOUND) for name, node in members(*pair)}


def doc(name):
    return " ".join((ast.get_docstring(PUBLIC[name]) or "").split())


def first_sentence(name):
    return " ".join((ast.get_docstring(PUBLIC[name]) or "").split("\n\n")[0].split())


def dotted(call):
    """The name in PUBLIC of a function in CALLS."""
    function = inspect.unwrap(CALLS[call][0])
    return f"{function.__module__}.{function.__qualname__}"


@functools.cache
def helpers(module):
    """What a function may call in its own module and is not read about: private functions, and private methods as self._name."""
    classes = [node for node in top_level(module).values() if isinstance(node, ast.ClassDef)]
    methods = {f"self.{method.name}": method for node in classes for method in node.body if isinstance(method, ast.FunctionDef)}
    return {name: node for name, node in {**top_level(module), **methods}.items() if name.removeprefix("self.").startswith("_")}


def raised(module, node):
    """The exceptions that a function raises itself, or through `helpers` and `flashedu.arguments`."""
    found, seen, left = set(), set(), [(module, node)]
    while left:
        module, node = left.pop()
        seen.add(node)
        for inner in ast.walk(node):
            if isinstance(inner, ast.Raise) and inner.exc:
                found |= set(re.findall(rf"^{EXCEPTION}", ast.unparse(inner.exc)))
            elif isinstance(inner, ast.Name | ast.Attribute):
                text = ast.unparse(inner)
                where, name = imported(module).get(text, (module, text))
                if name.startswith("arguments."):
                    where, name = "flashedu.arguments", name.removeprefix("arguments.")
                target = top_level(where).get(name) if where == "flashedu.arguments" else helpers(module).get(name)
                if target is not None and target not in seen:
                    left.append((where, target))
    return found


def said(name):
    """The exceptions that a docstring names after the word "raise", or that of the function to which it refers there."""
    text = doc(name)
    start = re.search(r"\b[Rr]aises?\b", text)
    other = re.search(r"[Rr]aises? (?:as|what) `([\w.]+)`", text)
    known = set(re.findall(EXCEPTION, text[start.start() :])) if start else set()
    return known | (said(named(other[1], name)) if other else set())


def named(reference, name):
    """The public function that is meant by a name in a docstring, that of the same module first; None if it is no function."""
    known = [other for other in PUBLIC if f".{other}".endswith(f".{reference}") and other != name]
    return min(known, key=lambda other: other.rpartition(".")[0] != name.rpartition(".")[0], default=None)


def shapes(text):
    return [axes for found in re.findall(r"\(((?:[^()]+,)+[^()]*)\)", text) if AXES & set(axes := [axis.strip() for axis in found.rstrip(", ").split(",")])]


def shapes_of(name, text):
    """The shapes that stand behind a name, as (Nk, D) does behind k in `k and v (Nk, D)`."""
    return shapes(" ".join(re.findall(rf"(?<![\w.']){name}(?:,? (?:and )?\w+)*?:? (\([^()]+\))", text)))


def fits(axes, shape, sizes):
    """Whether a shape is what axes such as Nq, D say, with the sizes known so far; if it is, those that are new join them."""
    if "..." in axes:
        at, rest = axes.index("..."), len(axes) - 1
        if len(shape) < rest:
            return False
        axes, shape = axes[:at] + axes[at + 1 :], shape[:at] + shape[at + len(shape) - rest :]
    if len(axes) != len(shape):
        return False
    new = dict(sizes)
    if any(axis.isidentifier() and new.setdefault(axis, size) != size for axis, size in zip(axes, shape)):
        return False
    sizes.update(new)
    return True


def arrays(value):
    if isinstance(value, Bound):
        value = value.exact
    if isinstance(value, np.ndarray) and value.ndim:
        yield value
    elif isinstance(value, list | tuple | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from arrays(inner)


@pytest.mark.parametrize("name", PUBLIC)
def test_it_begins_with_one_sentence(name):
    sentence = first_sentence(name)
    assert sentence.endswith(".") and len(sentence) <= 130, f"{len(sentence)}: {sentence}"
    assert not re.search(r"[.!?] [A-Z]", sentence), f"more than one sentence: {sentence}"


@pytest.mark.parametrize("name", PUBLIC)
def test_it_says_what_is_raised(name):
    module = max((module for module in TREES if name.startswith(f"{module}.")), key=len)
    missing = set() if isinstance(PUBLIC[name], ast.ClassDef) else raised(module, PUBLIC[name]) - said(name)
    assert not missing, f"it raises {', '.join(sorted(missing))}"
    assert not said(name) or re.search(WHEN, doc(name)), "it does not say when"


@pytest.mark.parametrize("call", CALLS)
def test_it_says_what_a_wrong_call_raises(call):
    assert {error.__name__ for other, _, error, _, _ in ARGUMENTS["REFUSALS"] if other == call} <= said(dotted(call))


@pytest.mark.parametrize("call", CALLS)
def test_its_shapes_are_those_of_a_call(call):
    function, arguments = ARGUMENTS["calls"]()[call]  # anew: some calls change what they are given
    text, sizes = doc(dotted(call)), {name: value for name, value in arguments.items() if isinstance(value, int)}
    if re.search(ANY_SHAPE, text):  # it says so in words
        return
    held = arguments["machine"].hbm if "machine" in arguments else {}
    named_arrays = {**{name: held[name] for name in ("q", "k", "v", "o") if name in held}, **{name: x for name, x in arguments.items() if isinstance(x, np.ndarray)}}
    for name, x in named_arrays.items():
        assert any(fits(axes, x.shape, sizes) for axes in shapes_of(name, text)), f"{name} is {x.shape}"
    for x in arrays([[value for value in arguments.values() if not isinstance(value, Machine)], function(**arguments)]):
        assert any(fits(axes, x.shape, sizes) for axes in shapes(text)), f"no shape in it is {x.shape}"


TENSORS = [(name, argument.arg) for name, node in PUBLIC.items() if re.match(r"flashedu\.(kernels|ring)\b", name) and isinstance(node, ast.FunctionDef)
           for argument in (*node.args.args, *node.args.kwonlyargs) if argument.arg in ("q", "k", "v", "o", "do", "lse", "x")]


@pytest.mark.parametrize("name, argument", TENSORS)
def test_a_tensor_has_a_shape(name, argument):
    """These need torch, so that nothing is called: the shape stands in the docstring, or in that of the function to which it refers."""
    others = [named(other, name) for other in re.findall(r"`([\w.]+)`", doc(name))]
    texts = [doc(name), *(doc(other) for other in others if other)]
    assert any(shapes_of(argument, text) for text in texts) or re.search(ANY_SHAPE, doc(name))


@pytest.mark.parametrize("name", [name for name in PUBLIC if name.startswith("flashedu.cost.") or UNITS.keys() & set(name.rpartition(".")[2].split("_"))])
def test_a_quantity_has_its_unit(name):
    units = [UNITS[piece] for piece in name.rpartition(".")[2].split("_") if piece in UNITS]
    assert units, "the name says nothing of what is counted: add it to this file's UNITS"
    assert all(re.search(rf"\b{unit}\b", first_sentence(name), re.I) for unit in units)


CHECKED = [name for name, node in PUBLIC.items() if "validated" in map(ast.unparse, node.decorator_list) and ":".join(name.rsplit(".", 1)) in SHOWN]


@pytest.mark.parametrize("name", CHECKED)
def test_a_notebook_promises_no_checks_that_it_leaves_out(name):
    """A notebook shows these functions without @validated."""
    assert "In the package it raises" in doc(name)


def test_nothing_is_left_out():
    assert {dotted(call) for call in CALLS} <= PUBLIC.keys()
    assert {name.rpartition(".")[2] for name in PUBLIC} >= {"check", "hint", "progress", "score", "require", "judge", "flash_attention", "decode_attention", "ring_attention", "gpu", "load"}
    assert CHECKED and TENSORS
