"""The zoo of the exercises in Triton: every mistake is rejected by its own check and called by its name; every right answer passes."""
import importlib.util

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed here", allow_module_level=True)

from right_kernels import RIGHT  # isort: skip  first: before anything imports Triton

from flashedu.grading import EXERCISES, isolation, judging, naming, score
from flashedu.grading.cases import CASES
from flashedu.grading.hints import HINTS
from flashedu.grading.judging import judge
from flashedu.grading.mistakes import GPU_MISTAKES, MISTAKES
from flashedu.grading.tensors.place import here
from flashedu.grading.zoo import kill_matrix

NAMES = tuple(name for name, exercise in EXERCISES.items() if exercise.call)
ALL_MISTAKES = [pytest.param(name, n, id=f"{name}-{mistake.slug}-{n}") for name in NAMES for n, mistake in enumerate(MISTAKES[name])]
ALL_RIGHT = [pytest.param(name, fn, id=f"{name}-{label}") for name, answers in RIGHT.items() for label, fn in answers.items()]


def all_verdicts(name):
    """The verdict on every mistake, as `judge` gives it, but in less time: nothing is run twice, and only the cases of a
    mistake's own check and the first of every third other. `python -m flashedu zoo` runs all cases."""
    memory, examine = {}, naming.examine

    def remembered(exercise, case, fn, seconds):
        key = id(fn), case.check, tuple(case.params.items())
        if key not in memory:
            memory[key] = examine(exercise, case, fn, seconds)
        return memory[key]

    judging.examine = naming.examine = remembered
    judging.SHRINK_S = 0.02
    cases = CASES[name]
    first = {case.check: case for case in reversed(cases) if case.memory_limit_bytes is None and not case.again and case.check != "larger"}
    found = []
    for mistake in MISTAKES[name]:
        for_show = mistake.caught_by == "own kernel"  # a case that is run again shows it, too
        others = list(first.values())[:: 3 if mistake.caught_by in first else 1]  # what every case checks may show in any of them
        CASES[name] = tuple(case for case in cases if case.check == mistake.caught_by or case in others or (case.again and for_show))
        found.append(judging._judge(mistake.function, EXERCISES[name]))
    return found


@pytest.fixture(scope="module")
def verdicts():
    """Of each exercise, all verdicts, made in one child when the first is asked for."""
    known = {}

    def of(name):
        if name not in known:
            here()
            known[name] = isolation.in_child(all_verdicts, (name,), 600)
        end, result = known[name]
        assert end == "result", (end, result)
        return result

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


@pytest.mark.parametrize("name, fn", ALL_RIGHT)
def test_right_answer_is_not_rejected(name, fn):
    verdict = judge(fn, name)
    assert verdict.state == "passed", str(verdict)
    assert verdict.score == 1.0 and all(state == "passed" for _, state in verdict.checks)


@pytest.mark.parametrize("name", NAMES)
def test_the_zoo_is_large_enough(name):
    assert len({mistake.slug for mistake in MISTAKES[name]}) >= 15
    assert len(RIGHT[name]) >= 4
    assert len(HINTS[name]) == 3
    assert all(mistake.caught_by in EXERCISES[name].checks for mistake in MISTAKES[name])


@pytest.mark.parametrize("name", NAMES)
def test_reference_passes_and_stubs_are_not_attempted(name):
    assert judge(EXERCISES[name].reference, name).passed

    def raises(*args, **kwargs):
        raise NotImplementedError

    def docstring_only(*args):
        """Nothing yet."""

    for stub in (raises, docstring_only):
        verdict = judge(stub, name)
        assert verdict.state == "not attempted" and verdict.score == 0.0
        assert all(state == "not run" for _, state in verdict.checks)
    assert score(raises, name) == 0.0


def test_a_mistake_is_named_whatever_the_tiles_are():
    mistake = next(mistake for mistake in MISTAKES["flash_forward"] if mistake.slug == "no-rescale")
    verdict = judge(mistake.with_tile((64, 16)), "flash_forward")
    assert verdict.mistake == "no-rescale", str(verdict)


def test_mistakes_that_only_a_gpu_shows():
    """Where there is none they can be compiled, but not rejected; the kill matrix says so."""
    for name, zoo in GPU_MISTAKES.items():
        for mistake in zoo:
            verdict = judge(mistake.function, name)
            if here().gpu:
                assert dict(verdict.checks)[mistake.caught_by] == "failed" and verdict.mistake == mistake.slug
            else:
                assert verdict.passed and "neither TF32" in verdict.message


def test_kill_matrix_lists_what_only_a_gpu_shows(monkeypatch):
    monkeypatch.setitem(MISTAKES, "flash_forward", MISTAKES["flash_forward"][:1])
    lines = []
    assert kill_matrix(["flash_forward"], lines.append) == 0
    assert here().gpu or any(line.split()[0] == "tf32" and "GPU only" in line for line in lines if line.strip())
