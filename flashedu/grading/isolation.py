"""Calling code that is not trusted: with a time limit, with its output caught, with its exceptions kept.

This protects a notebook from honest mistakes (endless loops, floods of output, exceptions of any kind). It runs in the
learner's own process and is no sandbox.
"""
import contextlib
import ctypes
import io
import signal
import threading
import time
import traceback
import tracemalloc
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PRINT_LIMIT = 2000
PACKAGE = str(Path(__file__).parents[1])


class TimeLimitExceeded(BaseException):
    """Raised inside the learner's code; not an Exception, so that `except Exception` does not catch it."""


@dataclass
class Call:
    """What one call did: its result or its exception, what it printed and warned, its peak memory if that was asked for."""

    result: object = None
    error: BaseException = None
    printed: str = ""
    warned: tuple = ()
    peak_bytes: int = None
    seconds: float = 0.0


class _Clipped(io.StringIO):
    """Keeps the first PRINT_LIMIT characters and forgets the rest."""

    def write(self, text):
        super().write(text[: max(0, PRINT_LIMIT - self.tell())])
        return len(text)


def call(fn, args, seconds, trace_memory=False):
    """Call fn(*args) for at most `seconds` and return a Call; only KeyboardInterrupt gets out."""
    out, outcome = _Clipped(), Call()
    start = time.perf_counter()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), np.errstate(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tracing = tracemalloc.is_tracing()
        if trace_memory:
            tracemalloc.start()
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
        try:
            with time_limit(seconds):
                outcome.result = fn(*args)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever a learner's code raises, SystemExit too
            outcome.error = error
        finally:
            if trace_memory:
                outcome.peak_bytes = tracemalloc.get_traced_memory()[1] - before
                if not tracing:
                    tracemalloc.stop()
    outcome.seconds = time.perf_counter() - start
    outcome.printed = out.getvalue()
    outcome.warned = tuple(dict.fromkeys(str(w.message) for w in caught))
    return outcome


@contextlib.contextmanager
def time_limit(seconds):
    """Raise TimeLimitExceeded in the block once `seconds` have passed, and again and again if the block swallows it."""
    in_main = threading.current_thread() is threading.main_thread()
    with (_alarm if in_main and hasattr(signal, "setitimer") else _watchdog)(seconds):
        yield


@contextlib.contextmanager
def _alarm(seconds):
    armed = True

    def ring(signum, frame):
        if armed:
            raise TimeLimitExceeded

    handler, (left, interval) = signal.signal(signal.SIGALRM, ring), signal.setitimer(signal.ITIMER_REAL, seconds, 0.05)
    start = time.monotonic()
    try:
        yield
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, max(0.001, left - (time.monotonic() - start)) if left else 0, interval)
        signal.signal(signal.SIGALRM, handler)


@contextlib.contextmanager
def _watchdog(seconds):
    """Where there is no alarm signal (Windows, other threads): it cannot wake a thread that sleeps."""
    target, done = ctypes.c_ulong(threading.get_ident()), threading.Event()

    def watch():
        wait = seconds
        while not done.wait(wait):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(target, ctypes.py_object(TimeLimitExceeded))
            wait = 0.05

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(target, None)


def learner_traceback(error):
    """The exception with the learner's own frames only, the last five of them, as text."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(PACKAGE) and "site-packages" not in frame.filename
    ]
    lines = [f"  line {frame.lineno}, in {frame.name}:  {frame.line or ''}".rstrip() for frame in frames[-5:]]
    summary = traceback.format_exception_only(type(error), error)[-1].strip()
    return "\n".join([*lines, summary[:500]])
