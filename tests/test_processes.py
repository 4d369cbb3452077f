"""What a group of processes brings back: values, errors, and who did not come back."""
import contextlib
import functools
import os
import signal
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this torch has no gloo", allow_module_level=True)
pytest.importorskip("cloudpickle")

from flashedu.processes import run  # noqa: E402


def summed(rank, world, x):
    total = x * (rank + 1)
    torch.distributed.all_reduce(total)
    return rank, world, total


def differ(rank, world):
    if rank == 0:
        raise LookupError("nothing here")
    if rank == 1:
        os._exit(3)
    time.sleep(3600)


def test_each_process_has_its_place_in_the_group():
    outcomes = run(summed, 3, torch.tensor([1.0, 10.0]))
    assert [outcome.exitcode for outcome in outcomes] == [0, 0, 0]
    for rank, (own, world, total) in enumerate(outcome.value for outcome in outcomes):
        assert (own, world, total.tolist()) == (rank, 3, [6, 60])


def test_a_function_of_a_notebook_travels_by_value():
    """No file that a new process could import defines it."""
    space = {"__name__": "__main__", "factor": 7}
    exec("def job(rank, world):\n    return factor * (rank + 1)", space)
    assert [outcome.value for outcome in run(space["job"], 2)] == [7, 14]


def test_an_exception_of_a_notebook_comes_back_in_words():
    space = {"__name__": "__main__"}
    exec("class Odd(Exception):\n    pass\ndef job(rank, world):\n    raise Odd('not today')", space)
    (outcome,) = run(space["job"], 1)
    assert isinstance(outcome.value, RuntimeError) and str(outcome.value) == "Odd: not today" and outcome.exitcode == 0


def test_the_program_that_calls_is_not_run_again(monkeypatch):
    """Also where what __main__ says of itself is wrong, as Triton's interpreter leaves it in a notebook."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "no/such/file.py", raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    main = sys.modules["__main__"]
    assert [outcome.value[0] for outcome in run(summed, 2, torch.ones(1))] == [0, 1]
    assert sys.modules["__main__"] is main


def test_errors_come_back_and_nobody_is_waited_for_longer_than_the_limit():
    failed, gone, killed = run(differ, 3, limit_s=8)
    assert isinstance(failed.value, LookupError) and str(failed.value) == "nothing here" and failed.exitcode == 0
    assert gone == (None, 3)
    assert killed.value is None and killed.exitcode < 0


def test_a_group_has_members():
    with pytest.raises(ValueError, match="world must be at least 1"):
        run(summed, 0)


CALLER = """
import os, pathlib, sys, time
from flashedu.processes import run

def job(rank, world, folder):
    pathlib.Path(folder, str(rank)).write_text(str(os.getpid()))
    time.sleep(3600)

try:
    run(job, 2, sys.argv[1], limit_s=3600)
except KeyboardInterrupt:
    sys.stdin.read()  # it lives on, as a notebook's kernel does
"""


def alive(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals to send")
@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_nobody_is_left_when_the_caller_is_interrupted_or_killed(name, tmp_path):
    heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # also where the tests themselves run in the background
    caller = subprocess.Popen([sys.executable, "-c", CALLER, tmp_path], stdin=subprocess.PIPE, start_new_session=True, preexec_fn=heard)
    files, members = [tmp_path / str(rank) for rank in range(2)], []
    try:
        until = time.monotonic() + 60
        while len(members) < 2 and time.monotonic() < until:
            members = [int(file.read_text()) for file in files if file.exists() and file.read_text()]
            time.sleep(0.1)
        assert len(members) == 2 and all(map(alive, members))
        caller.send_signal(getattr(signal, name))
        until = time.monotonic() + 30
        while any(map(alive, members)) and time.monotonic() < until:
            time.sleep(0.1)
        assert not any(map(alive, members)) and (caller.poll() is None) == (name == "SIGINT")
    finally:
        for pid in [caller.pid, *members]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        caller.communicate()
