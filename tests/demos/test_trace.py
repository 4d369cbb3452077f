"""The trace of the two loop orders against machines that run the whole problem, with every element in it."""
import numpy as np
import pytest

from flashedu import cost
from flashedu.demos.tiling import moved_bytes, tiles
from flashedu.demos.trace import NOTHING, steps
from flashedu.machine import Machine
from flashedu.reference import fa1_on_machine, tiled_on_machine

PROBLEMS = [(16, 4, 4, 3), (10, 4, 3, 2), (9, 20, 2, 1), (12, 6, 20, 5), (7, 1, 1, 4), (24, 8, 4, 16)]  # n, block_q, block_k, D


def whole_run(version, n, block_q, block_k, d, itemsize):
    """A machine that has run the whole problem."""
    q = np.zeros((n, d), np.float32)
    machine = Machine({"q": q, "k": q, "v": q, "o": q, "lse": q[:, 0], "m": q[:, 0] - np.inf, "l": q[:, 0]}, 10**6, itemsize)
    (fa1_on_machine if version == 1 else tiled_on_machine)(machine, block_q, block_k)
    return machine


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("n, block_q, block_k, d", PROBLEMS)
@pytest.mark.parametrize("itemsize", [1, 2, 4])
def test_what_is_scaled_up_is_what_the_machine_moves(version, n, block_q, block_k, d, itemsize):
    run, machine = steps(version, n, n, block_q, block_k), whole_run(version, n, block_q, block_k, d, itemsize)
    closed_form = cost.fa1_traffic if version == 1 else cost.tiled_traffic
    assert run[-1].moved_bytes(d, itemsize) == (machine.read_bytes, machine.written_bytes)
    assert run[-1].moved_bytes(d, itemsize) == closed_form(n, n, d, block_q, block_k, itemsize)
    assert len(run) == 1 + tiles(n, block_q, block_k) and run[0] == NOTHING
    names = [event.name for event in machine.events if event.kind == "load"]
    assert [name for step in run for name in step.loads] == names
    names = [event.name for event in machine.events if event.kind == "store"]
    assert [name for step in run for name in step.stores] == names


def test_what_each_version_carries_for_a_tile():
    first, second = steps(1, 8, 8, 4, 4), steps(2, 8, 8, 4, 4)
    state = ("o", "m", "l")
    assert [step.loads for step in first[1:]] == [("k", "v", "q", *state), ("q", *state)] * 2
    assert [step.stores for step in first[1:]] == [state, state, (*state, "lse"), (*state, "lse")]
    assert [step.loads for step in second[1:]] == [("q", "k", "v"), ("k", "v")] * 2
    assert [step.stores for step in second[1:]] == [(), ("o", "lse")] * 2


@pytest.mark.parametrize("n, block_q, block_k, d", PROBLEMS)
def test_one_row_of_tiles_stands_for_all_of_them(n, block_q, block_k, d):
    """`moved_bytes` runs one tile of queries, and the last one; the trace runs all."""
    whole = [sum(step.moved_bytes(d, 2)) for step in steps(2, n, n, block_q, block_k)]
    assert [moved_bytes(n, d, block_q, block_k, 2, step) for step in range(len(whole))] == whole
