"""Hidden cases follow from a seed: other numbers and sizes, no right answer rejected, no mistake let through."""
import importlib.util
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import right_answers_chapter_5  # noqa: F401, adds to RIGHT
import right_answers_chapter_6  # noqa: F401
import right_answers_chapters_7_and_8  # noqa: F401
from right_answers import RIGHT

from flashedu.grading import EXERCISES
from flashedu.grading.cases import CASES, GPU_CASES
from flashedu.grading.cases.hidden import FURTHER, _settled, hidden_cases
from flashedu.grading.inputs import attention_case, numbers_case
from flashedu.grading.judging import judge
from flashedu.grading.mistakes import MISTAKES
from flashedu.grading.outcome import examine

SEEDS = ("autumn", "spring", "a long sentence, with a comma", "0", "7001")
NUMPY = [name for name, exercise in EXERCISES.items() if exercise.call is None]
NUMBERS = [name for name in NUMPY if CASES[name][0].make is numbers_case]
TRITON = [name for name in EXERCISES if name not in NUMPY]
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed here")


def text(name, seed):
    return "\n".join(f"{case.check} {case.params}" for case in hidden_cases(name, seed))


def test_a_seed_gives_the_same_cases_in_another_process():
    show = "from flashedu.grading.cases.hidden import hidden_cases; print(*(f'{c.check} {c.params}' for c in hidden_cases('{}', 'autumn')), sep='\\n')"
    for name in ("online_attention", "block_sizes"):
        other = subprocess.run([sys.executable, "-c", show.replace("{}", name, 1)], capture_output=True, text=True, check=True).stdout
        assert other.strip() == text(name, "autumn")


@pytest.mark.parametrize("name", EXERCISES)
def test_cases_are_other_ones_of_the_same_checks(name):
    exercise = EXERCISES[name]
    for seed in SEEDS:
        hidden = hidden_cases(name, seed)
        assert [case.check for case in hidden[: len(CASES[name])]] == [case.check for case in CASES[name]]
        assert not [case for case in hidden if case in CASES[name]]
        assert replace(exercise, seed=seed).checks == exercise.checks
        assert len(hidden) == len(CASES[name]) + FURTHER * sum(case.check == "larger" or (name, case.check) == ("triton_softmax", "wide rows") for case in CASES[name])
    assert text(name, SEEDS[0]) != text(name, SEEDS[1])
    for case in GPU_CASES.get(name, ()):
        assert case not in hidden_cases(name, "autumn", True)


@pytest.mark.parametrize("name", [name for name in NUMPY if name not in NUMBERS])
def test_further_cases_have_other_sizes(name):
    def sizes(cases):
        return {tuple((key, n) for key, n in case.params.items() if type(n) is int and key not in ("seed", "signs")) for case in cases}

    drawn = [sizes(hidden_cases(name, seed)) - sizes(CASES[name]) for seed in SEEDS]
    assert all(drawn) and len(set.union(*drawn)) > len(SEEDS)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("seed", SEEDS)
def test_numbers_stay_within_the_contract(name, seed):
    for case, public in zip(hidden_cases(name, seed), CASES[name], strict=True):
        numbers, given = case.params, public.params
        case.make(**numbers)  # raises if heads is no multiple of kv_heads
        assert [n == 1 for n in numbers.values()] == [n == 1 for n in given.values()]
        if "heads" in numbers:
            assert (numbers["heads"] == numbers["kv_heads"]) == (given["heads"] == given["kv_heads"])
        if name == "block_sizes":
            elements, odd = divmod(numbers["sram_bytes"], numbers["itemsize"])
            assert odd == given["sram_bytes"] % given["itemsize"]
            if "KB" in case.check:
                assert numbers["sram_bytes"] == given["sram_bytes"] and numbers["itemsize"] == given["itemsize"]
            else:
                assert (elements % (4 * numbers["head_dim"]) == 0) == (given["sram_bytes"] // given["itemsize"] % (4 * given["head_dim"]) == 0)


@pytest.mark.parametrize("name, label", [(name, label) for name in NUMPY for label in RIGHT[name]])
def test_a_right_answer_is_not_rejected(name, label):
    verdict = judge(RIGHT[name][label], name, seed=f"of {label}")
    assert verdict.state == "passed" and verdict.score == 1.0, str(verdict)


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_mistake_is_caught(name, seed):
    exercise = replace(EXERCISES[name], seed=seed)
    for mistake in MISTAKES[name]:
        likely = sorted(exercise.cases, key=lambda case: case.check != mistake.caught_by)
        assert any(examine(exercise, case, mistake.function, 5).problem for case in likely), mistake.slug


@needs_triton
@pytest.mark.parametrize("name", TRITON)
def test_kernels_are_judged_on_hidden_cases(name):
    verdict = judge(EXERCISES[name].reference, name, seed="autumn")
    assert verdict.state == "passed", str(verdict)
    for number, mistake in enumerate(MISTAKES[name][:: len(MISTAKES[name]) // 3][:3]):
        verdict = judge(mistake.function, name, seed=SEEDS[number])
        assert verdict.state in ("wrong", "error") and verdict.score < 1 and "failed" in dict(verdict.checks).values(), (mistake.slug, verdict)


@pytest.mark.parametrize("name", NUMBERS)
def test_a_table_of_the_public_cases_passes_those_only(name):
    table = {tuple(case.params.values()): EXERCISES[name].reference(**case.params) for case in CASES[name]}

    def looked_up(*numbers):
        return table.get(numbers, next(iter(table.values())))

    assert judge(looked_up, name).passed
    verdict = judge(looked_up, name, seed="autumn")
    assert verdict.state == "wrong" and verdict.score == 0


def test_the_seed_is_a_text_or_a_number_and_no_message_shows_it():
    def of_zeros(q, k, v, block_size):
        return np.zeros((len(q), v.shape[1]), q.dtype)

    verdicts = [judge(of_zeros, "online_attention", seed=seed) for seed in (982451653, "982451653")]
    assert verdicts[0].message == verdicts[1].message != judge(of_zeros, "online_attention").message
    assert "982451653" not in str(verdicts[0])
    assert not [case for case in hidden_cases("online_attention", "982451653") if str(case.params["seed"]) in str(verdicts[0])]


def test_no_rise_is_so_near_the_threshold_that_rounding_decides():
    near = next(case for case in CASES["lazy_attention"] if case.params["kind"] == "creeping")
    q, k, _ = attention_case(**{**near.params, "dtype": "float64", "threshold": None})[:3]
    s = q @ k.T * q.shape[1] ** -0.5
    on_it = replace(near, params={**near.params, "threshold": float(s[0, 3] - s[0, 0])})
    assert not _settled(on_it)
    assert all(_settled(case) for seed in SEEDS for case in hidden_cases("lazy_attention", seed))
