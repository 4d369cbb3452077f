"""Chapters 7 and 8: exercises that return one number, and parts that are merged without all the scores."""
import inspect
from fractions import Fraction

import numpy as np
import pytest
import right_answers_chapters_7_and_8  # noqa: F401, adds to RIGHT
from right_answers import RIGHT

from flashedu import cost
from flashedu.grading import isolation
from flashedu.grading.cases import CASES
from flashedu.grading.cases.chapter_8 import SPLIT_MEMORY_LIMIT_BYTES
from flashedu.grading.judging import judge
from flashedu.reference import split_kv_attention

NUMBERS = {"attention_intensity": cost.attention_intensity, "attention_flop_share": cost.attention_flop_share}
FIRST = {"attention_intensity": 16 / 3, "attention_flop_share": 0.1}  # of their first cases


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "result, check, words",
    [
        (lambda x: None, "type", "result must be a number, but it is None. Is a return missing?"),
        (lambda x: (x, x), "type", "result must be a number, but it is a tuple of length 2."),
        (lambda x: str(x), "type", "result must be a number, but it is an object of type str."),
        (lambda x: x > 0, "type", "result must be a number, but it is an object of type bool."),
        (lambda x: Fraction(x), "type", "result must be a number, but it is an object of type fractions.Fraction."),
        (lambda x: np.full(2, x), "shape", "result must be one number, but it has shape (2,)."),
        (lambda x: x * float("nan"), "", "result is nan; right is "),
        (lambda x: x * float("inf"), "", "result is inf; right is "),
        (lambda x: 7, "", "result is 7; right is "),
    ],
)
def test_odd_results_of_an_exercise_that_returns_a_number(result, check, words, name):
    def answer(*numbers):
        return result(NUMBERS[name](*numbers))

    verdict = judge(answer, name)
    assert verdict.state == "wrong" and verdict.failed == (check or "one head")
    assert words in verdict.message
    if words.endswith("right is "):
        assert f"right is {FIRST[name]:.10g}." in verdict.message


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_may_be_off_by_some_roundings_and_no_more(name):
    for off, passes in ((2.0**-50, True), (-(2.0**-50), True), (2.0**-46, False), (-1e-9, False)):
        verdict = judge(lambda *numbers, off=off: NUMBERS[name](*numbers) * (1 + off), name)
        assert verdict.passed == passes and verdict.mistake is None
    verdict = judge(lambda *numbers: np.float32(NUMBERS[name](*numbers)), name)
    assert verdict.state == "wrong" and f"right is {FIRST[name]:.10g}." in verdict.message  # more digits than float32 has


def test_any_kind_of_number_will_do():
    for kind in (float, np.float64, np.longdouble, np.array):
        assert judge(lambda *numbers, kind=kind: kind(cost.attention_intensity(*numbers)), "attention_intensity").passed
    verdict = judge(lambda *numbers: float(cost.kv_cache_bytes(*numbers)), "kv_cache_bytes")
    assert verdict.failed == "type" and "bytes must be a whole number, but it is 8.0, a float: use // or int(...)." in verdict.message
    assert judge(lambda *numbers: np.int64(cost.kv_cache_bytes(*numbers)), "kv_cache_bytes").passed


def test_causal_halving_is_named_whether_pairs_or_halves_were_taken():
    halved = judge(lambda *numbers: cost.attention_intensity(*numbers) / 2, "attention_intensity")
    assert halved.mistake == "half-the-flops" and "no mask makes them fewer" in halved.message


def test_the_memory_limit_lies_between_parts_and_all_scores():
    (case,) = (case for case in CASES["split_kv_attention"] if case.memory_limit_bytes)

    def peak_bytes(fn):
        return isolation.call(fn, case.make(**case.params), 10, trace_memory=True).peak_bytes

    for name, answer in {**RIGHT["split_kv_attention"], "reference": inspect.unwrap(split_kv_attention)}.items():
        assert peak_bytes(answer) < 0.8 * SPLIT_MEMORY_LIMIT_BYTES, name
    assert peak_bytes(lambda q, k, v, splits: split_kv_attention(q, k, v, 1)) > 4 * SPLIT_MEMORY_LIMIT_BYTES


@pytest.mark.parametrize("splits", [2, 3])
def test_a_fixed_number_of_parts_is_told_to_hold_too_much(splits):
    verdict = judge(lambda q, k, v, parts: split_kv_attention(q, k, v, splits), "split_kv_attention")
    assert verdict.failed == "memory" and "Something grows with Nq x Nk" in verdict.message


@pytest.mark.parametrize(
    "result, check, words",
    [
        (lambda o, lse: o, "type", "It must return (o, lse), but it returned an object of type numpy.ndarray."),
        (lambda o, lse: (o, lse, lse), "type", "a tuple of length 3"),
        (lambda o, lse: (lse, o), "shape", "o must have shape (1, 1), but it has (1,)."),
        (lambda o, lse: (o, lse[:, None]), "shape", "lse must have shape (1,), but it has (1, 1)."),
        (lambda o, lse: (o, float(lse[0])), "type", "lse must be a NumPy array"),
        (lambda o, lse: (o, lse.astype(np.float64) * 1), "dtype", "lse must have the inputs' dtype, float32"),
    ],
)
def test_odd_results_of_split_kv_attention(result, check, words):
    verdict = judge(lambda *args: result(*split_kv_attention(*args)), "split_kv_attention")
    assert (verdict.state, verdict.failed) == ("wrong", check) and words in verdict.message
