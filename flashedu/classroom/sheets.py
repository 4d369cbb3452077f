"""What comes of grading: a table for the gradebook, one with every detail, and Gradescope's results."""
import csv
import io
import json
from collections import Counter
from pathlib import Path

from flashedu.grading.progress import write_whole

DETAILS = ("student", "notebook", "exercise", "score", "state", "checks passed", "failed", "mistake", "message", "submission", "reason", "seconds", "file", "digest", "grader")

LONGEST = 30_000  # characters of a cell; spreadsheets take a few more


def details_file(path):
    """Where the details of grades.csv are: grades.details.csv."""
    return Path(path).with_suffix(".details.csv")


def rows_of(submission, graded, grader):
    """The rows of one file in the table of details, as dicts of texts; one row, without an exercise, for a file that is no notebook of the course.

    checks passed: "9 of 21". failed: all checks that failed, first the one that the message is about, and not what was not reached.
    state: the verdict's; "unreadable" where the file is.
    """
    own = {"student": submission.student, "notebook": submission.handed.name if submission.handed else "", "submission": graded.state, "reason": graded.reason,
           "file": submission.file, "digest": submission.digest, "grader": grader}
    rows = [{**own, **{name: getattr(row, name) for name in ("exercise", "mistake", "message")}, **_checks(row),
             "state": "unreadable" if graded.state == "unreadable" else row.state,
             "score": f"{row.score:g}", "seconds": f"{row.seconds:.2f}"} for row in graded.exercises]
    return [{name: cell(row.get(name)) for name in DETAILS} for row in rows or [own]]


def _checks(verdict):
    failed = dict.fromkeys([verdict.failed or "", *(name for name, state in verdict.checks if state == "failed")])
    passed = [name for name, state in verdict.checks if state == "passed"]
    return {"failed": "; ".join(filter(None, failed)), "checks passed": f"{len(passed)} of {len(verdict.checks)}" if verdict.checks else ""}


def cell(value):
    """A text that every program can read, and that no spreadsheet takes for a formula."""
    text = "" if value is None else str(value).replace("\0", "").encode("utf-8", "backslashreplace").decode()[:LONGEST]
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) else text


def _lines(rows, columns):
    text = io.StringIO()
    csv.DictWriter(text, columns, lineterminator="\n").writerows(rows)
    return text.getvalue()


def read_details(path):
    """The rows of a table of details, without one that was cut off; none if there is no file."""
    if not path.exists():
        return []
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) == DETAILS:
            return [row for row in reader if row["grader"]]
    raise SystemExit(f"Nothing was graded: {path} is there, and is no table of details of this program, or one of an older version. Move it away, or give another name.")


def write_table(path, rows, columns):
    """A CSV file, all of it or, if something goes wrong meanwhile, the one that was there."""
    write_whole(path, _lines([dict(zip(columns, columns)), *rows], columns))


def append(file, rows):
    """Add the rows of one submission to an open table, in one write."""
    file.write(_lines(rows, DETAILS))
    file.flush()


def people(rows):
    """{label: rows} for each student; where a student has two files for one notebook, a label and an entry for each file."""
    files = {}
    for row in rows:
        files.setdefault(row["student"], {}).setdefault(row["notebook"], {}).setdefault(row["file"], []).append(row)
    named = {}
    for student, notebooks in files.items():
        twice = any(notebook and len(found) > 1 for notebook, found in notebooks.items())
        for found in notebooks.values():
            for file, own in found.items():
                named.setdefault(f"{student} ({file})" if twice else student, []).extend(own)
    return named


def gradebook(rows, handed_out):
    """(rows, columns) of the table with a row for each student and a column for each exercise of the notebooks that were handed in."""
    exercises = [name for handed in handed_out if any(row["notebook"] == handed.name for row in rows) for name in handed.exercises]
    columns = ("student", *exercises, "total", "out of", "remarks")
    table = []
    for label, own in people(rows).items():
        scores = {row["exercise"]: row["score"] for row in own if row["exercise"]}
        total = sum(map(float, scores.values()))
        table.append({"student": label, **scores, "total": f"{total:g}", "out of": len(exercises), "remarks": " ".join(_remarks(label, own))})
    return table, columns


def _remarks(label, rows):
    if label != rows[0]["student"]:
        yield "One of several files for the same notebook under one name: two students, or one who handed in twice."
    for file, row in {row["file"]: row for row in rows}.items():
        if row["submission"] != "graded":
            yield f"{file} {row['submission']}: {row['reason']}"


def write_gradescope(folder, rows):
    """STUDENT/results.json for each student, or results.json for a submission without a name."""
    for label, own in people(rows).items():
        tests = [{"name": row["exercise"], "score": float(row["score"]), "max_score": 1.0, "output": _output(row), "visibility": "visible"} for row in own if row["exercise"]]
        said = " ".join(_remarks(label, own)) or "Each exercise counts one point, by the share of its checks that were passed: 0 unless some result is right, half at most for what holds the whole matrix where it is to do without."
        path = Path(folder, label.replace("/", "_"), "results.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"score": sum(test["score"] for test in tests), "output": said, "tests": tests}, indent=1) + "\n", encoding="utf-8")


def _output(row):
    said = (row["message"], row["checks passed"] and f"Checks passed: {row['checks passed']}.", row["failed"] and f"Failed: {row['failed']}.")
    return "\n\n".join(filter(None, said))


def summary(rows):
    """What was graded, in lines of text: how each exercise went, and the mistakes that were made most."""
    files = {row["file"]: row["submission"] for row in rows}
    states = ", ".join(f"{count} {state}" for state, count in Counter(files.values()).most_common())
    lines = [f"{len(files)} files of {len({row['student'] for row in rows})} students: {states}."]
    exercises = dict.fromkeys(row["exercise"] for row in rows if row["exercise"])
    if exercises:
        lines.append(f"{'exercise':<22}{'files':>6}{'passed':>8}{'not attempted':>15}{'mean':>7}  most frequent mistakes")
    for name in exercises:
        own = [row for row in rows if row["exercise"] == name]
        count, mistakes = Counter(row["state"] for row in own), Counter(row["mistake"] for row in own if row["mistake"])
        mean = sum(float(row["score"]) for row in own) / len(own)
        said = ", ".join(f"{slug} ({times})" for slug, times in mistakes.most_common(3))
        lines.append(f"{name:<22}{len(own):>6}{count['passed']:>8}{count['not attempted']:>15}{mean:>7.2f}  {said}".rstrip())
    lines += [f"Several files for one notebook: {label}" for label, own in people(rows).items() if label != own[0]["student"]]
    return lines
