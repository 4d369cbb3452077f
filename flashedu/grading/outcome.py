"""What one case of an exercise gave: the call, its values, and the first problem with them, in words."""
from dataclasses import dataclass
from textwrap import indent

import numpy as np

from flashedu.arguments import short
from flashedu.grading import isolation
from flashedu.grading.exercises import arrays_in
from flashedu.grading.three_versions import Range
from flashedu.grading.time_limit import TimeLimitExceeded
from flashedu.machine import Machine, SramOverflow

TIME_LIMIT_S = 10.0  # for all cases of a check together
FREED = " (A tile that was freed holds NaN.)"
READ_ONLY = "\n\nmachine.hbm is there to be looked at when the run is over. Rows go there through store, from a tile in SRAM."
ADVICE = {  # what stands in an exception's text: what it means
    "in its core dimension": "A @ B needs as many columns in A as there are rows in B.",
    "truth value of an array": "An if, and Python's max or min, wants one True or False. For many rows at once take np.where, np.maximum or np.minimum.",
    "zero-size array to reduction": "This takes the maximum of nothing: a slice is empty. Where does it begin and end, and how often does the loop run?",
    "converted to a scalar index": "An array stands where one whole number belongs. np.max(a, b) takes b for the axis; the larger of two arrays is np.maximum(a, b).",
}
KERNEL_ADVICE = {
    "'grid_idx'": "A kernel is launched with a grid: kernel[(programs,)](...).",
    "outside of the scope of a kernel": "A kernel is launched with a grid: kernel[(programs,)](...).",
    "'int' has no len()": "The grid in kernel[grid](...) is a tuple, with one number, too: (programs,).",
    "unsupported tensor index": "In a kernel a tensor of the launcher is a pointer, which is read with tl.load(pointer + offsets, mask=...).",
    "Input shapes should have": "Triton compiles no product of so small tiles for a GPU: tl.dot(a, b) sums over the columns of a. With 16 there are enough for every dtype here; mask where D, or a tile, has less.",
    "reduction dimensions": "tl.dot(a, b) needs as many columns in a as there are rows in b; tl.trans exchanges rows and columns.",
}
NOT_ATTEMPTED = "There is no answer here yet. Write the body, run the cell, and check again."


@dataclass
class Outcome:
    """What one case gave: the call, its outputs as arrays (None if there are none), the problem (None if right), and error / bound.

    but_for_dtype: of outputs of another dtype, the check that fails once they are rounded to the right one, "" if none does; else None.
    """

    case: object
    call: isolation.Call
    values: list = None
    expected: list = ()
    problem: tuple = None  # (check, state, text)
    ratio: float = 0.0
    but_for_dtype: str = None

    @property
    def way(self):
        """How it failed: the check, the state, and the learner's lines that an exception came through; None if it did not."""
        return self.problem and (*self.problem[:2], [frame.lineno for frame in isolation.learner_frames(self.call.error)])


def examine(exercise, case, fn, seconds):
    """Call fn on one case and compare what it gave with what is right."""
    args = case.make(**case.params)
    if exercise.call:
        call = exercise.call(fn, args, seconds, case)
    else:
        asked = exercise.asked.get(case.check, lambda fn: fn)
        call = isolation.call(asked(fn), args, seconds, trace_memory=case.memory_limit_bytes or False)
    pristine = case.make(**case.params)  # only now, so that no call can reach it
    outcome = Outcome(case, call)
    try:
        outcome.problem = (_raised(exercise, call, case) or _changed(call.after or args, pristine) or next(iter(call.problems), None)
                           or _compare(exercise, case, args, pristine, outcome))
    except Exception as error:  # an object that does not let itself be looked at
        outcome.problem = "type", "wrong", f"Its result could not be examined: {type(error).__name__}."
    return outcome


def _raised(exercise, call, case):
    error = call.error
    if isinstance(error, TimeLimitExceeded):
        slow = f"is far too slow for so small an input (all cases together may take {TIME_LIMIT_S * exercise.patience:.0f} seconds)"
        tiles = " Without a GPU every program, and every tile that it visits, takes milliseconds, large or small: give a program many rows, and a tile more." if exercise.call else ""
        return "time limit", "wrong", f"It was stopped while it was running: either a loop never ends, or it {slow}.{tiles}"
    if type(error) is NotImplementedError and case is exercise.cases[0]:
        return case.check, "not attempted", NOT_ATTEMPTED
    if isinstance(error, SramOverflow):
        return case.check, "wrong", f"SRAM overflowed. {error}"
    if error is not None:
        hint = READ_ONLY if exercise.name.endswith("_on_machine") and "read-only" in isolation.summary(error) else ""
        return case.check, "error", "It raised an exception:\n\n" + indent(isolation.learner_traceback(error), "  ") + (hint or _advice(exercise, error))
    return None


