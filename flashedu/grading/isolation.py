"""Calling code that is not trusted: with a time limit, with its output caught, with its exceptions kept.

This protects a notebook from honest mistakes (endless loops, floods of output, exceptions of any kind). It is no sandbox.
On Linux a whole check runs in a forked child, so that nothing that an answer does to its process reaches the notebook.
Elsewhere, where forking is not safe or does not exist, it runs in the notebook's process, and a loop around a bare
`except` can swallow the time limit.
"""
import contextlib
import ctypes
import inspect
import io
import os
import signal
import sys
import threading
import time
import traceback
import tracemalloc
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PRINT_LIMIT = 2000
PACKAGE = str(Path(__file__).parents[1]) + os.sep
OURS = (PACKAGE, contextlib.__file__)  # code that must run to its end when a learner's time is up


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


class _Clipped(io.TextIOBase):
    """Keeps the first PRINT_LIMIT characters and forgets the rest."""

    text = ""

    def write(self, text):
        self.text += text[: PRINT_LIMIT - len(self.text)]
        return len(text)


_here = threading.local()  # .busy: this thread is running a learner's code; .child: it is the main one of a forked child


def call(fn, args, seconds, trace_memory=False):
    """Call fn(*args) for at most `seconds` and return a Call; only KeyboardInterrupt gets out, and not even that in a child."""
    out, outcome = _Clipped(), Call()
    start = time.perf_counter()
    with _settings(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tracing = tracemalloc.is_tracing()
        if trace_memory:
            tracemalloc.start()
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
        _here.busy = True
        try:
            with time_limit(seconds):
                outcome.result = fn(*args)
        except BaseException as error:  # whatever a learner's code raises, SystemExit too
            if isinstance(error, KeyboardInterrupt) and not getattr(_here, "child", False):
                raise  # the learner pressed stop; a child's parent hears of it itself
            outcome.error = error
        finally:
            _here.busy = False
            if trace_memory:
                if tracemalloc.is_tracing():  # else the answer stopped it, and nothing is known
                    outcome.peak_bytes = tracemalloc.get_traced_memory()[1] - before
                if not tracing:
                    tracemalloc.stop()
        if inspect.iscoroutine(outcome.result):
            outcome.result.close()  # or Python complains later that nobody awaited it
    outcome.seconds = time.perf_counter() - start
    outcome.printed = out.text
    outcome.warned = tuple(dict.fromkeys(str(w.message)[:200] for w in caught))
    return outcome


def in_child(fn, args, seconds):
    """Run fn(*args) in a forked child for at most `seconds`; the result must be picklable.

    Returns ("result", what it returned), ("error", the exception's type and text), ("time limit", None) or ("died", how).
    Where there is no safe fork, it runs here and only the first two can happen.
    """
    if sys.platform != "linux":
        return _attempt(fn, args)
    import multiprocessing

    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def work():
        _here.child = True
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)  # its threads did not come along
        with contextlib.suppress(KeyboardInterrupt):  # the parent hears of it, too
            sender.send(_attempt(fn, args))

    child = context.Process(target=work)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads: the child uses none of them
            child.start()
    except OSError:  # no memory for another process
        return _attempt(fn, args)
    sender.close()
    try:
        if not receiver.poll(seconds):
            return "time limit", None
        return receiver.recv()
    except EOFError:
        child.join()
        return "died", _ending(child.exitcode)
    finally:
        receiver.close()
        child.kill()
        child.join()


def _attempt(fn, args):
    try:
        return "result", fn(*args)
    except Exception as error:
        return "error", summary(error)


def _ending(code):
    """How a process ended, in words, from multiprocessing's exit code."""
    if code is None:  # somebody else asked the system first
        return "how is unknown"
    if code >= 0:
        return f"exit status {code}"
    return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"


def busy():
    """Whether this thread is inside `call`, that is, whether a learner's code is asking."""
    return getattr(_here, "busy", False)


@contextlib.contextmanager
def _settings():
    """Whatever the code does to the session's settings is undone."""
    folder, depth = os.getcwd(), sys.getrecursionlimit()
    with np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"), np.printoptions():  # NumPy's defaults
        try:
            yield
        finally:
            os.chdir(folder)
            sys.setrecursionlimit(depth)


@contextlib.contextmanager
def time_limit(seconds):
    """Raise TimeLimitExceeded in the block once `seconds` have passed, and again and again if the block swallows it."""
    in_main = threading.current_thread() is threading.main_thread()
    with (_alarm if in_main and hasattr(signal, "setitimer") else _watchdog)(seconds):
        yield


@contextlib.contextmanager
def _alarm(seconds):
    """An alarm signal that raises, and keeps raising; it wakes a thread that sleeps."""
    armed = True

    def ring(signum, frame):
        if armed and not frame.f_code.co_filename.startswith(OURS):
            raise TimeLimitExceeded

    handler, (left, interval) = signal.signal(signal.SIGALRM, ring), signal.setitimer(signal.ITIMER_REAL, seconds, 0.05)
    start = time.monotonic()
    try:
        yield
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, max(0.001, left - (time.monotonic() - start)) if left else 0, interval)
        if handler not in (signal.SIG_DFL, None):  # an alarm that is still under way would end the process by default
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
    lines = [f"line {frame.lineno}, in {frame.name}:  {frame.line or ''}".rstrip() for frame in frames[-5:]]
    return "\n".join([*lines, summary(error)[:500]])


def summary(error):
    """The exception's type and text, also when its __str__ raises."""
    return "".join(traceback.format_exception_only(type(error), error)).strip()
