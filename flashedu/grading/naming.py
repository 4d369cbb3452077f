"""Which known mistake an answer behaves like."""
import re
import time

import numpy as np

from flashedu.grading.isolation import summary
from flashedu.grading.mistakes import GPU_MISTAKES, MISTAKES
from flashedu.grading.outcome import FREED, examine
from flashedu.grading.three_versions import ByChance, Range
from flashedu.machine import SramOverflow

MOST_CASES = 8  # a broken contract fails in all of them


def _error(outcome):
    """Type and text of an exception; of an overflow the type alone, since its text depends on the order of loads."""
    if isinstance(outcome.call.error, SramOverflow):
        return "SramOverflow"
    return summary(outcome.call.error)[:80] if outcome.call.error else ""


def _same(outcome, other):
    """Whether two answers behave alike on a case: the same kind of failure, the same values.

    Values are the same when they differ by what rounding may cause, or by little against how wrong they are.
    """
    if _error(outcome) != _error(other) or (outcome.problem or ("",))[0] != (other.problem or ("",))[0]:
        return False
    if outcome.values is None or other.values is None:
        return outcome.values is other.values and _wording(outcome) == _wording(other)
    if outcome.problem and (FREED in outcome.problem[2]) != (FREED in other.problem[2]):
        return False
    for (_, bound), value, reference in zip(other.expected, outcome.values, other.values):
        if not isinstance(value, np.ndarray) or not isinstance(reference, np.ndarray):
            return type(value) is type(reference)
        if value.shape != reference.shape or value.dtype != reference.dtype:
            return False
        if isinstance(bound, ByChance | Range):
            fits = [value.shape == bound.exact.shape and bound.ratio(x) <= 1 for x in (value, reference)]
            if fits[0] != fits[1]:
                return False
            if fits[0] or isinstance(bound, ByChance):
                continue
        right = bound.exact if bound.exact.shape == value.shape else 0
        if bound.exact.shape == value.shape and value.dtype.kind == "f":  # NaN in one, and in the other what a guard puts in its place
            lost = _lost(value) & _lost(reference) & (bound.errors(value) > 1) & (bound.errors(reference) > 1)
            value, reference = np.where(lost, 0, value), np.where(lost, 0, reference)
        with np.errstate(invalid="ignore"):
            wrong = np.where(np.isfinite(reference - right), np.abs(reference - right), 0).max()
        allowed = np.max(bound.bound) + 1e-3 * float(wrong)
        if not np.allclose(value, reference, rtol=0, atol=float(allowed), equal_nan=True):
            return False
    return True


def _lost(x):
    """Where nothing is left of a number: NaN, infinite, or what a guard makes of them."""
    return ~np.isfinite(x) | (x == 0) | (np.abs(x.astype(np.float64)) > 1e30)


def _wording(outcome):
    """What an answer did wrong that has no values: beside which tensor it wrote and on which side, say; without numbers and names of functions."""
    check, _, text = outcome.problem or ("", "", "")
    told = check in ("guard bands", "own kernel", "dtype", "type") or "never stored" in text
    return told and re.sub(r"\d+ elements?|torch's \w+|\(.*?\)", "", text)


def _failing(outcomes):
    return {outcome.problem[0] for outcome in outcomes if outcome.problem}


def _telling(outcomes, reported):
    """For answers in Triton, where every trial takes its time: the cheapest MOST_CASES of the reported check, and one of each other; failures first."""
    first = [o for o in outcomes if o.problem and o.problem[0] == reported]
    cheapest = {(o.problem is None, o.case.check): o for o in sorted(outcomes, key=lambda o: -o.call.seconds) if not any(o is other for other in first)}
    return [*sorted(first, key=lambda o: o.call.seconds)[:MOST_CASES], *(cheapest[key] for key in sorted(cheapest))]


def _candidates(exercise, reported):
    zoo = (GPU_MISTAKES if exercise.on_gpu else MISTAKES).get(exercise.name, ())
    return sorted(zoo, key=lambda mistake: mistake.caught_by != reported) if exercise.call else zoo


def name_mistake(exercise, outcomes, reported, seconds):
    """The mistake of the zoo that an answer behaves like, or None; the search ends after so many seconds.

    A candidate must agree with the answer on every case that fails by the reported check and on at least half of all that
    fail, and must fail no check that the answer passes, nor write outside of tensors where the answer does not; among several,
    the one that agrees on most cases is named, and of those the one that Python's warnings agree on most.
    """
    costly = {case.check for case in exercise.cases if case.memory_limit_bytes}
    ordered = sorted(_telling(outcomes, reported) if exercise.call else outcomes, key=lambda o: not (o.problem and o.problem[0] == reported))
    broken, wrong = _failing(outcomes), sum(bool(o.problem) for o in ordered)
    best, most, stop = None, (0, 0), time.thread_time() + seconds
    tile = next((o.call.tile for o in outcomes if o.call.tile), None)
    for mistake in _candidates(exercise, reported):
        if mistake.caught_by not in broken or (reported in costly and mistake.caught_by != reported):
            continue
        agreed = alike = warned = 0
        for outcome in ordered:
            if outcome.case.memory_limit_bytes and not outcome.problem:
                continue
            if time.thread_time() > stop:
                return best
            other = examine(exercise, outcome.case, mistake.with_tile(tile), seconds=exercise.patience)
            same = _same(outcome, other)
            if (outcome.problem and outcome.problem[0] == reported and not same) or not _failing([other]) <= broken:
                break
            if outcome.problem is None and reported == "guard bands" and reported in _failing([other]):
                break
            agreed += same
            alike += same and bool(outcome.problem)
            warned += same and outcome.call.warned == other.call.warned
        else:
            if (agreed, warned) > most and 2 * alike >= wrong:
                best, most = mistake, (agreed, warned)
            if exercise.call and agreed == len(ordered):
                break
    return best or _by_precision(exercise, outcomes, broken)


def _by_precision(exercise, outcomes, broken):
    """Only float64 inputs fail, and by no more than float32's rounding: values differ between programs and say nothing here."""
    wrong = [outcome for outcome in outcomes if outcome.problem]
    if broken != {"float64"} or any(outcome.ratio > 2.0**29 for outcome in wrong):
        return None
    zoo = {mistake.slug: mistake for mistake in MISTAKES.get(exercise.name, ())}
    return zoo["epsilon"] if "epsilon" in zoo and all(_is_scaled(outcome) for outcome in wrong) else zoo.get("float32-inside")


def _is_scaled(outcome):
    """Whether probabilities are right but for a factor for each row."""
    (_, bound), value = outcome.expected[0], outcome.values[0]
    return bound.ratio(value / value.sum(axis=-1, keepdims=True)) <= 1