def _advice(exercise, error):
    """A paragraph on an exception whose text says little, or nothing."""
    text = isolation.summary(error)
    return next((f"\n\n{advice}" for sign, advice in {**ADVICE, **(KERNEL_ADVICE if exercise.call else {})}.items() if sign in text), "")


def _changed(args, pristine):
    for after, before in zip(arrays_in(args), arrays_in(pristine), strict=True):
        if after.shape != before.shape or after.dtype != before.dtype:
            return "inputs unchanged", "wrong", (
                f"It changed the shape or dtype of one of its inputs from {before.shape}, {before.dtype} to {after.shape}, {after.dtype}. "
                "x.shape = ... works in place; x.reshape(...) makes a new array."
            )
        if not np.array_equal(after, before, equal_nan=True):
            where = tuple(int(i) for i in np.argwhere(~((after == before) | (np.isnan(after) & np.isnan(before))))[0])
            return "inputs unchanged", "wrong", (
                f"It changed one of its inputs, of shape {before.shape}, at {list(where)}: {before[where]:.6g} became {after[where]:.6g}. "
                "An in-place operation such as x -= m writes into the caller's array; x = x - m makes a new one."
            )
    return None


def _compare(exercise, case, args, pristine, outcome):
    expected_of, outputs = exercise.compared(case.check)
    result, expected = outcome.call.result, expected_of(*pristine)
    results = outputs(args, result) if outputs else (result if len(expected) > 1 else (result,))
    names = ", ".join(exercise.returned or [name for name, _ in expected])
    values = [*results] if isinstance(results, (tuple, list)) else []  # a subclass may say what it likes of its length
    if len(values) != len(expected):
        return "type", "wrong", f"It must return ({names}), but it returned {_kind(result)}."
    inputs = arrays_in(pristine)
    outcome.values = values if exercise.outputs is None and inputs else [_as_array(value) for value in values]
    outcome.expected, odd_dtype = expected, None
    for (name, bound), value in zip(expected, outcome.values):
        whole = bound.exact.dtype.kind == "i"
        if type(value) is not np.ndarray:
            hint = " Is a return missing?" if value is None else ""
            wanted = "a whole number" if whole else "a NumPy array" if inputs else "a number"
            return odd_dtype or ("type", "wrong", f"{name} must be {wanted}, but it is {_kind(value)}.{hint}")
        if value.shape != bound.exact.shape:
            must = f"be one {'whole ' if whole else ''}number" if not bound.exact.shape else f"have shape {bound.exact.shape}"
            return odd_dtype or ("shape", "wrong", f"{name} must {must}, but it has {'' if bound.exact.shape else 'shape '}{value.shape}.")
        if whole and value.dtype.kind not in "iu":
            how = "use // or int(...)." if value == np.floor(value) else "is the unit right, and which way is it to be rounded?"
            return "type", "wrong", f"{name} must be a whole number, but it is {short(value.tolist())}, a float: {how}"
        if not whole and not exercise.call and inputs and value.dtype != inputs[0].dtype:
            why = (" (np.sqrt(4), np.zeros(3) and np.full(3, -np.inf) are float64 unless told otherwise, and turn float32 arrays into float64; "
                   "4**0.5 is a Python number and does not.)") if value.dtype == np.float64 else ""
            odd_dtype = odd_dtype or ("dtype", "wrong", f"{name} must have the inputs' dtype, {inputs[0].dtype}, but it has {value.dtype}.{why}")
    if odd_dtype and any(value.dtype.kind != "f" for value in outcome.values):
        return odd_dtype
    problem = _numbers(exercise, case, args, inputs, outcome, [value.astype(inputs[0].dtype) for value in outcome.values] if odd_dtype else outcome.values)
    if odd_dtype:
        outcome.but_for_dtype = problem[0] if problem else ""
    return odd_dtype or problem


