"""The flashedu that a submission sees: what the notebook used when it was handed out, and nothing else.

Checks, hints and demos do nothing there. Everything else that it may use is the real thing; a name that it may not use raises one
sentence. While a submission's code runs it takes the place of the real modules, which everything that judges has imported before.
"""
import contextlib
import importlib
import sys
import types

SILENT = ("check", "require", "score", "hint", "progress", "doctor", "demos")


class StandIn(types.ModuleType):
    """A module without a file; its other names are refused."""

    __path__ = ()  # so that Python asks for submodules

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


class _Refusing:
    """A finder that refuses all of flashedu: what may be imported is in sys.modules, and no finder is asked."""

    def find_spec(name, path=None, target=None):
        if name.split(".")[0] == "flashedu":
            raise ImportError(_refused(name))


@contextlib.contextmanager
def instead(root):
    """A context in which whatever is imported of flashedu, and sys.modules, is the stand-in `root`."""
    real = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "flashedu"}
    _replace(dict(_modules("flashedu", root)))
    sys.meta_path.insert(0, _Refusing)
    try:
        yield
    finally:
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not _Refusing]
        _replace(real)


def _replace(modules):
    for name in [name for name in sys.modules if name.split(".")[0] == "flashedu"]:
        del sys.modules[name]
    sys.modules.update(modules)


def _modules(name, module):
    yield name, module
    for part, inner in vars(module).items():
        if isinstance(inner, StandIn | Silent):
            yield from _modules(f"{name}.{part}", inner)


def namespace():
    """The names of a fresh notebook."""
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    return vars(main)
