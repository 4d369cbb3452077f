"""Wrong programs from right ones: texts replaced in a source, where each must stand exactly once."""
import importlib.util
import inspect
import linecache


def edited(source, edits, name):
    for old, new in edits:
        if source.count(old) != 1:
            raise ValueError(f"The edit of {name} must find {old!r} once, but it stands {source.count(old)} times.")
        source = source.replace(old, new)
    return source


def edited_function(right, edits, name):
    """A function's source, edited and compiled among the names of its module."""
    source = inspect.getsource(right)
    source = edited(source[source.index("def ") :], edits, name)  # without decorators
    names = {key: inspect.unwrap(value) if callable(value) else value for key, value in vars(inspect.getmodule(right)).items()}
    exec(compile(source, f"<{name}>", "exec"), names)
    return names[right.__name__]


def edited_kernels(modules, function, edits, name):
    """The sources of modules of `flashedu.kernels`, joined, edited and run as one; the `function` that they define.

    Only the last module may import the others. Their text goes to linecache, since Triton reads a kernel's source.
    """
    texts = [linecache.getlines(importlib.util.find_spec(f"flashedu.kernels.{module}").origin) for module in modules]
    own = tuple(f"from flashedu.kernels.{module} import" for module in modules)
    source = edited("".join(line for text in texts for line in text if not line.startswith(own)), edits, name)
    file = f"<{name} {hash(edits):x}>"  # one mistake may have several rows
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names = {"__name__": file, "Tile": importlib.import_module("flashedu.kernels.tiles").Tile}
    exec(compile(source, file, "exec"), names)
    return names[function]
