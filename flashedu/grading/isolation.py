"""Calling code that is not trusted: with a time limit, with its output caught, with its exceptions kept.

This protects a notebook from honest mistakes (endless loops, floods of output, exceptions of any kind). It is no sandbox.
On Linux a whole check runs in a forked child, so that nothing that an answer does to its process reaches the notebook.
Elsewhere, where forking is not safe or does not exist, it runs in the notebook's process, and a loop around a bare
`except` can swallow the time limit.
"""
import contextlib
import faulthandler
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

import numpy as np

from flashedu.grading.time_limit import PACKAGE, time_limit

PRINT_LIMIT = 2000
USUAL = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}  # NumPy's errors, as they are by default
SPARE_BYTES = 1024  # what an object has around its contents
CAN_FORK = sys.platform == "linux"


@dataclass
class Call:
    """What one call did: its result or its exception, what it printed and warned, its peak memory if that was asked for.

    Of a call on tensors also: `problems`, as in `Outcome.problem`, seen beside the values; `after`, its arguments as it left
    them; `tile`, the sizes (block_q, block_k) that it launched a kernel with, if their names tell.
    """

    result: object = None
    error: BaseException = None
    printed: str = ""
    warned: tuple = ()
    peak_bytes: int = None
    seconds: float = 0.0
    problems: tuple = ()
    after: tuple = None
    tile: tuple = None


class _Clipped(io.TextIOBase):
    """Keeps the first PRINT_LIMIT characters and forgets the rest."""

    text = ""

    def write(self, text):
        self.text += text[: PRINT_LIMIT - len(self.text)]
        return len(text)


_here = threading.local()  # .busy: this thread is running a learner's code; .child: it is the main one of a child; .send: what it sends with; .around, .look: see at_each_call


def call(fn, args, seconds, trace_memory=False):
    """Call fn(*args) for at most `seconds` and return a Call; only KeyboardInterrupt gets out, and not even that in a child.

    trace_memory: whether peak_bytes is measured; in a class (see at_each_call) a number, which it is then at least, about, so
    that nobody can lower the peak unseen.
    """
    out, outcome = _Clipped(), Call()
    start = time.perf_counter()
    with _settings(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tracing = tracemalloc.is_tracing()
        if trace_memory:
            tracemalloc.start()
            tracemalloc.reset_peak()
            before, floor = tracemalloc.get_traced_memory()[0], max(0, trace_memory - SPARE_BYTES) if hasattr(_here, "around") else 0
            bytes(floor)  # a peak of our own
        _here.busy = True
        try:
            with getattr(_here, "around", contextlib.nullcontext)(), time_limit(seconds):
                outcome.result = fn(*args)
        except BaseException as error:  # whatever a learner's code raises, SystemExit too
            if isinstance(error, KeyboardInterrupt) and not getattr(_here, "child", False):
                raise  # the learner pressed stop; a child's parent hears of it itself
            outcome.error = error
        finally:
            _here.busy = False
            if trace_memory:
                peak = tracemalloc.get_traced_memory()[1] - before
                if peak >= floor and tracemalloc.is_tracing():  # else the answer stopped it or began anew, and nothing is known
                    outcome.peak_bytes = peak
                if not tracing:
                    tracemalloc.stop()
        if inspect.iscoroutine(outcome.result):
            outcome.result.close()  # or Python complains later that nobody awaited it
    outcome.seconds = time.perf_counter() - start
    getattr(_here, "look", lambda: None)()
    outcome.printed = out.text
    outcome.warned = tuple(dict.fromkeys(str(w.message)[:200] for w in caught))
    return outcome


def in_child(fn, args, seconds):
    """Run fn(*args) in a forked child for at most `seconds`; the result must be picklable.

    Returns ("result", what it returned), ("error", the exception's type and text), ("time limit", where) or ("died", how
    and where), with the text of the last `report` in it. Where there is no safe fork, it runs here and only the first two
    can happen.
    """
    if not CAN_FORK:
        return attempt(fn, args)
    import multiprocessing

    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def work():
        with contextlib.suppress(KeyboardInterrupt):  # the parent hears of it, too
            become_child(sender.send)
            if "torch" in sys.modules:
                sys.modules["torch"].set_num_threads(1)  # its threads did not come along
            sender.send(attempt(fn, args))

    child = context.Process(target=work)
    stop, doing = time.monotonic() + seconds, ""
    try:
        try:
            with _without_interrupts(), warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads: the child uses none of them
                child.start()
        except OSError:  # no memory for another process
            return attempt(fn, args)
        sender.close()
        while receiver.poll(max(0.0, stop - time.monotonic())):
            kind, content = receiver.recv()
            if kind != "doing":
                return kind, content
            doing = content
        return "time limit", doing
    except EOFError:
        child.join()
        return "died", ending(child.exitcode) + doing
    finally:
        receiver.close()
        if child.pid is not None:
            child.kill()
            child.join()


@contextlib.contextmanager
def _without_interrupts():
    """A Ctrl-C waits for the end of the block, since Python loses one that comes in the middle of a fork; a child started here hears none."""
    handler, heard = signal.getsignal(signal.SIGINT), []
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    signal.signal(signal.SIGINT, lambda *event: heard.append(event))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if heard:
            handler(*heard[0])


def at_each_call(around, look):
    """From now on each `call` of this thread, and in its forked children, is made inside the context around(), and look() is called after it;
    what that raises ends the check."""
    _here.around, _here.look = around, look


def become_child(send):
    """From now on this process is one that may die: quietly, and sending (kind, content) pairs through `send`."""
    _here.child, _here.send = True, send
    faulthandler.disable()  # a notebook's would print on its terminal
    if CAN_FORK:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def report(text):
    """In a child: tell what is done next, in case that nothing else will be heard of it."""
    if hasattr(_here, "send"):
        _here.send(("doing", text))


def attempt(fn, args):
    """("result", fn(*args)) or ("error", the exception's type and text)."""
    try:
        return "result", fn(*args)
    except Exception as error:
        return "error", summary(error)


def ending(code):
    """How a process ended, in words, from its exit code."""
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
    with np.errstate(**USUAL), np.printoptions():
        try:
            yield
        finally:
            os.chdir(folder)
            sys.setrecursionlimit(depth)


def learner_frames(error):
    """The learner's own frames of an exception; None has none."""
    frames = traceback.extract_tb(error.__traceback__) if error else ()
    return [frame for frame in frames if not frame.filename.startswith(PACKAGE) and "site-packages" not in frame.filename]


def learner_traceback(error):
    """The exception with the learner's own frames only, the last five of them, as text."""
    lines = [f"line {frame.lineno}, in {frame.name}:  {frame.line or ''}".rstrip() for frame in learner_frames(error)[-5:]]
    return "\n".join([*lines, summary(error)[:500]])


def summary(error):
    """The exception's type and text, also when its __str__ raises."""
    return "".join(traceback.format_exception_only(type(error), error)).strip()
