"""From an answer to a verdict: run its cases, shrink the first failure, name the mistake, and say it."""
import dis
import inspect
import time
from dataclasses import replace
from functools import partial
from textwrap import indent

import numpy as np

from flashedu.arguments import short
from flashedu.grading import isolation
from flashedu.grading.exercises import EXERCISES, arrays_in, on_gpu
from flashedu.grading.inputs import KINDS
from flashedu.grading.naming import name_mistake
from flashedu.grading.outcome import NOT_ATTEMPTED, TIME_LIMIT_S, examine
from flashedu.grading.tensor_inputs import LAYOUTS
from flashedu.grading.tensors.fresh import in_fresh_process
from flashedu.grading.tensors.place import here
from flashedu.grading.verdict import Verdict
from flashedu.machine import Machine

NAMING_S = 8.0  # for an answer in Triton, where every trial takes its time
GRACE_S = 5.0  # for naming the mistake and shrinking, and for code that swallows the time limit
SHRINK_S = 0.3
MOST_WITH_ALL_SCORES = 0.5  # of the points, for what holds a matrix that it should do without
SMALLER = (1, 2, 3, 4, 5, 6, 8)


def _shrink(exercise, outcome, fn):
    """The smallest case, found by making one size after the other smaller, that still fails in the same way."""
    stop, best = time.perf_counter() + SHRINK_S, outcome
    for _ in range(2):
        for name, value in list(best.case.params.items()):
            if type(value) is not int or name == "seed" or name.startswith("block"):
                continue
            for smaller in (n for n in SMALLER if n < best.case.params[name]):
                if time.perf_counter() > stop:
                    return best
                case = replace(best.case, params={**best.case.params, name: smaller})
                try:
                    trial = examine(exercise, case, fn, seconds=SHRINK_S)
                except (ValueError, IndexError):  # no such case, e.g. heads no multiple of kv_heads
                    continue
                if trial.way == best.way:
                    best = trial
                    break
    return best


def run_cases(exercise, fn):
    """The outcomes of all cases, up to the first that is not attempted or runs out of time."""
    outcomes, left = [], TIME_LIMIT_S * exercise.patience
    for case in exercise.cases:
        isolation.report(f', in the check "{case.check}", {_sizes(case)}')
        outcomes.append(examine(exercise, case, fn, max(left, 0.1)))
        left -= outcomes[-1].call.seconds
        if outcomes[-1].problem and (outcomes[-1].problem[1] == "not attempted" or outcomes[-1].problem[0] == "time limit"):
            break
    return outcomes


def judge(fn, exercise=None, fresh=None, seed=None):
    """The Verdict on fn, an answer to `exercise` (by default the one that fn is named after).

    fresh: whether an answer in Triton is taken to a new process, even where a fork would do (by default, only there).
    seed: what hidden cases are drawn from (by default, the public ones). Raises RuntimeError inside an answer that is being checked.
    """
    if isolation.busy():
        raise RuntimeError("check was called inside the answer that is being checked: take it out of the function's body.")
    name = _name_of(fn) if exercise is None else exercise
    if not callable(fn) or not isinstance(name, str) or name not in EXERCISES:
        what = f"there is no exercise called {short(name)}" if callable(fn) else f"{short(fn)} is not a function"
        message = f"Nothing was checked: {what}. Pass your function, check(my_function, exercise=\"...\"), with one of {', '.join(EXERCISES)}."
        return Verdict(short(name).strip("'"), "error", 0.0, message)
    asked = replace(EXERCISES[name], seed=None if seed is None else str(seed))
    if asked.call is None:
        return _judged_by(isolation.in_child, fn, asked)
    place = here()
    if place.trouble:
        return Verdict(name, *place.trouble)
    if not (place.forks if fresh is None else not fresh):
        verdict = _judged_by(partial(in_fresh_process, interpret=True), fn, asked)
    else:
        verdict = _judged_by(isolation.in_child, fn, asked)
    if verdict.passed and place.gpu:
        asked = on_gpu(asked)
        return _both(verdict, _judged_by(partial(in_fresh_process, interpret=False), fn, asked), asked.checks)
    if verdict.passed:
        verdict.message += " That was in Triton's interpreter, which compiles nothing and shows neither TF32 nor programs that run at once: where there is a GPU, a check goes on there."
    return verdict


def _both(first, second, checks):
    """One Verdict from that of the interpreter, which was passed, and that of the GPU, whose checks are called `checks`."""
    marks = {**dict(first.checks), **{name: "not run" for name in checks if name not in dict(first.checks)}, **dict(second.checks)}
    score = 1.0 if second.passed else round(sum(state == "passed" for state in marks.values()) / len(marks), 3)
    message = f"In the interpreter: {first.message}\n\nOn the GPU: {second.message}"
    return replace(second, checks=tuple(marks.items()), message=message, score=score, seconds=first.seconds + second.seconds)


def _judged_by(run, fn, exercise):
    """The Verdict from a process that `run`, such as isolation.in_child, starts."""
    start = time.perf_counter()
    end, result = run(_judge, (fn, exercise), TIME_LIMIT_S * exercise.patience + GRACE_S)
    if end == "result":
        return result
    died = (" A pointer ran far outside its tensor: is the mask of a tl.load or a tl.store missing, or a stride wrong?" if exercise.call and str(result).startswith(("SIGSEGV", "SIGABRT", "SIGBUS"))
            else " SIGKILL may mean that it asked for too much memory.")
    state, message = {
        "error": ("error", f"It could not be examined: {result}"),
        "died": ("error", f"It ended the whole Python process ({result}).{died}"),
        "time limit": ("wrong", "It was still running when it had to be stopped: is there a loop that never ends, around an except that "
                       "catches everything?"),
    }[end]
    return Verdict(exercise.name, state, 0.0, message, failed="time limit" if end == "time limit" else None, seconds=time.perf_counter() - start)


