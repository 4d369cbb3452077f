"""Running an answer through the cases of its exercise, shrinking the first failure, and naming the mistake."""
import dis
import inspect
import time
from dataclasses import dataclass

import numpy as np

from flashedu.grading import isolation
from flashedu.grading.exercises import EXERCISES, arrays_in
from flashedu.grading.inputs import KINDS
from flashedu.grading.mistakes import MISTAKES
from flashedu.grading.verdict import Verdict
from flashedu.machine import Machine, SramOverflow

TIME_LIMIT_S = 10.0
SHRINK_S = 0.3
SMALLER = (1, 2, 3, 4, 5, 6, 8)


@dataclass
class Outcome:
    """What one case gave: the call, its outputs as arrays (None if there are none), the problem (None if right), and error / bound."""

    case: object
    call: isolation.Call
    values: list = None
    expected: list = ()
    problem: tuple = None  # (check, state, text)
    ratio: float = 0.0


def examine(exercise, case, fn, seconds=TIME_LIMIT_S):
    """Call fn on one case and compare what it gave with what is right."""
    args, pristine = case.make(**case.params), case.make(**case.params)
    outcome = Outcome(case, isolation.call(fn, args, seconds, trace_memory=case.memory_limit_bytes is not None))
    outcome.problem = _raised(outcome.call, case) or _changed(args, pristine) or _compare(exercise, case, args, pristine, outcome)
    return outcome


def _raised(call, case):
    error = call.error
    if isinstance(error, isolation.TimeLimitExceeded):
        return "time limit", "wrong", f"It was still running after {call.seconds:.0f} seconds: is there a loop that never ends?"
    if isinstance(error, NotImplementedError):
        return case.check, "not attempted", "There is no answer here yet. Write the body, run the cell, and check again."
    if isinstance(error, SramOverflow):
        return case.check, "wrong", f"SRAM overflowed. {error}"
    if error is not None:
        return case.check, "error", f"It raised an exception:\n\n  {isolation.learner_traceback(error).strip()}"
    return None


def _changed(args, pristine):
    for after, before in zip(arrays_in(args), arrays_in(pristine)):
        if not np.array_equal(after, before, equal_nan=True):
            where = tuple(int(i) for i in np.argwhere(~((after == before) | (np.isnan(after) & np.isnan(before))))[0])
            return "inputs unchanged", "wrong", (
                f"It changed one of its inputs, of shape {before.shape}, at {list(where)}: {before[where]:.6g} became {after[where]:.6g}. "
                "An in-place operation such as x -= m writes into the caller's array; x = x - m makes a new one."
            )
    return None


def _compare(exercise, case, args, pristine, outcome):
    result, expected = outcome.call.result, (case.expected or exercise.expected)(*pristine)
    outputs = case.outputs or exercise.outputs
    results = outputs(args, result) if outputs else (result if len(expected) > 1 else (result,))
    names = ", ".join(name for name, _ in expected)
    if not isinstance(results, (tuple, list)) or len(results) != len(expected):
        return "type", "wrong", f"It must return ({names}), but it returned {_kind(result)}."
    outcome.values, outcome.expected = [np.asarray(value) if _is_number(value) else value for value in results], expected
    inputs = arrays_in(pristine)
    for (name, bound), value in zip(expected, outcome.values):
        if not isinstance(value, np.ndarray):
            hint = " Is a return missing?" if value is None else ""
            return "type", "wrong", f"{name} must be {'a NumPy array' if inputs else 'a whole number'}, but it is {_kind(value)}.{hint}"
        if value.shape != bound.exact.shape:
            return "shape", "wrong", f"{name} must have shape {bound.exact.shape}, but it has {value.shape}."
        whole = bound.exact.dtype.kind == "i"
        if whole and value.dtype.kind not in "iu":
            return "type", "wrong", f"{name} must be a whole number, but it is {value[()]!r} of type {value.dtype}."
        if not whole and value.dtype != inputs[0].dtype:
            return "dtype", "wrong", (
                f"{name} must have the inputs' dtype, {inputs[0].dtype}, but it has {value.dtype}. "
                "(np.sqrt(4) is a float64 scalar and turns float32 arrays into float64; 4**0.5 is a Python number and does not.)"
            )
    for (name, bound), value in zip(expected, outcome.values):
        errors = bound.errors(value)
        outcome.ratio = max(outcome.ratio, float(errors.max()))
        if errors.max() > 1:
            return case.check, "wrong", _difference(name, bound, value, errors, exercise)
    if case.memory_limit_bytes is not None and outcome.call.peak_bytes > case.memory_limit_bytes:
        n_q, n_k = case.params["n_q"], case.params["n_k"]
        return case.check, "wrong", (
            f"The result is right, but at Nq = {n_q}, Nk = {n_k} the call held {outcome.call.peak_bytes:,} bytes at once, more than "
            f"{case.memory_limit_bytes:,}: something of size Nq x Nk exists. Only one block of scores may exist at a time."
        )
    return None


