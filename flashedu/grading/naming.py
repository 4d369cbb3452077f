"""Which known mistake an answer behaves like."""
import numpy as np

from flashedu.grading.mistakes import MISTAKES
from flashedu.grading.outcome import examine


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
