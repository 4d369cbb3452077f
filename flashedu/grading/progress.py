"""What a learner has passed so far, kept in a file beside the exercises."""
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from flashedu.grading.exercises import EXERCISES

FILE = "progress.json"


def progress_file():
    """Where progress is kept: $FLASHEDU_PROGRESS, or progress.json in the working directory if that is called exercises.

    Elsewhere (a chapter, a solution) nothing is recorded, and the answer is None.
    """
    if "FLASHEDU_PROGRESS" in os.environ:
        return Path(os.environ["FLASHEDU_PROGRESS"])
    return Path.cwd() / FILE if Path.cwd().name == "exercises" else None


def _course_file():
    return progress_file() or Path(__file__).parents[2] / "exercises" / FILE


def load(path):
    """What the file says; an unreadable one is set aside as progress.json.unreadable and counts as empty."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(entries, dict) or not all(_is_entry(entry) for entry in entries.values()):
            raise ValueError("not a table")
        return entries
    except OSError:  # there is none yet, or it cannot be read
        return {}
    except ValueError:
        path.replace(path.with_name(path.name + ".unreadable"))
        return {}


def _is_entry(entry):
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("attempts"), int)
        and isinstance(entry.get("best"), (int, float))
        and isinstance(entry.get("passed"), (str, type(None)))
    )


def write_whole(path, text):
    """Write a file, all of it or, if something goes wrong meanwhile, leave the one that was there."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(path)
    finally:  # interrupted, or the disk is full
        scratch.unlink(missing_ok=True)


def record(verdict):
    """Note a verdict. What was once passed stays passed; a failure to write the file is not the learner's concern."""
    path = progress_file()
    if path is None or verdict.exercise not in EXERCISES or verdict.state in ("not attempted", "skipped"):
        return
    try:
        entries = load(path)
        entry = entries.setdefault(verdict.exercise, {"attempts": 0, "best": 0.0, "passed": None})
        entry["attempts"] += 1
        entry["best"] = max(entry["best"], round(verdict.score, 3))
        if verdict.passed and not entry["passed"]:
            entry["passed"] = time.strftime("%Y-%m-%d %H:%M")
        write_whole(path, json.dumps(entries, indent=1) + "\n")
    except OSError:
        pass


@dataclass(frozen=True)
class Progress:
    """A table of the exercises: rows of (chapter, exercise, state, attempts, best score)."""

    rows: tuple

    def __str__(self):
        done = sum(row[2] == "passed" for row in self.rows)
        lines = [f"{done} of {len(self.rows)} exercises passed", f"{'chapter':>7}  {'exercise':<18} {'attempts':>8} {'best':>5}  state"]
        lines += [f"{chapter:>7}  {name:<18} {attempts:>8} {best:>5.0%}  {state}" for chapter, name, state, attempts, best in self.rows]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self):
        cells = "".join(
            f"<tr><td>{chapter}</td><td style='text-align:left'><code>{name}</code></td><td>{attempts}</td><td>{best:.0%}</td>"
            f"<td style='text-align:left'>{state}</td></tr>"
            for chapter, name, state, attempts, best in self.rows
        )
        head = "".join(f"<th>{title}</th>" for title in ("chapter", "exercise", "attempts", "best score", "state"))
        return f"<table><caption>{str(self).splitlines()[0]}</caption><tr>{head}</tr>{cells}</table>"


def progress():
    """The table of all exercises, with what this learner has passed, as a `Progress`, which a notebook shows."""
    entries = load(_course_file())
    rows = []
    for exercise in EXERCISES.values():
        entry = entries.get(exercise.name, {})
        state = "passed" if entry.get("passed") else "tried" if entry else "not attempted"
        rows.append((exercise.chapter, exercise.name, state, entry.get("attempts", 0), entry.get("best", 0.0)))
    return Progress(tuple(rows))