def _difference(name, bound, value, errors, exercise):
    where = tuple(int(i) for i in np.argwhere(errors > 1)[0])
    label = f"{name}[{', '.join(map(str, where))}]" if where else name
    yours, right = value[where], bound.exact[where]
    if name == "sram_peak":
        return (f"The tiles took at most {int(yours):,} bytes of SRAM, but tiles of q, k, s and o and one row statistic need {int(right):,}: "
                "something that lives longer than one expression was kept outside. Take room with alloc and write into it.")
    if name == "hbm_looks":
        return f"machine.hbm was read {int(yours)} times during the run. Rows come in through load, or nobody counts them."
    if bound.exact.dtype.kind == "i":
        fewer = " Fewer bytes than that means that tiles were kept outside SRAM." if name == "read_bytes" and yours < right else ""
        return f"{label} is {int(yours):,}; right is {int(right):,}.{fewer}"
    count = f"{int((errors > 1).sum())} of {errors.size} elements are wrong"
    odd = ", ".join(f"{int(f(value).sum())} {word}" for f, word in ((np.isnan, "NaN"), (np.isinf, "infinite")) if f(value).any())
    times = f"{errors[where]:,.3g}" if errors[where] < 100 else f"{errors[where]:,.0f}" if errors[where] < 1e7 else f"{errors[where]:.1e}"
    size = f", {times} times the error that rounding can cause" if np.isfinite(errors[where]) else ""
    return f"{label} is {yours:.7g}; right is {float(right):.7g}{size}. {count}{f' ({odd} in yours)' if odd else ''}."


def _is_number(value):
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def _kind(value):
    if value is None:
        return "None"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)} values"
    return f"of type {type(value).__module__}.{type(value).__name__}".replace("builtins.", "")


def _shrink(exercise, outcome, fn):
    """The smallest case, found by making one size after the other smaller, that still fails in the same way."""
    stop, best = time.perf_counter() + SHRINK_S, outcome
    for _ in range(2):
        for name, value in list(best.case.params.items()):
            if type(value) is not int or name == "seed":
                continue
            for smaller in (n for n in SMALLER if n < best.case.params[name]):
                if time.perf_counter() > stop:
                    return best
                case = type(best.case)(**{**vars(best.case), "params": {**best.case.params, name: smaller}})
                try:
                    trial = examine(exercise, case, fn, seconds=SHRINK_S)
                except (ValueError, IndexError):  # no such case, e.g. heads no multiple of kv_heads
                    continue
                if trial.problem and trial.problem[:2] == best.problem[:2]:
                    best = trial
                    break
    return best


