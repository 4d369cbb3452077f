"""What a submission may not do: replace what judges it, look at who calls it, read files that are not its own, start programs."""
import builtins
import importlib
import inspect
import linecache
import os
import pathlib
import subprocess
import sys
import time
import tokenize
import types

import numpy as np

PATHS = [module for name, module in sys.modules.items() if name.startswith("pathlib.")]  # Python 3.13 has it in parts
THROUGH = {module.__file__ for module in (inspect, linecache, os, pathlib, subprocess, tokenize, *PATHS)}  # they ask on behalf of who calls them
REFUSED = {"sys._getframe", "sys._current_frames", "sys.settrace", "sys.setprofile", "gc.get_objects", "gc.get_referrers", "gc.get_referents",
           "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"}  # events of sys.addaudithook
CARRIERS = ("json", "json.encoder", "pickle", "contextlib", "dataclasses", "os", "signal", "threading", "tracemalloc", "warnings", "multiprocessing.connection",
            "multiprocessing.context", "multiprocessing.popen_fork", "multiprocessing.process", "multiprocessing.reduction",
            "numpy._core._methods", "numpy._core.fromnumeric", "numpy._core.numeric")  # of these the functions are watched: verdicts travel through them, or NumPy's own call them


class Tampered(Exception):
    """What was replaced, in one sentence."""


def watched():
    """[(label, the names of a module, a class or a table, name, value, its code)] for what judges: flashedu, NumPy, and parts of Python."""
    ours = [module for name, module in sys.modules.items() if name.split(".")[0] == "flashedu" and isinstance(module, types.ModuleType)]
    carriers = [importlib.import_module(name) for name in CARRIERS]
    rooms = [(module.__name__, vars(module), vars(module)) for module in (*ours, np, np.linalg, np.random, builtins, time, inspect)]
    rooms += [(module.__name__, vars(module), [name for name, value in vars(module).items() if callable(value)]) for module in carriers]
    rooms += [(f"{module.__name__}.{name}", value, value) for module in ours for name, value in vars(module).items() if type(value) is dict and name.isupper()]
    rooms += [(f"{value.__module__}.{value.__qualname__}", vars(value), dir(value))  # what is inherited could be covered
              for module in (*ours, *carriers) for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    return [(f"{label}.{name}", names, name, names.get(name), _code(names.get(name))) for label, names, kept in rooms for name in kept if not str(name).startswith("__")]


def _code(value):
    return value.__code__ if isinstance(value, types.FunctionType) else None


def restore(before):
    """Put back what is no longer what it was, and raise Tampered unless packages did it as they were imported; names that were added do not matter."""
    found = [row for row in before if row[1].get(row[2]) is not row[3] or (row[4] is not None and row[3].__code__ is not row[4])]
    new = [names.get(name) for _, names, name, _, _ in found]
    for _, names, name, value, code in found:  # without any function that may have been replaced
        if code is not None:
            value.__code__ = code
        if type(names) is dict:
            names[name] = value
    told = [row[0] for row, value in zip(found, new) if type(row[1]) is not dict or not pathlib.Path(getattr(_code(value), "co_filename", "")).is_file()]
    more = f" and {len(told) - 3} more" if len(told) > 3 else ""
    if told:
        raise Tampered(f"It replaced what judges it: {', '.join(told[:3])}{more}.")


def refuse(scratch):
    """From now on the code of a notebook's cells (not of packages that it calls) meets a PermissionError where it asks for what is REFUSED,
    for the frames of its callers, or to read a file outside the folder `scratch`, without links. There is no way back."""

    def refused(event, args):
        if event == "sys._getframe" and args[0].f_code is refused.__code__:
            return
        if event == "object.__getattr__" and args[1] in ("tb_frame", "gi_frame"):
            event = args[1]
        elif event == "open" and type(args[0]) in (str, bytes) and args[2] & os.O_ACCMODE != os.O_WRONLY:
            path = os.path.realpath(os.fsdecode(args[0]))
            if path.startswith((f"{scratch}/", "/dev/")):
                return
            event = f"Reading {path}"
        elif event not in REFUSED:
            return
        asking = sys._getframe().f_back
        while asking and asking.f_code.co_filename in THROUGH:
            asking = asking.f_back
        if asking and asking.f_code.co_filename.startswith("<") and not asking.f_code.co_filename.startswith("<frozen"):
            raise PermissionError(f"{event} is not available while answers are graded.")

    sys.addaudithook(refused)
