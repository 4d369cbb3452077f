"""The process in which one submission is graded: its cells in order, then every exercise, by the same judge as `check`.

`python -m flashedu.classroom.worker FD` reads a request from its standard input and writes messages, a line of JSON each, to the file
descriptor. Each message says with "allow" how many seconds may pass until the next one.
"""
import ast
import contextlib
import functools
import json
import linecache
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path

from flashedu.classroom import guard, stand_in
from flashedu.grading import EXERCISES, isolation
from flashedu.grading.exercises import on_gpu
from flashedu.grading.judging import GRACE_S, judge
from flashedu.grading.outcome import TIME_LIMIT_S
from flashedu.grading.tensors.fresh import STARTING_S
from flashedu.grading.time_limit import TimeLimitExceeded, time_limit

RUN_THEIR_BODY = ("time", "prun", "capture")  # magics around code that is meant to run in the notebook
SLACK_S = 10.0  # for a machine that is busy
MORE_TASKS = 500  # processes and threads of one submission, about


class Shell:
    """In place of IPython's shell: magics and shell commands do nothing, except that code inside of %time runs."""

    def __init__(self, execute):
        self._execute = execute

    def run_line_magic(self, name, *texts):
        if name in RUN_THEIR_BODY:
            self._execute(texts[-1])

    run_cell_magic = run_line_magic

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


def main():
    results = os.fdopen(int(sys.argv[1]), "w", buffering=1, encoding="utf-8")
    os.set_inheritable(results.fileno(), False)
    request = json.load(sys.stdin)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)

    def send(allow=0.0, **message):
        results.write(json.dumps({"allow": allow + SLACK_S, "key": request["key"], **message}) + "\n")

    try:
        _grade(request, send)
    except guard.Tampered:
        pass  # it has been told
    except Exception as error:
        send(end="died", reason=f"could not be judged ({isolation.summary(error)})")
    finally:
        os._exit(0)  # whatever threads there are, and whether or not anybody listens


def _grade(request, send):
    try:
        root = stand_in.stand_in(request["uses"])
    except ImportError as error:
        send(end="not graded", reason=f"This machine cannot run the notebook: {error}.")
        return
    send()
    bound_memory = _limit(request["memory_bytes"], request["output_bytes"])
    sys.path[:] = [path for path in sys.path if not _is_checkout(path)]
    before = guard.watched()

    def look():
        try:
            guard.restore(before)
        except guard.Tampered as error:
            send(end="tampered", reason=str(error))
            raise

    settings = sys.getrecursionlimit(), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    namespace, around = stand_in.namespace(), functools.partial(stand_in.instead, root)
    guard.refuse(os.path.realpath(request["scratch"]))
    _run_cells(request, namespace, send, around, look)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, settings[1])
    sys.settrace(None)
    sys.setrecursionlimit(settings[0])
    os.chdir(request["scratch"])
    bound_memory()  # beside whatever the cells still hold
    isolation.at_each_call(around, look)
    for name in request["exercises"]:
        if name not in namespace:
            continue  # the other side sees that there is no row
        send(_judging_s(EXERCISES[name]), judging=name)
        send(verdict=vars(judge(namespace[name], name, seed=request["seed"])))
    send(end="", reason="")


def _judging_s(exercise):
    """The longest that `judge` takes: in Triton, new processes in the interpreter and then on the GPU."""
    if exercise.call is None:
        return TIME_LIMIT_S * exercise.patience + GRACE_S
    return TIME_LIMIT_S * (exercise.patience + on_gpu(exercise).patience) + 2 * (GRACE_S + STARTING_S)


def _limit(memory_bytes, output_bytes):
    """Bound this process and its children; returns what moves the bound on memory to so much more than is taken now."""
    _at_most(resource.RLIMIT_CORE, 0)
    _at_most(resource.RLIMIT_FSIZE, output_bytes)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond it raises OSError
    if sys.platform != "linux":  # elsewhere RLIMIT_DATA says nothing about what malloc takes
        return lambda: None
    _at_most(resource.RLIMIT_NPROC, _tasks() + MORE_TASKS)  # root may have any number
    _at_most(resource.RLIMIT_DATA, _taken_bytes() + 2 * memory_bytes)

    def bound():
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (min(hard, _taken_bytes() + memory_bytes), hard))

    bound()
    return bound


def _at_most(limit, value):
    hard = resource.getrlimit(limit)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, value))


def _taken_bytes():
    """What this process has allocated, as RLIMIT_DATA counts it."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))


def _tasks():
    """How many processes and threads this user has, as RLIMIT_NPROC counts them."""
    count = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            count += len(os.listdir(folder / "task")) if folder.stat().st_uid == os.getuid() else 0
    return count


def _is_checkout(path):
    """Whether a folder of sys.path is the course's, from which its tests and tools could be imported."""
    return Path(path, "flashedu").is_dir() and Path(path, "pyproject.toml").is_file()


def _run_cells(request, namespace, send, around, look):
    """Run the cells one after the other, each inside around(), and look() after it; what one of them raises is sent, and the next goes on."""
    one, left = request["seconds"] / 3, request["seconds"]
    running = []  # the number of the cell, again for each magic in which it is

    def execute(source):
        file = f"<code cell {running[0]}{', in a magic' * (len(running) - 1)}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # Triton reads a kernel's source
        program = compile(_as_python(source), file, "exec", dont_inherit=True)
        try:
            with around():
                exec(program, namespace)
        finally:
            look()

    def execute_inside(source):
        running.append(running[0])
        execute(source)

    shell = Shell(execute_inside)
    namespace.update(get_ipython=lambda: shell, display=lambda *args, **kwargs: None, In=[""], Out={})
    for number, source in enumerate(request["cells"], 1):
        if number in request["lost"]:
            continue
        running[:], seconds, start = [number], max(1.0, min(one, left)), time.monotonic()
        send(seconds, cell=number)
        try:
            with time_limit(seconds):
                try:
                    execute(source)
                except (TimeLimitExceeded, guard.Tampered):
                    raise
                except BaseException as error:
                    send(seconds, raised=number, what=_what(error, f"<code cell {number}"))
        except TimeLimitExceeded:
            send(raised=number, stopped=True, what=f"was still running after {seconds:.0f} s and was stopped")
        left -= time.monotonic() - start


def _as_python(source):
    """A cell's source without IPython's own syntax; only what Python does not understand is looked at."""
    with contextlib.suppress(ImportError):  # without IPython it stays as it is
        try:
            ast.parse(source)
        except SyntaxError:
            from IPython.core.inputtransformer2 import TransformerManager

            return TransformerManager().transform_cell(source)
    return source


def _what(error, file):
    """What a cell raised, with the line of the cell."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {type(error).__name__}: {error.msg}"
    lines = [f"line {frame.lineno}: " for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(file)]
    return "".join(lines[-1:]) + isolation.summary(error)[:300]


if __name__ == "__main__":
    main()
