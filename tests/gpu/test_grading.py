"""On a GPU: answers are judged in the interpreter first and then there, where a float32 product may turn out to be TF32."""
import importlib.util

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("there is no Triton on this system", allow_module_level=True)

from flashedu.grading import EXERCISES
from flashedu.grading.judging import judge
from flashedu.grading.mistakes import GPU_MISTAKES, MISTAKES
from flashedu.grading.tensors.place import here

pytestmark = pytest.mark.usefixtures("graded")
INTERPRETED = [("triton_softmax", "padded-with-0"), ("flash_forward", "causal-ignored"), ("flash_backward", "wrong-group")]


@pytest.fixture
def graded():
    """Skips, and says why, where nothing in Triton can be graded."""
    trouble = here().trouble
    if trouble:
        pytest.skip(trouble[2])


@pytest.mark.parametrize("seed", [None, "autumn"], ids=["public", "hidden"])
@pytest.mark.parametrize("name", ["triton_softmax", "flash_forward", "flash_backward"])
def test_copies_of_the_packages_kernels_pass(name, seed):
    verdict = judge(EXERCISES[name].reference, seed=seed)
    assert verdict.passed, verdict.message
    assert verdict.message.startswith("In the interpreter: ") and "On the GPU: " in verdict.message
    assert all(state == "passed" for _, state in verdict.checks), verdict.checks


@pytest.mark.parametrize("mistake", [mistake for mistakes in GPU_MISTAKES.values() for mistake in mistakes], ids=lambda mistake: f"{mistake.exercise}-{mistake.slug}")
def test_mistakes_that_only_a_gpu_shows(mistake):
    verdict = judge(mistake.function, mistake.exercise)
    assert verdict.state == "wrong" and dict(verdict.checks)[mistake.caught_by] == "failed", verdict.message
    assert verdict.mistake == mistake.slug, verdict.message


@pytest.mark.parametrize("exercise, slug", INTERPRETED)
def test_other_mistakes_are_rejected_too(exercise, slug):
    mistake = next(mistake for mistake in MISTAKES[exercise] if mistake.slug == slug)
    verdict = judge(mistake.function, exercise)
    assert verdict.state == "wrong" and dict(verdict.checks)[mistake.caught_by] == "failed", verdict.message
