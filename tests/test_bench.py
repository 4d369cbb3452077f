"""The measurement on the reader's machine: what it counts, and how often it calls."""
import tracemalloc

import numpy as np
import pytest

from flashedu import bench
from flashedu.bench import Measurement, measure

MB = 1_000_000  # far above what a call itself allocates


def one():
    return np.empty(MB, np.uint8)


def two_at_once():
    return one(), one()


def one_after_the_other():
    for _ in range(5):
        one()


def inputs_only(x):
    x += 1


@pytest.mark.parametrize("fn, args, megabytes", [
    (one, (), 1), (two_at_once, (), 2), (one_after_the_other, (), 1), (inputs_only, (np.zeros(5 * MB, np.uint8),), 0),
])
def test_peak_is_the_most_held_at_once_without_the_inputs(fn, args, megabytes):
    assert measure(fn, *args, repeats=1).peak_bytes // MB == megabytes


def test_calls_once_traced_and_then_untraced():
    traced = []
    measure(lambda: traced.append(tracemalloc.is_tracing()), repeats=4)
    assert traced == [True] + 4 * [False]


def test_arguments_are_passed_on():
    seen = []
    measure(lambda *args: seen.append(args), 1, "a", repeats=2)
    assert seen == 3 * [(1, "a")]


def test_seconds_are_the_median(monkeypatch):
    clock = iter([0.0, 1.0, 10.0, 15.0, 20.0, 22.0])  # calls of 1, 5 and 2 seconds
    monkeypatch.setattr(bench.time, "perf_counter", lambda: next(clock))
    assert measure(int).seconds == 2.0


def test_a_failing_function_leaves_no_tracing_behind():
    with pytest.raises(ZeroDivisionError):
        measure(lambda: 1 / 0)
    assert not tracemalloc.is_tracing()


def test_inside_somebody_elses_tracing():
    tracemalloc.start()
    try:
        held = [one() for _ in range(4)]
        del held[1:]  # the outer session has a peak above what is held now
        assert measure(inputs_only, np.zeros(8, np.uint8), repeats=1).peak_bytes < MB
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("repeats, error", [(0, ValueError), (-2, ValueError), (2.5, TypeError), (True, TypeError), ("3", TypeError), (None, TypeError)])
def test_repeats_refused(repeats, error):
    with pytest.raises(error, match=rf"^repeats must be .*{repeats!r}.*\.$"):
        measure(int, repeats=repeats)


@pytest.mark.parametrize("fn", [3, None, "len"])
def test_fn_refused(fn):
    with pytest.raises(TypeError, match=rf"^fn must be a function, but it is {fn!r}\.$"):
        measure(fn)


def test_a_measurement_is_two_numbers():
    assert Measurement(1.5, 3) == Measurement(seconds=1.5, peak_bytes=3)
