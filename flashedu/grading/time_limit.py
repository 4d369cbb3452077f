"""A time limit on code that is not trusted."""
import contextlib
import ctypes
import os
import signal
import threading
import time
from pathlib import Path

PACKAGE = str(Path(__file__).parents[1]) + os.sep
OURS = (PACKAGE, contextlib.__file__)  # code that must run to its end when a learner's time is up


class TimeLimitExceeded(BaseException):
    """Raised inside the learner's code; not an Exception, so that `except Exception` does not catch it."""


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
