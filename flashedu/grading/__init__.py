"""Checking a learner's answer: see `check`, `require`, `score`, `hint`, `progress`."""
import html

from flashedu.arguments import short
from flashedu.grading.exercises import EXERCISES
from flashedu.grading.hints import HINTS
from flashedu.grading.judging import judge
from flashedu.grading.progress import progress, record
from flashedu.grading.verdict import Verdict, show

__all__ = ["EXERCISES", "Verdict", "check", "hint", "progress", "require", "score"]


def check(fn, exercise=None):
    """Check an answer, show a card (in a notebook) or text (elsewhere), and return the Verdict.

    fn: the learner's function; the exercise is found by its name, or given as `exercise`. Nothing that fn does is
    raised here: exceptions, endless loops and wrong types become part of the verdict. Only an interrupt passes through.
    Raises RuntimeError when it is called inside the answer that it checks.
    """
    verdict = judge(fn, exercise)
    record(verdict)
    verdict.show()
    return verdict


def require(fn, exercise=None):
    """Raise AssertionError with the verdict's text unless fn passes; returns None.

    Raises RuntimeError inside an answer that is being checked.
    """
    verdict = judge(fn, exercise)
    if not verdict.passed:
        raise AssertionError(str(verdict))


def score(fn, exercise=None):
    """The share of an exercise's checks that fn passes, a built-in float in [0, 1]; shows nothing.

    Raises RuntimeError inside an answer that is being checked, and nothing that fn does.
    """
    return float(judge(fn, exercise).score)


def hint(exercise, level=1):
    """Show hint 1 (the idea), 2 (the plan) or 3 (almost the code) for an exercise, given by name or by function.

    Raises ValueError, with what there is, for another exercise or level.
    """
    name = getattr(exercise, "__name__", exercise)
    if not isinstance(name, str) or name not in HINTS:
        raise ValueError(f"exercise must be one of {', '.join(HINTS)}, but it is {short(name)}.")
    if type(level) is not int or level not in (1, 2, 3):
        raise ValueError(f"level must be 1, 2 or 3, but it is {short(level)}.")
    title, text = f"{name}, hint {level} of 3", HINTS[name][level - 1]
    show(f"{title}: {text}", f'<p style="max-width:60em"><b>{title}.</b> {html.escape(text)}</p>')
