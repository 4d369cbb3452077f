"""Whether a submission has replaced what judges it."""
import builtins
import inspect
import sys
import time
import types

import numpy as np


class Tampered(Exception):
    """What was replaced, in one sentence."""


def watched():
    """[(label, the names of a module or a class, name, value, its code)] for the modules of flashedu and NumPy that judge."""
    ours = [module for name, module in sys.modules.items() if name.split(".")[0] == "flashedu" and isinstance(module, types.ModuleType)]
    rooms = [(module.__name__, vars(module)) for module in (*ours, np, np.linalg, np.random, builtins, time, inspect)]
    rooms += [(f"{value.__module__}.{value.__qualname__}", vars(value))
              for module in ours for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    return [(f"{label}.{name}", names, name, value, _code(value)) for label, names in rooms for name, value in names.items() if not name.startswith("__")]


def _code(value):
    return value.__code__ if isinstance(value, types.FunctionType) else None


def restore(before):
    """Put back what is no longer what it was, and raise Tampered if there was any; names that were added do not matter."""
    found = [row for row in before if row[1].get(row[2]) is not row[3] or (row[4] is not None and row[3].__code__ is not row[4])]
    if not found:
        return
    for _, names, name, value, code in found:  # without any function that may have been replaced
        if code is not None:
            value.__code__ = code
        if type(names) is dict:
            names[name] = value
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    raise Tampered(f"It replaced what judges it: {', '.join(row[0] for row in found[:3])}{more}.")
