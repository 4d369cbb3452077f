"""Every mistake is rejected by its own check and called by its name; every right answer passes; every stub is a stub."""
import functools
import importlib.util
import signal
import subprocess
import sys

import pytest
import right_answers_chapter_5  # noqa: F401, adds to RIGHT
import right_answers_chapter_6  # noqa: F401
import right_answers_chapters_7_and_8  # noqa: F401
from right_answers import RIGHT

from flashedu.grading import EXERCISES, inputs, score
from flashedu.grading.hints import HINTS
from flashedu.grading.judging import judge
from flashedu.grading.mistakes import MISTAKES
from flashedu.grading.zoo import kill_matrix

NAMES = [name for name, exercise in EXERCISES.items() if exercise.call is None]  # those in Triton: test_triton_zoo.py
ALL_MISTAKES = [pytest.param(mistake, id=f"{name}-{mistake.slug}-{n}") for name in NAMES for n, mistake in enumerate(MISTAKES[name])]
ALL_RIGHT = [pytest.param(name, fn, id=f"{name}-{label}") for name, answers in RIGHT.items() for label, fn in answers.items()]


@pytest.mark.parametrize("mistake", ALL_MISTAKES)
def test_mistake_fails_by_its_own_check_and_is_named(mistake):
    verdict = judge(mistake.function, mistake.exercise)
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
    slugs = [mistake.slug for mistake in MISTAKES[name]]
    assert len(set(slugs)) >= 7
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

    def ellipsis_only(*args): ...

    for stub in (raises, docstring_only, ellipsis_only):
        verdict = judge(stub, name)
        assert verdict.state == "not attempted" and verdict.score == 0.0
        assert all(state == "not run" for _, state in verdict.checks)
        assert score(stub, name) == 0.0


def test_kill_matrix_prints_every_mistake_and_counts_gaps(monkeypatch):
    lines = []
    assert kill_matrix(["merge_states"], lines.append) == 0
    text = "\n".join(lines)
    assert all(mistake.slug in text for mistake in MISTAKES["merge_states"]) and "no gap" in text
    harmless = type(MISTAKES["merge_states"][0])("merge_states", "harmless", "one row", "Nothing is wrong.", ())
    monkeypatch.setitem(MISTAKES, "merge_states", (harmless,))
    assert kill_matrix(["merge_states"], lines.append) == 1
    assert "gaps: merge_states/harmless" in lines[-1]


def test_without_triton_its_exercises_say_why_they_are_left_out(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in ("torch", "triton") else find_spec(name, *rest))
    lines = []
    assert kill_matrix(["triton_softmax", "naive_traffic"], lines.append) == 0
    assert "because PyTorch and Triton are not installed here" in lines[0] and "On Linux they come with the course." in lines[0]
    assert lines[-1] == f"\n{len(MISTAKES['naive_traffic'])} mistakes, exercises: 1; no gap"


@pytest.mark.skipif(sys.platform != "linux", reason="the signal of Ctrl-C is Linux's")
def test_an_interrupted_command_says_so_in_a_word():
    heard = functools.partial(signal.signal, signal.SIGINT, signal.default_int_handler)  # also where the tests themselves run in the background
    command = [sys.executable, "-u", "-m", "flashedu", "zoo", "merge_states", *EXERCISES]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
    process.stdout.readline(), process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == "Interrupted.\n" and process.returncode == 1


def test_unknown_exercise_is_refused():
    with pytest.raises(SystemExit, match="no exercise called 'softmax'"):
        kill_matrix(["softmax"])


def test_very_low_logits_are_what_the_words_say():
    """Where they are only a little below 0, a large negative number would do in place of -inf."""
    (x,) = inputs.rows_case("low", 2, 3)
    (m, *_), _ = inputs.states_case("low", 2, 3)
    q, k, _ = inputs.qkv("low", 2, 3, 4)
    assert all(abs(logits + 20000).max() < 20 for logits in (x, m, q @ k.T / 2))
