"""The lists of dependencies agree with each other and with what is imported."""

import ast
import re
import subprocess
import sys
import tomllib

import bootstrap
import pytest
from build import ROOT
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CORE, COURSE, CLASS, DEV = (
    {canonicalize_name(requirement.name): requirement for requirement in map(Requirement, texts)}
    for texts in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
)
PINS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


def imported(path):
    """The distributions that a file's import statements name, apart from the standard library and our own modules."""
    roots = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            roots.add(node.module.partition(".")[0])
    ours = {"flashedu", *(module.stem for folder in ("tools", "tests") for module in (ROOT / folder).rglob("*.py"))}
    return {canonicalize_name({"PIL": "pillow"}.get(root, root)) for root in roots - set(sys.stdlib_module_names) - ours}


def test_extras_are_the_ones_that_the_tools_install():
    assert list(PROJECT["optional-dependencies"]) == ["course", "class", "dev"]
    assert bootstrap.EXTRAS == {
        "lab": ["course"],
        "dev": ["course", "dev"],
        "newest": ["course", "dev"],
        "lecture": ["course", "class"],
        "class": ["course", "class"],
        "test-class": ["course", "class", "dev"],
        "browser": ["course", "class", "dev"],
    }


def test_a_learner_gets_nothing_of_the_teachers():
    teachers = {venv for verb, venv in bootstrap.VENVS.items() if "class" in bootstrap.EXTRAS[verb]}
    assert teachers == {".venv-class"}
    assert not [verb for verb, venv in bootstrap.VENVS.items() if venv == ".venv-class" and "class" not in bootstrap.EXTRAS[verb]]
    ignored = (ROOT / ".gitignore").read_text().split()
    assert {f"{venv}/" for venv in bootstrap.VENVS.values()} <= set(ignored)


def test_core_is_numpy_alone():
    assert list(CORE) == ["numpy"]


def test_triton_is_asked_for_only_where_it_has_wheels():
    for requirement in (COURSE["triton"], next(pin for pin in PINS if pin.name == "triton")):
        assert requirement.marker.evaluate({"platform_system": "Linux"})
        assert not requirement.marker.evaluate({"platform_system": "Darwin"})


def test_constraints_name_one_version_each():
    names = [canonicalize_name(pin.name) for pin in PINS]
    assert len(names) == len(set(names))
    for pin in PINS:
        assert pin.url is None and re.fullmatch(r"==[\w.]+", str(pin.specifier)), f"{pin} is not one public version"
    assert not [name for name in names if name.startswith(("nvidia", "cuda"))]
    assert "://" not in (ROOT / "constraints.txt").read_text()


def test_constraints_satisfy_pyproject():
    pins = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in PINS}
    for name, requirement in {**CORE, **COURSE, **CLASS, **DEV}.items():
        assert pins[name] in requirement.specifier, f"{name} {pins[name]} is not {requirement.specifier}"
    assert (pins["torch"], pins["triton"]) == ("2.13.0", "3.7.1")


def test_who_reads_a_notebook_waits_for_no_grammar():
    run = subprocess.run([sys.executable, "-c", "import nbformat, sys; print('lark' in sys.modules)"], capture_output=True, text=True, timeout=60)
    assert run.stdout == "False\n", run.stderr


def test_python_versions_agree():
    supported = SpecifierSet(PROJECT["requires-python"])
    oldest, newest = bootstrap.OLDEST, bootstrap.NEWEST
    admitted = [(3, minor) for minor in range(30) if f"3.{minor}" in supported]
    assert (admitted[0], admitted[-1]) == (oldest, newest)


def test_the_conda_environment_is_the_same_door():
    text = (ROOT / "environment.yml").read_text()
    name, channels, python, rest = re.fullmatch(
        r"name: (\w+)\nchannels:\n  - ([\w-]+)\ndependencies:\n  - python=([\d.]+)\n  - pip\n  - pip:\n((?:      - .+\n)+)",
        text,
    ).groups()
    assert (name, channels) == ("flashedu", "conda-forge")
    assert python in SpecifierSet(PROJECT["requires-python"])
    assert python not in PROJECT["requires-python"]
    assert re.findall("- (.+)\n", rest) == ["-c constraints.txt", "-e .[course]"]


@pytest.mark.parametrize(
    ("files", "allowed"),
    [
        ("flashedu/**/*.py", CORE | COURSE),
        ("sources/**/*.py", CORE | COURSE),
        ("tools/build.py", DEV),
        ("tools/bootstrap.py", {}),
        ("tools/lab_in_browser.py", DEV),
        ("tools/measure_demos.py", DEV),
        ("tests/**/*.py", CORE | COURSE | CLASS | DEV),
    ],
)
def test_every_import_is_in_the_right_list(files, allowed):
    missing = {path.relative_to(ROOT).as_posix(): imported(path) - allowed.keys() for path in ROOT.glob(files)}
    assert {name: roots for name, roots in missing.items() if roots} == {}
