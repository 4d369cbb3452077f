"""Running a check in a process of its own: where CUDA is in use, which cannot follow a fork, or where there is no fork.

A function from a notebook travels by value, through cloudpickle. Triton's kernels are rebuilt there from their Python
functions, whose source lines travel along, since Triton compiles the source. `python -m flashedu.grading.tensors.fresh`
is the other side: it reads two pickles from its standard input, and writes (kind, content) pairs to its standard output.
"""
import contextlib
import io
import linecache
import marshal
import os
import pickle
import subprocess
import sys
import types

from flashedu.grading import isolation

STARTING_S = 60.0  # for importing torch and Triton, which a machine that is busy does slowly


def in_fresh_process(fn, args, seconds, interpret):
    """As `isolation.in_child`, in a new Python. interpret: with Triton's interpreter, on the CPU; else on the GPU."""
    environment = {**os.environ, "TRITON_INTERPRET": "1" if interpret else "0"}
    command = [sys.executable, "-m", "flashedu.grading.tensors.fresh"]
    try:
        content, files = _packed(fn, args)
    except Exception as error:  # something that does not let itself be copied, such as an open file
        return "error", f"it could not be copied into a process of its own ({isolation.summary(error)})"
    sources = {name: linecache.getlines(name) for name in files}
    request = pickle.dumps((sys.path, sources)) + pickle.dumps(content)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    try:
        end, (answer, _) = "died", process.communicate(request, timeout=seconds + STARTING_S)
    except subprocess.TimeoutExpired as late:
        end, answer = "time limit", late.stdout or b""
    finally:
        process.kill()
        process.wait()
    kind, content = _last_message(answer)
    if kind != "doing":
        return kind, content
    return end, content if end == "time limit" else isolation.ending(process.returncode) + content


def _last_message(answer):
    message, stream = ("doing", ""), io.BytesIO(answer)
    with contextlib.suppress(EOFError, pickle.UnpicklingError):  # the end, or half a message
        while True:
            message = pickle.load(stream)
    return message


def _packed(fn, args):
    """(The pickle of a call, the names of the files, or the cells, that hold the source of what travels by value)."""
    import cloudpickle
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    files = set()

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj):
            if isinstance(obj, (JITFunction, InterpretedFunction)):
                return _kernel, (obj.fn,)
            if isinstance(obj, types.CodeType):  # cloudpickle would forget which file it came from
                files.add(obj.co_filename)
                return marshal.loads, (marshal.dumps(obj),)
            return super().reducer_override(obj)

    buffer = io.BytesIO()
    Pickler(buffer).dump((fn, args))
    return buffer.getvalue(), files


def _kernel(fn):
    import triton

    return triton.jit(fn)


def _main():
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the answer prints goes elsewhere

    def send(message):
        pickle.dump(message, answers)
        answers.flush()

    isolation.become_child(send)
    sys.path[:], sources = pickle.load(sys.stdin.buffer)
    import flashedu.kernels  # noqa: F401  settles interpreter or GPU before anything imports Triton

    for name, lines in sources.items():  # after the imports, which empty this cache
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    content = pickle.load(sys.stdin.buffer)
    send(isolation.attempt(lambda: _run(content), ()))


def _run(content):
    fn, args = pickle.loads(content)
    return fn(*args)


if __name__ == "__main__":
    _main()
