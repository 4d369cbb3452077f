"""The texts speak of the course, not of how or where it was made."""

import re

import pytest
from build import ROOT

IGNORED = {".git", *(line.strip("/") for line in (ROOT / ".gitignore").read_text().split())}
FILES = [
    path
    for top in ROOT.iterdir()
    if top.name not in IGNORED
    for path in (top.rglob("*") if top.is_dir() else [top])
    if path.is_file() and not IGNORED & set(path.parts) and b"\0" not in path.read_bytes()[:4096]
]
# A bracket around a letter keeps each pattern from matching itself here.
MACHINE = r"(?<![\w.+/=])/(?:[w]ork|[r]oot|[h]ome|[o]pt|tmp/(?:pv|ipykernel|shots))/"
REGISTRY = r"[p]ypi\.org|[p]ythonhosted\.org|[d]ownload\.pytorch\.org|[n]pmjs\.|[a]naconda\.org|[d]ebian\.org"
MAKING = r"\b(?:[i]ssue #?\d|(?:[t]his|my|our|the next) session|[T]ODO|[F]IXME|(?:[D]ESIGN|[S]TYLE|[S]YLLABUS|[F]ACTS)\.md)\b"


@pytest.mark.parametrize("pattern", [MACHINE, REGISTRY, MAKING], ids=["machine", "registry", "making"])
def test_no_text_names(pattern):
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in FILES
        for match in re.finditer(pattern, path.read_text(encoding="utf-8"))
    ]
    assert not found


def test_the_search_sees_the_files():
    names = {path.relative_to(ROOT).as_posix() for path in FILES}
    assert {"pyproject.toml", "tools/build.py", ".ci/run"} <= names
