"""What an answer does with torch and Triton while it runs: what it allocates, which kernels it launches, who computes."""
import contextlib
import functools
import re
from dataclasses import replace

from flashedu.grading.tensors.fences import fence_result

COMPUTED_BY_TORCH = re.compile(  # torch's functions that would do the exercise; element-wise ones and sums are fine
    r"softmax|logsumexp|attention|convolution|(mm|bmm|addmm|baddbmm|addbmm|mv|addmv|dot|vdot|matmul|linear|einsum|cumsum|cumprod|logcumsumexp|cdist)$"
)

MOST_FENCES = 200  # an answer that makes more tensors, in a loop of torch's functions, would fill the memory with bands

TILE = {which: re.compile(rf"(block_?)?(size_?)?b?[{letters}](_?tile)?(_?size)?", re.I) for which, letters in (("q", "qmr"), ("k", "knc"))}


def _tile(arguments):
    """(block_q, block_k) among the arguments of a launch: powers of two that are called BLOCK_Q, BM, Q_TILE_SIZE, Q, ..."""
    sizes = {name: value for name, value in arguments.items() if type(value) is int and value >= 16 and value & (value - 1) == 0}
    found = [next((value for name, value in sizes.items() if TILE[which].fullmatch(name)), None) for which in "qk"]
    return tuple(found) if all(found) else None


@functools.cache
def _mode_class():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        """Sees every torch function that is called in its block.

        made: Fences around the first MOST_FENCES tensors. largest_bytes: of all of them. forbidden: names of torch's functions.
        launches: how many kernels ran. borrowed: one of them that is not the learner's.
        """

        def __init__(self):
            super().__init__()
            self.made, self.forbidden, self.launches, self.paused, self.patched = [], [], 0, False, set()
            self.tile = self.borrowed = None
            self.largest_bytes = 0

        @classmethod
        def _should_skip_dynamo(cls):  # yes would import torch's compiler, which takes longer than most checks
            return False

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if self.paused:
                return result
            name = func._schema.name.removeprefix("aten::")
            if COMPUTED_BY_TORCH.search(name):
                self.forbidden.append(name.strip("_"))
            result, sizes, fences = fence_result(result, func, args, fenced=len(self.made) < MOST_FENCES)
            self.largest_bytes = max(self.largest_bytes, *sizes, 0)
            self.made += fences
            return result

    return Watch


@contextlib.contextmanager
def watched(backwards=False, idle=False):
    """A Watch around an answer's code. backwards: the interpreter runs the programs of a grid in the opposite order.

    idle: no kernel is run, however often it is launched.
    """
    from triton.backends.nvidia.compiler import min_dot_size
    from triton.runtime import autotuner, interpreter, jit

    builder, patch_lang = interpreter.interpreter_builder, interpreter._patch_lang
    options, functions = builder.options, builder.codegen_fns
    set_grid_idx, tune = builder.set_grid_idx, autotuner.Autotuner.run
    runs = {cls: cls.run for cls in (interpreter.InterpretedFunction, jit.JITFunction)}
    watch = _mode_class()()

    def counted(run):
        def wrapper(kernel, *args, **kwargs):
            watch.launches += not kwargs.get("warmup", False)
            if kernel.fn.__module__.startswith("flashedu."):
                watch.borrowed = f"{kernel.fn.__name__} of {kernel.fn.__module__}"
            watch.tile = _tile({**dict(zip(kernel.arg_names, args)), **kwargs}) or watch.tile
            if idle:
                return None
            watch.paused = True
            try:
                return run(kernel, *args, **kwargs)
            finally:
                watch.paused = False
                watch.patched.clear()

        return wrapper

    def patch_once(fn):  # the interpreter would do it again for each call of a helper: a third of all its time
        if fn not in watch.patched:
            watch.patched.add(fn)
            return patch_lang(fn)

    def first_config(tuner, *args, **kwargs):  # timing needs a GPU, and on one every run would count
        tuner.configs = tuner.configs[:1]
        return tune(tuner, *args, **kwargs)

    def opposite(*place):
        set_grid_idx(*(n - 1 - i for n, i in zip(builder.grid_dim, place)))

    try:
        for cls, run in runs.items():
            cls.run = counted(run)
        autotuner.Autotuner.run, interpreter._patch_lang = first_config, patch_once
        builder.options = replace(options, sanitize_overflow=False)  # nothing here overflows, and every addition would be tested
        builder.codegen_fns = {**functions, "min_dot_size": min_dot_size(None)}  # as for a GPU, tl.dot refuses sums of too few products
        if backwards:
            builder.set_grid_idx = opposite
        with watch:
            yield watch
    finally:
        for cls, run in runs.items():
            cls.run = run
        autotuner.Autotuner.run, interpreter._patch_lang = tune, patch_lang
        builder.options, builder.codegen_fns = options, functions
        builder.__dict__.pop("set_grid_idx", None)
