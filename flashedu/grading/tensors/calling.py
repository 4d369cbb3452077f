"""One call of an answer on tensors: NumPy arrays go in and come out, between guard bands, with torch and Triton watched."""
import contextlib
import functools
import traceback
import types

import numpy as np

from flashedu.grading import isolation
from flashedu.grading.tensors.fences import fence_array
from flashedu.grading.tensors.watching import watched

GPU_REPEATS = 20
CONTRACTS = ("own kernel", "type", "dtype", "guard bands", "shape", "inputs unchanged")


def on_tensors(inputs, outputs):
    """The `call` of an exercise whose answer takes and returns tensors; both are names, in one string."""
    return functools.partial(_call, inputs.split(), outputs.split())


def _call(inputs, outputs, fn, args, seconds, case):
    """An isolation.Call: result and `after` in NumPy, and `problems`, what was seen beside the values."""
    import torch

    from flashedu.kernels.device import DEVICE

    dtype = case.params.get("dtype", "float32")
    fences = {i: fence_array(x, "float32" if inputs[i] == "lse" else dtype, DEVICE) for i, x in enumerate(args) if isinstance(x, np.ndarray)}
    tensors = [fences[i].tensor if i in fences else x for i, x in enumerate(args)]
    watches, results, idle = [], [], []

    def run():
        for number in range(1 if not case.again else GPU_REPEATS if DEVICE == "cuda" else 2):
            with watched(backwards=number % 2 == 1) as watch:
                watches.append(watch)
                results.append(fn(*tensors))
                if DEVICE == "cuda":
                    torch.cuda.synchronize()  # a fault shows here
        if case.again:
            with watched(idle=True), contextlib.suppress(Exception):
                idle.extend(_several(fn(*tensors)))
        return results[0]

    call = isolation.call(run, (), seconds)
    call.after = tuple(_in_numpy(x) for x in tensors)
    if watches:
        call.tile = watches[0].tile
        call.peak_bytes = watches[0].largest_bytes
    if call.error is not None:
        call.error = _cause(call.error)
        return call
    names = [(inputs[i], fence) for i, fence in fences.items()]
    call.problems = tuple(problem for problem in (
        _own_kernel(watches[0]),
        _contracts(outputs, call.result, tensors[0]),
        _guard_bands(names, zip(outputs, _several(call.result)), watches[0]),
        _same_bits(case, outputs, results),
        _for_show(outputs, results[0], idle),
    ) if problem)
    call.result = _in_numpy(call.result)
    return call


def _several(result):
    return result if isinstance(result, (tuple, list)) else (result,)


def _cause(error):
    """What went wrong inside a kernel, not the interpreter's exception around it, with the lines that led there."""
    while type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
        frames, error = [*traceback.walk_tb(error.__traceback__)], error.__cause__
        for frame, line in reversed(frames):
            error.__traceback__ = types.TracebackType(error.__traceback__, frame, frame.f_lasti, line)
    return error


def _own_kernel(watch):
    if watch.forbidden:
        return "own kernel", "wrong", (
            f"It called torch's {watch.forbidden[0]} (@, torch.matmul and einsum end there, too). Products, softmax and attention are to be computed in "
            "your kernel; element-wise preparation and sums such as (do * o).sum(-1) may stay outside."
        )
    if watch.borrowed:
        return "own kernel", "wrong", f"It launched {watch.borrowed}. The kernel is to be one of yours; load_tile and store_tile may be called in it."
    if not watch.launches:
        return "own kernel", "wrong", "No Triton kernel was launched in this call. The work is to be done by a function under @triton.jit, called as kernel[grid](...)."
    return None


def _contracts(names, result, like):
    import torch

    results = _several(result)
    if len(results) != len(names):
        return "type", "wrong", f"It must return {_listed(names)}, but it returned {_kind(result)}."
    for name, x in zip(names, results):
        if not isinstance(x, torch.Tensor):
            return "type", "wrong", f"{name} must be a torch tensor, but it is {_kind(x)}.{' Is a return missing?' if x is None else ''}"
        if x.device != like.device:
            return "type", "wrong", f"{name} must be on {like.device}, as the inputs are, but it is on {x.device}: pass device=q.device, say, to torch.empty."
        wanted = torch.float32 if name == "lse" else like.dtype
        if x.dtype != wanted:
            whose = "float32, whatever the inputs are" if name == "lse" else f"the inputs' dtype, {wanted}"
            return "dtype", "wrong", f"{name} must have {whose}, but it has {x.dtype}."
    return None


def _guard_bands(inputs, outputs, watch):
    import torch

    outputs = [(name, x) for name, x in outputs if isinstance(x, torch.Tensor)]
    made = [(next((name for name, x in outputs if fence.holds(x)), "a tensor that it made"), fence) for fence in watch.made]
    sentences = (fence.sentence(name) for name, fence in (*made, *inputs))
    return next((("guard bands", "wrong", text) for text in sentences if text), None)


def _same_bits(case, names, results):
    """Whether every run gave the same bits; in the interpreter every second run has its programs in the opposite order."""
    for number, other in enumerate(results[1:], 2):
        for name, x, y in _tensors(names, results[0], other):
            if x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr():
                return case.check, "wrong", (
                    f"In run {number} {name} was the tensor that run 1 had returned. Whoever keeps the first result sees it change: allocate a new one in every call."
                )
            if not _equal(x, y):
                return case.check, "wrong", (
                    f"{name} came out with other bits in run {number}. Several programs write, or add to, the same elements, or one reads what another "
                    "may not have written yet. A result whose bits do not depend on the order has one program for each of its tiles."
                )
    return None


def _for_show(names, result, idle):
    """Whether something came out although no kernel ran."""
    for name, x, y in _tensors(names, result, idle):
        if x.isfinite().any() and x.any() and x.shape == y.shape and _equal(x, y):
            return "own kernel", "wrong", f"{name} comes out the same when the launched kernels do nothing: it was computed outside of them. The work is to be done by your kernel."
    return None


def _tensors(names, *results):
    """(name, tensor of each result) for every name under which all results have a tensor."""
    import torch

    rows = zip(names, *map(_several, results))
    return [row for row in rows if all(isinstance(x, torch.Tensor) for x in row[1:])]


def _equal(x, y):
    """Whether two tensors hold the same numbers, or NaN in the same places; of different shapes nothing is said."""
    return x.shape != y.shape or bool((x.eq(y) | x.isnan() & y.isnan()).all())


def _in_numpy(value):
    import torch

    if isinstance(value, (tuple, list)):
        return tuple(_in_numpy(x) for x in value)
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


def _listed(names):
    return f"({', '.join(names)})" if len(names) > 1 else names[0]


def _kind(value):
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of length {len(value)}"
    return "None" if value is None else f"of type {type(value).__name__}"
