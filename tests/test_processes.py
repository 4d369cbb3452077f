"""What a group of processes brings back: values, errors, and who did not come back."""
import os
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
