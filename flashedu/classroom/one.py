"""Grading one submitted notebook, in a process of its own."""
import contextlib
import json
import os
import select
import signal
import site
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

from flashedu.classroom.handed_out import Unreadable, code_cells, read_handed_out
from flashedu.grading import isolation
from flashedu.grading.verdict import Verdict

STATES = {
    "graded": "Its cells ran and its exercises were judged.",
    "stopped": "Something of it did not end in time and was stopped; what could be judged without it was.",
    "died": "Something of it ended the process; what could be judged without it was.",
    "tampered": "It replaced what judges it. It has no points.",
    "unreadable": "It is not a notebook.",
    "unknown": "It is none of the notebooks that were handed out: neither its name nor what is in it says which.",
    "not graded": "The grader failed, was interrupted, or lacks a package that the notebook needs. The next run tries again.",
}
STARTING_S = 60.0  # for a new Python on a busy machine
MOST_RUNS = 4
KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "TRITON_INTERPRET", "VIRTUAL_ENV")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1")
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Limits:
    """seconds: how long a notebook's cells may run, all together (one alone: a third; the checks have limits of their own).

    memory_bytes: what each of its processes may allocate. output_bytes: the largest file that it may write; what it prints is dropped.
    """

    seconds: float = 60.0
    memory_bytes: int = 2 << 30
    output_bytes: int = 64 << 20


@dataclass(frozen=True)
class Graded:
    """state: one of STATES. reason: why it is not graded, in sentences, or "". exercises: a Verdict for each, in their order."""

    state: str
    reason: str
    exercises: tuple
    seconds: float


def grade_notebook(path_or_nb, handed_out, seed=None, limits=Limits(), cancelled=lambda: False):
    """Grade one submitted notebook and return a Graded.

    path_or_nb, handed_out: the notebook and what it was when it was handed out, by path or as nbformat has it. seed: the
    instructor's, for hidden cases; None for those of `check`. cancelled(): asked several times a second, whether to give up.
    """
    start, handed = time.monotonic(), read_handed_out(handed_out)
    try:
        cells = code_cells(path_or_nb)
    except Unreadable as error:
        return _graded("unreadable", str(error), handed, {}, start)
    if not handed.exercises:
        return _graded("unknown", STATES["unknown"], handed, {}, start)
    rows, lost, state, reasons = {}, {}, "graded", []
    for _ in range(MOST_RUNS):
        todo = [name for name in handed.exercises if name not in rows]
        run = _run({"cells": cells, "exercises": todo, "uses": handed.uses, "seed": seed, "lost": list(lost), **vars(limits)}, cancelled)
        rows.update(run.rows)
        if run.end in ("tampered", "not graded"):
            return _graded(run.end, run.reason, handed, {}, start)
        if not run.end:
            break
        state, what = "died" if state == "died" else run.end, "Python"
        if "cell" in run.doing:
            lost[run.doing["cell"]], what = run.reason, f"Code cell {run.doing['cell']}"
        elif run.doing.get("judging") in todo:
            what = run.doing["judging"]
            rows.setdefault(what, Verdict(what, "error", 0.0, f"The process in which it was judged {run.reason}."))
        reasons.append(f"{what} {run.reason}.")
    raised, stopped = ({number: what for number, what in told.items() if cells[number - 1] not in handed.cells} for told in (run.raised, run.stopped))
    state = "stopped" if stopped and state == "graded" else state
    reasons += [f"Code cell {number} {what}." for number, what in stopped.items()]
    notes = " ".join(f"Code cell {number}: {what}." for number, what in sorted({**raised, **stopped, **lost}.items()))
    for name in handed.exercises:
        rows[name] = _explained(name, rows.get(name), cells, notes, not run.end)
    return _graded(state, " ".join(reasons), handed, rows, start)


def _graded(state, reason, handed, rows, start):
    """The Graded with a row for every exercise."""
    none = "error" if state == "tampered" else "not attempted"
    return Graded(state, reason, tuple(rows.get(name) or Verdict(name, none, 0.0, reason) for name in handed.exercises), time.monotonic() - start)


