"""Which files of a folder are submissions, whose they are, and which notebook of the course each of them is.

    DIR/STUDENT/NN_name.ipynb               a folder for each student (Moodle's names of folders, too)
    DIR/STUDENT/ASSIGNMENT/NN_name.ipynb    as nbgrader collects them
    DIR/STUDENT_NN_name.ipynb               flat, as Moodle and Canvas pack them
    DIR/NN_name.ipynb                       one submission alone, of a student without a name
"""
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Submission:
    """One file: whose it is, its path relative to the folder, the HandedOut that it began as (None: none of them), a hash of its bytes."""

    student: str
    file: str
    handed: object
    digest: str


def submissions(folder, handed_out):
    """The Submissions in a folder, by student and notebook; handed_out: the HandedOut notebooks that there are."""
    found = []
    for path in sorted(Path(folder).rglob("*.[iI][pP][yY][nN][bB]")):
        parts = path.relative_to(folder).parts
        if path.is_file() and "__MACOSX" not in parts and not any(part.startswith(".") for part in parts):
            content, by_name = path.read_bytes() if os.access(path, os.R_OK) else b"", _by_name(path.stem, handed_out)
            student = _person(parts[0] if len(parts) > 1 else _before(path.stem, by_name))
            found.append(Submission(student, "/".join(parts), _which(content, by_name, handed_out), hashlib.sha256(content).hexdigest()[:16]))
    names = [handed.name for handed in handed_out]
    return sorted(found, key=lambda one: (one.student, names.index(one.handed.name) if one.handed else len(names), one.file))


def _by_name(stem, handed_out):
    """The notebook whose name, or else whose number, stands in a file's name; the last of several."""
    for handed in handed_out:
        if handed.name in stem:
            return handed
    numbers = re.findall(r"(?<!\d)(\d\d)(?=\D|$)", stem)
    return next((handed for number in reversed(numbers) for handed in handed_out if handed.name.startswith(f"{number}_")), None)


def _before(stem, handed):
    """What stands before the notebook's name or number in the name of a flat file."""
    if handed is None:
        return stem
    where = stem.find(handed.name)
    return stem[: where if where >= 0 else stem.rfind(handed.name[:2])]


def _person(text):
    """A student's name and number from what Moodle and Canvas make of them; Canvas adds a number for each file."""
    text = re.sub(r"_assignsubmission_file_?$", "", text)
    canvas = re.fullmatch(r"(.+?)(?:_LATE)?_(\d+)_\d+_", text)
    return f"{canvas[1]}_{canvas[2]}" if canvas else text.strip("_- ")


def _which(content, by_name, handed_out):
    """by_name, unless only another notebook's exercises are in the file; if the name says nothing, the one of which it has most."""
    count = {handed.name: sum(any(mark.encode() in content for mark in (f"def {name}(", f"check_{name}")) for name in handed.exercises) for handed in handed_out}
    if by_name and (count[by_name.name] or not any(count.values())):
        return by_name
    most = max(handed_out, key=lambda handed: count[handed.name])
    return most if count[most.name] else None
