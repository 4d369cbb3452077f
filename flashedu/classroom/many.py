"""`python -m flashedu grade`: a folder of submitted notebooks, each in a process of its own.

The folder holds submissions as a folder for each student, as nbgrader collects them, or as flat files that begin with a student's name.
It writes GRADES.csv, a row for each student and a column for each exercise (a point each), for the gradebook, and GRADES.details.csv,
a row for each exercise of each file, with the verdict's words, how many checks were passed (their share is the score: 0 unless some
result is right, half at most for what holds the whole matrix where it is to do without), and those that failed: first the one that the
words are about; what was not reached is not listed.
Run it again to go on where it was interrupted, or when files came or changed: what is graded already, by the same grader with the same
seed, is kept.
"""
import hashlib
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from flashedu.classroom import sheets, similar
from flashedu.classroom.find import submissions
from flashedu.classroom.handed_out import HandedOut, read_handed_out
from flashedu.classroom.one import ROOT, STATES, Graded, Limits, grade_notebook
from flashedu.grading import isolation
from flashedu.grading.verdict import Verdict


def add_arguments(parser):
    """The options of the command."""
    parser.description = f"{__doc__}\nWhat may be said of a file:\n" + "\n".join(f"  {state:<12}{sentence}" for state, sentence in STATES.items())
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder of submissions")
    parser.add_argument("--csv", type=Path, required=True, metavar="GRADES.csv", help="where the grades go")
    parser.add_argument("--seed", help="a secret text: the cases that answers are tried on are drawn from it (default: the cases of check)")
    parser.add_argument("--handed-out", type=Path, default=ROOT / "exercises", metavar="DIR", help="the notebooks as they were handed out (default: exercises/)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="how many at a time (default: 2)")
    parser.add_argument("--seconds", type=float, default=Limits.seconds, metavar="S", help="how long the cells of a notebook may run, beside its checks (default: %(default)g)")
    parser.add_argument("--gradescope", type=Path, metavar="DIR", help="also write Gradescope's results.json, in a folder for each student")
    parser.add_argument("--similar", action="store_true", help="also list groups of students whose answers are nearly the same code, and write their pairs to GRADES.similar.csv")


def main(options):
    """Grade the folder; returns the exit status, 1 if it was interrupted."""
    if sys.platform == "win32":
        raise SystemExit("Nothing was graded: grading needs processes as Linux and macOS have them. Windows has a Linux inside, WSL.")
    handed_out = [handed for handed in map(read_handed_out, sorted(options.handed_out.glob("*.ipynb"))) if handed.exercises]
    for refused, why in (
        (not options.folder.is_dir(), f"{options.folder} is not a folder"),
        (not handed_out, f"{options.handed_out} holds no notebook with exercises of this course"),
        (options.csv.exists() and not options.csv.is_file(), f"--csv needs the name of a file, and {options.csv} is none"),  # /dev/null would be replaced
        (options.jobs < 1 or not options.seconds > 0, "--jobs and --seconds must be more than 0"),
    ):
        if refused:
            raise SystemExit(f"Nothing was graded: {why}.")
    import fcntl  # Windows has none

    held = os.open(options.folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lines, whole = _main(options, handed_out)
    except BlockingIOError:
        raise SystemExit("Nothing was graded: another run is grading this folder.") from None
    except OSError as error:  # the disk is full, say
        raise SystemExit(f"Grading stopped: {error}. The same command goes on when that is mended.") from None
    finally:
        os.close(held)
    print("\n".join(lines))  # when all is written: whoever reads it, `head` say, may have gone
    return 0 if whole else 1


def _main(options, handed_out):
    """Grade and write everything; (the lines to print, whether it was not interrupted)."""
    options.csv.parent.mkdir(parents=True, exist_ok=True)
    found, limits = submissions(options.folder, handed_out), Limits(seconds=options.seconds)
    graders = {name: _grader(cells, options.seed, limits) for name, cells in (("", ()), *((handed.name, handed.cells) for handed in handed_out))}
    details = sheets.details_file(options.csv)
    rows = _kept(sheets.read_details(details), found, graders)
    if not found:  # else the grades of another folder would be emptied
        raise SystemExit(f"Nothing was graded: there is no notebook in {options.folder}. What is packed has to be unpacked; links to folders are not followed.")
    sheets.write_table(details, rows, sheets.DETAILS)
    done = {row["file"] for row in rows}
    todo = [one for one in found if sheets.cell(one.file) not in done]
    whole = _grade(todo, options, limits, graders, details)
    place = {sheets.cell(one.file): number for number, one in enumerate(found)}
    rows = sorted(sheets.read_details(details), key=lambda row: place[row["file"]])
    sheets.write_table(details, rows, sheets.DETAILS)
    sheets.write_table(options.csv, *sheets.gradebook(rows, handed_out))
    lines = sheets.summary(rows)
    none = {path.name for path in options.folder.iterdir() if not path.name.startswith((".", "__MACOSX"))} - {one.file.split("/")[0] for one in found}
    if none:
        lines.append(f"No notebook was found in: {', '.join(map(sheets.cell, sorted(none)))}. What is packed has to be unpacked; links to folders are not followed.")
    if options.gradescope:
        sheets.write_gradescope(options.gradescope, rows)
    if options.similar:
        lines += similar.report(options, found, handed_out)
    if not whole:
        lines.append(f"Interrupted: {len(found) - len({row['file'] for row in rows})} of {len(found)} files are not graded yet. The same command goes on.")
    return lines, whole


def _grader(cells, seed, limits):
    """A hash of all that a grade depends on beside the submission: the package's sources, the notebook handed out, seed and limits."""
    sources = b"".join(path.read_bytes() for path in sorted(Path(ROOT, "flashedu").rglob("*.py")))
    return hashlib.sha256(sources + repr((cells, seed, limits)).encode()).hexdigest()[:16]


def _kept(rows, found, graders):
    """The rows of files that need not be graded again."""
    kept = []
    for one in found:
        file = sheets.cell(one.file)
        own = [row for row in rows if row["file"] == file]
        exercises, name = (one.handed.exercises, one.handed.name) if one.handed else (("",), "")
        same = all((row["digest"], row["grader"]) == (one.digest, graders[name]) and row["submission"] != "not graded" for row in own)
        if same and [row["exercise"] for row in own] == list(exercises):
            kept += own
    return kept


def _grade(todo, options, limits, graders, details):
    """Grade the submissions and append their rows as they come; returns whether it was not interrupted."""
    from tqdm import tqdm

    stop = threading.Event()

    def grade(one):
        handed = one.handed or HandedOut("", (), (), ())
        try:
            return grade_notebook(options.folder / one.file, handed, options.seed, limits, stop.is_set)
        except Exception as error:  # one submission that the grader fails on is not to cost the others
            none = tuple(Verdict(name, "not attempted", 0.0, "") for name in handed.exercises)
            return Graded("not graded", f"The grader failed: {isolation.summary(error)}", none, 0.0)

    bar = tqdm(total=len(todo), unit="notebook", disable=None)  # that is, where there is no terminal
    with open(details, "a", encoding="utf-8", newline="") as file, ThreadPoolExecutor(options.jobs) as pool, bar:
        futures = {pool.submit(grade, one): one for one in todo}
        try:
            for future in as_completed(futures):
                one = futures[future]
                sheets.append(file, sheets.rows_of(one, future.result(), graders[one.handed.name if one.handed else ""]))
                bar.update()
        except KeyboardInterrupt:
            stop.set()
            pool.shutdown(cancel_futures=True)
            return False
    return True