def _explained(name, row, cells, notes, whole):
    """The row of an exercise, with what the cells raised if that may be why it is not right; whole: whether all were reached."""
    if row is None:
        where = [number for number, cell in enumerate(cells, 1) if f"def {name}(" in cell or f"{name} =" in cell]
        missing = f"Code cell {where[-1]} should define {name}, but it did not." if where else f"No cell defines {name}."
        return Verdict(name, "not attempted", 0.0, f"{missing if whole else 'It was not reached.'} {notes}".strip())
    if row.state == "error" and notes:
        return replace(row, message=f"{row.message}\n\nWhile the cells ran: {notes}")
    return row


def _run(request, cancelled):
    """Start a worker, listen to it until it ends or is late, and end whatever it left behind; what it told.

    rows: its verdicts. raised, stopped: what cells raised, and which went on too long, by number. doing: its last step. end, reason: how it ended, "" if as it should.
    """
    run, token, key = SimpleNamespace(rows={}, raised={}, stopped={}, doing={}, finished=False, end="", reason=""), uuid.uuid4().hex, uuid.uuid4().hex
    receiver, sender = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        process = subprocess.Popen(
            [sys.executable, "-m", "flashedu.classroom.worker", str(sender)], cwd=scratch, env=_environment(scratch, token), pass_fds=(sender,),
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )
        os.close(sender)
        try:
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(json.dumps({**request, "scratch": scratch, "key": key}).encode())
            _listen(process, receiver, key, run, cancelled)
        finally:
            os.close(receiver)
            _end(process, token)
    return run


def _listen(process, receiver, key, run, cancelled):
    deadline, text = time.monotonic() + STARTING_S, b""
    while not run.finished:
        ended = process.poll() is not None
        ready = select.select([receiver], [], [], 0 if ended else 0.2)[0]
        chunk = os.read(receiver, 1 << 16) if ready else b""
        if chunk:
            *lines, text = (text + chunk).split(b"\n")
            for line in lines:
                if key.encode() in line:  # else it comes from the submission
                    deadline = time.monotonic() + _hear(json.loads(line), run)
        elif ended:
            run.end, run.reason, run.finished = "died", f"ended the process ({isolation.ending(process.returncode)})", True
        elif cancelled():
            run.end, run.reason, run.finished = "not graded", "Grading was interrupted.", True
        elif time.monotonic() > deadline:
            run.end, run.reason, run.finished = "stopped", "was still running when it had to be stopped", True
        elif ready:  # it closed its end, and still runs
            time.sleep(0.2)


def _hear(message, run):
    """Note a message; returns how many seconds may pass until the next."""
    if "verdict" in message:
        run.rows[message["verdict"]["exercise"]] = Verdict(**message["verdict"])
    elif "raised" in message:
        (run.stopped if "stopped" in message else run.raised)[message["raised"]] = message["what"]
    elif message.keys() & {"cell", "judging"}:
        run.doing = message
    elif "end" in message and not run.finished:  # the first: after one call was found out the rest is judged nevertheless
        run.end, run.reason, run.finished = message["end"], message["reason"], True
    return message["allow"]


def _environment(scratch, token):
    own = {**{name: os.environ[name] for name in KEPT if name in os.environ}, **dict.fromkeys(("HOME", "TMPDIR", "IPYTHONDIR", "MPLCONFIGDIR"), scratch)}
    python = {"PYTHONPATH": str(ROOT), "PYTHONUSERBASE": site.getuserbase(), "PYTHONHASHSEED": "0", "MPLBACKEND": "agg"}
    return {**own, **ONE_THREAD, **python, "FLASHEDU_SUBMISSION": token}


def _end(process, token):
    """Kill the process and all that it started, also what has left its session; only Linux tells who that is."""
    for _ in range(100):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        left = _started_with(token)
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if process.poll() is not None and not left:
            return
        time.sleep(0.01)


def _started_with(token):
    mark, found = f"FLASHEDU_SUBMISSION={token}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found
