"""The zoo of the exercises in Triton: every mistake is rejected by its own check and called by its name."""
import importlib.util

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed here", allow_module_level=True)

import flashedu.kernels  # noqa: E402, F401  before anything imports Triton
from flashedu.grading import EXERCISES, isolation, judging, naming  # noqa: E402
from flashedu.grading.judging import judge  # noqa: E402
from flashedu.grading.mistakes import GPU_MISTAKES, MISTAKES  # noqa: E402
from flashedu.grading.tensors.place import here  # noqa: E402

NAMES = tuple(name for name, exercise in EXERCISES.items() if exercise.call)
ALL_MISTAKES = [pytest.param(name, n, id=f"{name}-{mistake.slug}-{n}") for name in NAMES for n, mistake in enumerate(MISTAKES[name])]


def all_verdicts(name):
    """The verdict on every mistake, as `judge` gives it, except that no (mistake, case) is run twice in this process."""
    memory, examine = {}, naming.examine

    def remembered(exercise, case, fn, seconds):
        key = id(fn), case.check, tuple(case.params.items())
        if key not in memory:
            memory[key] = examine(exercise, case, fn, seconds)
        return memory[key]

    judging.examine = naming.examine = remembered
    judging.SHRINK_S = 0.02
    return [judging._judge(mistake.function, EXERCISES[name]) for mistake in MISTAKES[name]]


@pytest.fixture(scope="module")
def verdicts():
    """Of each exercise, all verdicts, made in one child when the first is asked for."""
    known = {}

    def of(name):
        if name not in known:
            here()
            end, known[name] = isolation.in_child(all_verdicts, (name,), 600)
            assert end == "result", known[name]
        return known[name]

    return of


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name, n", ALL_MISTAKES)
def test_mistake_fails_by_its_own_check_and_is_named(verdicts, name, n):
    verdict, mistake = verdicts(name)[n], MISTAKES[name][n]
    assert verdict.state in ("wrong", "error")
    assert dict(verdict.checks)[mistake.caught_by] == "failed"
    assert verdict.mistake == mistake.slug
    assert mistake.sentence in verdict.message
    assert 0 <= verdict.score < 1