def _same(outcome, other):
    """Whether two answers behave alike on a case: the same kind of failure, the same values.

    Values are the same when they differ by what rounding can cause, or by little against how wrong they are.
    """
    if type(outcome.call.error) is not type(other.call.error) or (outcome.problem or ("",))[0] != (other.problem or ("",))[0]:
        return False
    if outcome.values is None or other.values is None:
        return outcome.values is other.values
    for (_, bound), value, reference in zip(other.expected, outcome.values, other.values):
        if not isinstance(value, np.ndarray) or not isinstance(reference, np.ndarray):
            return type(value) is type(reference)
        if value.shape != reference.shape or value.dtype != reference.dtype:
            return False
        right = bound.exact if bound.exact.shape == value.shape else 0
        with np.errstate(invalid="ignore"):
            wrong = np.where(np.isfinite(reference - right), np.abs(reference - right), 0).max()
        allowed = np.max(bound.bound) + 1e-3 * float(wrong)
        if not np.allclose(value, reference, rtol=0, atol=float(allowed), equal_nan=True):
            return False
    return True


def name_mistake(exercise, outcomes, reported):
    """The mistake of the zoo that agrees with an answer on every case that fails by the reported check; among several, on most cases.

    Agreement on the cases that the answer gets right counts too, or every mistake that breaks one edge would look alike.
    """
    cases = sorted(outcomes, key=lambda o: not (o.problem and o.problem[0] == reported))
    best, most = None, 0
    costly = {case.check for case in exercise.cases if case.memory_limit_bytes}
    for mistake in MISTAKES[exercise.name]:
        if reported in costly and mistake.caught_by != reported:
            continue
        agreed = 0
        for outcome in cases:
            if outcome.case.memory_limit_bytes and not outcome.problem:
                continue
            if _same(outcome, examine(exercise, outcome.case, mistake.function, seconds=1.0)):
                agreed += 1
            elif outcome.problem and outcome.problem[0] == reported:
                agreed = 0
                break
        if agreed > most:
            best, most = mistake, agreed
    return best


def run_cases(exercise, fn):
    """The outcomes of all cases, up to the first that is not attempted or runs out of time."""
    outcomes, left = [], TIME_LIMIT_S
    for case in exercise.cases:
        outcomes.append(examine(exercise, case, fn, max(left, 0.1)))
        left -= outcomes[-1].call.seconds
        if outcomes[-1].problem and (outcomes[-1].problem[1] == "not attempted" or outcomes[-1].problem[0] == "time limit"):
            break
    return outcomes


def judge(fn, exercise=None):
    """The Verdict on fn, an answer to `exercise` (by default the one that fn is named after)."""
    start = time.perf_counter()
    name = exercise or getattr(fn, "__name__", None)
    if not callable(fn) or name not in EXERCISES:
        what = f"there is no exercise called {name!r}" if callable(fn) else f"{fn!r:.60} is not a function"
        message = f"Nothing was checked: {what}. Pass your function, check(my_function, exercise=\"...\"), with one of {', '.join(EXERCISES)}."
        return Verdict(str(name), "error", 0.0, message)
    exercise = EXERCISES[name]
    if _is_stub(fn):
        return _verdict(exercise, "not attempted", "There is no answer here yet. Write the body, run the cell, and check again.", [], start)
    wanted = str(inspect.signature(exercise.reference))
    try:
        inspect.signature(fn).bind(*exercise.cases[0].make(**exercise.cases[0].params))
    except TypeError:
        return _verdict(exercise, "error", f"It must take {wanted}, but it takes {inspect.signature(fn)}.", [], start)
    except ValueError:  # a callable without a signature: let the call itself tell
        pass
    outcomes = run_cases(exercise, fn)
    failures = [o for o in outcomes if o.problem]
    if not failures:
        return _verdict(exercise, "passed", _praise(exercise, outcomes), outcomes, start)
    first = failures[0]
    check, state, text = first.problem
    if state == "not attempted":
        return _verdict(exercise, state, text, [], start)
    mistake = None if check == "time limit" else name_mistake(exercise, outcomes, check)
    smallest = first if check == "time limit" or first.case.memory_limit_bytes else _shrink(exercise, first, fn)
    paragraphs = [f'The check "{check}" failed. The smallest case found: {_describe(exercise, smallest)}', smallest.problem[2]]
    if mistake:
        paragraphs.append(f"It behaves like this mistake ({mistake.slug}): {mistake.sentence}")
    if first.call.warned:
        paragraphs.append("While it ran, Python warned: " + "; ".join(first.call.warned[:3]) + ".")
    if first.call.printed.strip():
        paragraphs.append("It printed:\n\n  " + first.call.printed.strip()[:300])
    paragraphs.append(f'Where to look: chapter {exercise.chapter}, and hint("{exercise.name}", 1).')
    return _verdict(exercise, state, "\n\n".join(paragraphs), outcomes, start, check, mistake)