@np.errstate(**isolation.USUAL)  # whatever a notebook has set
def _judge(fn, exercise):
    start = time.perf_counter()
    if _is_stub(fn):
        return _verdict(exercise, "not attempted", NOT_ATTEMPTED, [], start)
    misfit = _misfit(fn, exercise)
    if misfit:
        return _verdict(exercise, "error", misfit, [], start)
    outcomes = run_cases(exercise, fn)
    failures = [o for o in outcomes if o.problem]
    if not failures:
        return _verdict(exercise, "passed", _praise(exercise, outcomes), outcomes, start)
    first = failures[0]
    check, state, text = first.problem
    if state == "not attempted":
        return _verdict(exercise, state, text, [], start)
    unknown = check == "time limit" or (first.case.memory_limit_bytes and first.call.peak_bytes is None)
    mistake = None if unknown else name_mistake(exercise, outcomes, check, NAMING_S * exercise.patience / 3)
    plain_numbers = exercise.contracts == ("type",)
    fixed = plain_numbers or check in ("time limit", "shape") or first.case.memory_limit_bytes or first.case.again  # smaller ones would say less
    smallest = first if fixed else _shrink(exercise, first, fn)
    which = "The case" if fixed else "The smallest case found"
    paragraphs = [f'The check "{check}" failed. {which}: {_describe(exercise, smallest)}', smallest.problem[2]]
    if mistake:
        paragraphs.append(f"It behaves like this mistake ({mistake.slug}): {mistake.sentence}")
    if first.call.warned:
        paragraphs.append("While it ran, Python warned: " + "; ".join(first.call.warned[:3]) + ".")
    if first.call.printed.strip():
        paragraphs.append("It printed:\n\n" + _beginning(first.call.printed.strip()))
    paragraphs.append(f'Where to look: chapter {exercise.chapter}, and hint("{exercise.name}", 1).')
    return _verdict(exercise, state, "\n\n".join(paragraphs), outcomes, start, check, mistake)


def _name_of(fn):
    try:
        return fn.__name__
    except Exception:  # it has none, or it does not say
        return None


def _misfit(fn, exercise):
    """What is wrong with the function's parameters, or None."""
    try:
        signature = inspect.signature(fn)
    except Exception:  # a callable that has none: let the call itself tell
        return None
    for case in exercise.cases[:3]:  # with and without the optional arguments
        try:
            signature.bind(*case.make(**case.params))
        except TypeError:
            return f"It must take {inspect.signature(exercise.reference)}, but it takes {signature}."
    return None


def _is_stub(fn):
    """Whether the body is empty: only a docstring, pass, ... or return None."""
    if not inspect.isfunction(fn):
        return False
    steps = [step for step in dis.get_instructions(fn) if step.opname not in ("RESUME", "NOP")]
    return all(step.opname in ("LOAD_CONST", "RETURN_CONST", "RETURN_VALUE") and step.argval in (None, ...) for step in steps)


def _verdict(exercise, state, message, outcomes, start, failed=None, mistake=None):
    broken = {o.problem[0] for o in outcomes if o.problem} | {o.but_for_dtype for o in outcomes if o.but_for_dtype}
    tried, failing = {o.case.check for o in outcomes}, {o.case.check for o in outcomes if o.problem and o.but_for_dtype != ""}
    marks = []
    for check in exercise.checks:
        if check in broken:
            marks.append((check, "failed"))
        elif check in tried - failing or _kept(exercise, outcomes, check):
            marks.append((check, "passed"))
        else:  # not reached, or its cases failed by another check
            marks.append((check, "not run"))
    earned = sum(s == "passed" for _, s in marks) if tried - failing else 0  # no credit for the right shape of a wrong answer
    score = 1.0 if state == "passed" else round(earned / len(marks), 3)
    if broken & {case.check for case in exercise.cases if case.memory_limit_bytes}:  # right perhaps, but it is not flash attention
        score = min(score, MOST_WITH_ALL_SCORES)
    return Verdict(exercise.name, state, score, message, tuple(marks), failed, mistake and mistake.slug, time.perf_counter() - start)


def _kept(exercise, outcomes, contract):
    """Whether some result came as far as a contract and kept it: contracts are looked at in their order."""
    order = ("time limit", *exercise.contracts)
    if contract not in order:
        return False
    earlier = order[: order.index(contract)]
    return any(o.call.error is None and (o.problem is None or o.problem[0] not in earlier) for o in outcomes)


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


def _beginning(text, lines=8):
    """The first lines of what was printed, indented, with a last line that says if there was more."""
    kept = [line[:100] for line in text.splitlines()[:lines]]
    return indent("\n".join([*kept, *(["..."] if "\n".join(kept) != text else [])]), "  ")


def _sizes(case):
    """A case's sizes and dtype, in words."""
    field = {"n_q": "Nq", "n_k": "Nk", "d": "D", "d_v": "Dv", "batch": "B", "heads": "H", "kv_heads": "Hkv", "signs": "seed"}
    hidden = ("kind", "seed", "dtype", "strided", "layout", "spare", "lead")
    sizes = [f"{field.get(name, name) if 'd' in case.params else name} = {value}" for name, value in case.params.items() if name not in hidden and value is not None]
    return ", ".join([*sizes, *([case.params["dtype"]] if "dtype" in case.params else [])])


def _describe(exercise, outcome):
    args, kind = outcome.case.make(**outcome.case.params), outcome.case.params.get("kind")
    layout = outcome.case.params.get("layout")
    text = _sizes(outcome.case) + (f"; {KINDS.get(kind, kind)}" if kind else "") + (f"; {LAYOUTS[layout]}" if layout else "") + "."
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