def _numbers(exercise, case, args, inputs, outcome, values):
    """What is wrong with outputs whose types and shapes are right."""
    for (name, bound), value in zip(outcome.expected, values):
        if isinstance(args[0], Machine) and name in args[0].hbm and not any(e.kind == "store" and e.name == name for e in args[0].events):
            outcome.values = None
            return case.check, "wrong", f"{name} was never stored in HBM: machine.store does that, and what the function returns is not looked at."
        errors = bound.errors(value)
        outcome.ratio = max(outcome.ratio, float(errors.max()))
        if errors.max() > 1:
            check = case.check if case.memory_limit_bytes is None else "larger"  # the values are wrong, not the memory
            source = _source_of_nan(exercise, args, outcome.call) if np.isnan(value).any() else ""
            return check, "wrong", _difference(name, bound, value, errors, exercise.numbers) + source
    if case.memory_limit_bytes is not None:
        return _memory(case, outcome.call.peak_bytes, inputs, "made a tensor of" if exercise.call else "held at once")
    return None


def _source_of_nan(exercise, args, call):
    if any("invalid value" in warning for warning in call.warned):  # NumPy warns of a NaN that arises, not of one that was there
        return ""
    if isinstance(args[0], Machine):
        return FREED
    if exercise.call:
        return " (Around the tensors, in the gaps between their elements, and in what torch.empty gives, lies NaN.)"
    return ""


def _memory(case, peak_bytes, inputs, took):
    if peak_bytes is None:
        return case.check, "wrong", "The result is right, but its memory could not be measured, since the answer changed what tracemalloc had counted."
    if peak_bytes <= case.memory_limit_bytes:
        return None
    return case.check, "wrong", (
        f"The result is right, but at Nq = {case.params['n_q']}, Nk = {case.params['n_k']} the call {took} {peak_bytes:,} bytes; its "
        f"inputs have {sum(x.nbytes for x in inputs):,}, and up to {case.memory_limit_bytes:,} would pass. Something grows with Nq x Nk: all "
        "the scores, a mask for all of them, or the results of all blocks kept in a list."
    )


def _difference(name, bound, value, errors, numbers):
    where = tuple(int(i) for i in np.argwhere(errors > 1)[0])
    label = f"{name}[{', '.join(map(str, where))}]" if where else name
    yours, right = value[where], bound.exact[where]
    if isinstance(bound, Range):
        more, fewer = numbers.get(name, ("", ""))
        return f"{label} is {f'{int(yours):,}' if value.dtype.kind in 'iu' else f'{yours:.7g}'}; right is {bound}. {more if bound.low is None or yours > bound.low else fewer}".rstrip()
    if name == "sram_peak":
        return (f"The tiles took at most {int(yours):,} bytes of SRAM, but tiles of q, k, s and o and one row statistic need {int(right):,}: "
                "something that lives longer than one expression was kept outside, or the tiles are smaller than block_q and block_k.")
    if name == "hbm_looks":
        return f"machine.hbm was read during the run ({int(yours)} times). Rows come in through load, or nobody counts them; shapes through shape."
    if bound.exact.dtype.kind == "i":
        return f"{label} is {int(yours):,}; right is {int(right):,}.{_about_bytes(name, yours, right)}"
    if not bound.exact.shape:
        return f"{label} is {yours:.10g}; right is {right:.10g}."
    count = f"Wrong: {int((errors > 1).sum())} of {errors.size}"
    odd = ", ".join(f"{int(f(value).sum())} {word}" for f, word in ((np.isnan, "NaN"), (np.isinf, "infinite")) if f(value).any())
    times = f"{errors[where]:,.3g}" if errors[where] < 100 else f"{errors[where]:,.0f}" if errors[where] < 1e7 else f"{errors[where]:.1e}"
    size = f", {times} times the error that rounding may cause" if np.isfinite(errors[where]) else ""
    digits = 7 if value.dtype == np.float32 else 16
    return f"{label} is {yours:.{digits}g}; right is {float(right):.{digits}g}{size}. {count}{f' ({odd} in yours)' if odd else ''}."


def _about_bytes(name, yours, right):
    if name == "read_bytes":
        more = " More means that a tile was loaded again that was there, or one that no query sees."
        return more if yours > right else " Fewer means that tiles were kept outside SRAM, or that rows were taken from machine.hbm without load."
    if name == "written_bytes":
        return " o and lse are to be stored once, all of them."
    return ""


def _as_array(value):
    """A plain number as an array without axes; anything else as it is."""
    return np.array(value) if type(value) in (int, float) or isinstance(value, np.number) else value


def _kind(value):
    if value is None:
        return "None"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of length {len(value)}"
    return f"an object of type {type(value).__module__}.{type(value).__name__}".replace("builtins.", "")