def _is_stub(fn):
    """Whether the body is empty: only a docstring, pass, ... or return None."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    if code is None:
        return False
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("RESUME", "NOP")]
    return all(step.opname in ("LOAD_CONST", "RETURN_CONST", "RETURN_VALUE") and step.argval in (None, ...) for step in steps)


def _verdict(exercise, state, message, outcomes, start, failed=None, mistake=None):
    broken = {o.problem[0] for o in outcomes if o.problem}
    tried, failing = {o.case.check for o in outcomes}, {o.case.check for o in outcomes if o.problem}
    returned = any(o.call.error is None for o in outcomes)
    marks = []
    for check in exercise.checks:
        if check in broken:
            marks.append((check, "failed"))
        elif check in tried - failing or (returned and check in (*exercise.contracts, "time limit")):
            marks.append((check, "passed"))
        else:  # not reached, or its cases failed by another check
            marks.append((check, "not run"))
    earned = sum(s == "passed" for _, s in marks) if tried - failing else 0  # no credit for the right shape of a wrong answer
    score = 1.0 if state == "passed" else earned / len(marks)
    return Verdict(exercise.name, state, score, message, tuple(marks), failed, mistake and mistake.slug, time.perf_counter() - start)


def _praise(exercise, outcomes):
    if exercise.contracts == ("type",):
        return f"All {len(outcomes)} cases are right."
    worst = max(outcomes, key=lambda o: o.ratio)
    text = f"Exact: over {len(outcomes)} cases the largest error is {worst.ratio:.2f} of what rounding alone may cause"
    if exercise.peer is None:
        return text + "."
    with np.errstate(all="ignore"):
        naive = max(o.expected[0][1].ratio(exercise.peer(*o.case.make(**o.case.params))) for o in outcomes)
    return text + f" (naive attention on the same inputs: {naive:.2f})."


def _describe(exercise, outcome):
    params, args = dict(outcome.case.params), outcome.case.make(**outcome.case.params)
    kind = params.pop("kind", None)
    field = {"n_q": "Nq", "n_k": "Nk", "d": "D", "d_v": "Dv"}
    sizes = [f"{field.get(name, name)} = {value}" for name, value in params.items() if name not in ("seed", "dtype", "strided", "spare", "lead") and value is not None]
    text = ", ".join([*sizes, *([params["dtype"]] if "dtype" in params else [])])
    text += f"; {KINDS.get(kind, kind)}." if kind else "."
    names = list(inspect.signature(exercise.reference).parameters)
    arrays = [(name, value) for name, value in zip(names, args) if arrays_in(value) and not isinstance(value, Machine)]
    if arrays and sum(array.size for _, value in arrays for array in arrays_in(value)) <= 16:
        shown = "\n".join(f"  {name} = {_show(value)}" for name, value in arrays)
        text += f"\n\n{shown}"
    return text


def _show(value):
    if isinstance(value, tuple):
        return "(" + ", ".join(_show(item) for item in value) + ")"
    return np.array2string(value, precision=4, separator=", ", max_line_width=200).replace("\n", "")
