"""Measuring on the reader's own machine: the time a function takes and the memory it needs beyond its inputs."""
import statistics
import time
import tracemalloc
from dataclasses import dataclass

from flashedu.arguments import positive_int, short


@dataclass(frozen=True)
class Measurement:
    """seconds: median wall-clock time of a call; peak_bytes: the most memory that one call held at once, its result included."""

    seconds: float
    peak_bytes: int


def measure(fn, *args, repeats=3):
    """Median time of `repeats` calls fn(*args) after one call that is not timed, and the peak memory of that first call.

    The peak is what tracemalloc sees (NumPy reports its arrays to it): memory allocated during the call, not the inputs.
    Timed calls run without tracing.
    """
    positive_int("repeats", repeats)
    if not callable(fn):
        raise TypeError(f"fn must be a function, but it is {short(fn)}.")
    peak_bytes = _peak(fn, args)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        fn(*args)
        seconds.append(time.perf_counter() - start)
    return Measurement(statistics.median(seconds), peak_bytes)


def _peak(fn, args):
    tracing = tracemalloc.is_tracing()  # somebody else's session is left running
    tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        fn(*args)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if not tracing:
            tracemalloc.stop()
