"""The flashedu that a submission sees: what the notebook used when it was handed out, and nothing else.

Checks, hints and demos do nothing there. Everything else that it may use is the real thing; a name that it may not use raises one
sentence. It reaches a submission through the `__import__` of its builtins, so that the real modules stay where they are.
"""
import builtins
import importlib
import sys
import types

SILENT = ("check", "require", "score", "hint", "progress", "doctor", "demos")


class StandIn(types.ModuleType):
    """A module without a file; its other names are refused."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(_refused(f"{self.__name__}.{name}"))

    def __reduce__(self):  # in a process of its own, as kernels on a GPU have it, it is the real one
        return _real, (self.__name__,)


class Silent:
    """Whatever is done with it, nothing happens and nothing is shown."""

    def __call__(self, *args, **kwargs):
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self


def _refused(name):
    return f"{name} is not available while answers are graded: it holds the course's own answers, or is nothing that this notebook needs."


def stand_in(uses):
    """The stand-in for flashedu that has the full names `uses`, and what is silent; imports the real ones."""
    root = StandIn("flashedu")
    vars(root).update((name, Silent()) for name in SILENT)
    for full_name in uses:
        here, parts = root, full_name.split(".")[1:]
        for number, part in enumerate(parts, 2):
            name = ".".join(full_name.split(".")[:number])
            if isinstance(vars(here).get(part), Silent):
                break
            if not isinstance(_real(name), types.ModuleType):
                setattr(here, part, _real(name))
            elif part not in vars(here):
                setattr(here, part, StandIn(name))
            here = vars(here)[part]
            if not isinstance(here, StandIn):  # its attributes come with it
                break
    return root


def _real(name):
    """The module or the object of that full name; raises ImportError where a package is missing that it needs."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        parent, _, last = name.rpartition(".")
        return getattr(_real(parent), last)


def namespace_with(root):
    """The names of a fresh notebook whose imports of flashedu are those of the stand-in `root`."""

    def find(name):
        module = root
        for part in name.split(".")[1:]:
            module = vars(module).get(part)
            if not isinstance(module, StandIn | Silent):
                raise ImportError(_refused(name))
            if isinstance(module, Silent):
                break
        return module

    def import_(name, globals=None, locals=None, fromlist=(), level=0):
        if level or name.split(".")[0] != "flashedu":
            return builtins.__import__(name, globals, locals, fromlist, level)
        module = find(name)
        for wanted in fromlist or ():
            if isinstance(module, StandIn) and wanted not in vars(module) and wanted != "*":
                raise ImportError(_refused(f"{name}.{wanted}"))
        return module if fromlist else root

    real = importlib.import_module

    def import_module(name, package=None):
        if sys._getframe(1).f_globals is main.__dict__ and name.split(".")[0] == "flashedu":
            return find(name)
        return real(name, package)

    importlib.import_module = import_module
    main = types.ModuleType("__main__")
    main.__builtins__ = types.ModuleType("builtins")
    vars(main.__builtins__).update(vars(builtins), __import__=import_)
    sys.modules["__main__"] = main
    return vars(main)
