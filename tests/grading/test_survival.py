"""A check survives whatever a learner writes, and says what happened."""
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
import warnings

import numpy as np
import pytest
from right_answers import by_merging

import flashedu
from flashedu import check, require, score
from flashedu.grading import isolation, judging
from flashedu.grading.judging import judge
from flashedu.reference import naive_attention, online_attention, stable_softmax


def softmax(x):
    return stable_softmax(x)


@pytest.fixture
def short_limit(monkeypatch):
    monkeypatch.setattr(judging, "TIME_LIMIT_S", 0.5)


@pytest.mark.parametrize("thread", [False, True], ids=["main thread", "other thread"])
def test_endless_loop(short_limit, thread):
    def forever(x):
        while True:
            pass

    verdicts = []
    start = time.perf_counter()
    if thread:
        worker = threading.Thread(target=lambda: verdicts.append(judge(forever, "stable_softmax")))
        worker.start()
        worker.join(timeout=20)
    else:
        verdicts.append(judge(forever, "stable_softmax"))
    assert verdicts[0].state == "wrong" and verdicts[0].failed == "time limit"
    assert "a loop never ends" in verdicts[0].message
    assert time.perf_counter() - start < 10  # it ended at all; not a timing


def test_endless_loop_that_swallows_exceptions(short_limit):
    def stubborn(x):
        while True:
            with contextlib.suppress(Exception):
                sum(range(1000))

    assert judge(stubborn, "stable_softmax").failed == "time limit"


def catches_everything(x):
    while True:
        try:
            for _ in range(10_000):
                pass
        except:  # noqa: E722
            pass


def sleeps_and_catches(x):
    while True:
        try:
            with contextlib.suppress(BaseException):
                time.sleep(1)
        except BaseException:
            pass


@pytest.mark.skipif(sys.platform != "linux", reason="only a child process can be stopped against its will")
@pytest.mark.parametrize("fn", [catches_everything, sleeps_and_catches])
def test_bare_except_does_not_help(short_limit, monkeypatch, fn):
    monkeypatch.setattr(judging, "GRACE_S", 0.5)
    verdict = judge(fn, "stable_softmax")
    assert verdict.failed == "time limit" and "had to be stopped" in verdict.message
    assert judge(softmax, "stable_softmax").passed  # no alarm is left over


@pytest.mark.skipif(sys.platform != "linux", reason="only a child process may die")
def test_ending_the_process_is_told():
    for kill, words in ((lambda: os._exit(3), "exit status 3"), (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL")):
        verdict = judge(lambda x, kill=kill: kill(), "stable_softmax")
        assert verdict.state == "error" and words in verdict.message


@pytest.mark.skipif(sys.platform != "linux", reason="only a child process keeps its damage to itself")
def test_damage_stays_in_the_child():
    def vandal(x):
        np.exp = None
        raise ValueError

    judge(vandal, "stable_softmax")
    assert judge(softmax, "stable_softmax").passed and np.exp(0) == 1


def test_sleep_is_interrupted(short_limit):
    assert judge(lambda x: time.sleep(1000), "stable_softmax").failed == "time limit"


def test_alarm_of_somebody_else_survives():
    if not hasattr(signal, "setitimer"):
        pytest.skip("no alarm signal on this system")
    before, handler = signal.getitimer(signal.ITIMER_REAL), signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 1000)
    try:
        assert judge(softmax, "stable_softmax").passed
        assert 900 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)
        signal.signal(signal.SIGALRM, handler)


def test_exception_shows_only_the_learners_frames():
    def helper(x):
        return x.no_such_attribute

    def broken(x):
        return helper(x) + 1

    verdict = judge(broken, "stable_softmax")
    assert verdict.state == "error" and verdict.score == 0
    assert "AttributeError" in verdict.message and "no_such_attribute" in verdict.message
    assert "in broken" in verdict.message and "in helper" in verdict.message
    assert "isolation" not in verdict.message and "flashedu" not in verdict.message and __file__ not in verdict.message


@pytest.mark.parametrize("error", [SystemExit(3), RecursionError("deep"), MemoryError(), GeneratorExit(), BaseException("odd")])
def test_any_exception_is_a_verdict(error):
    def raises(x):
        raise error

    verdict = judge(raises, "stable_softmax")
    assert verdict.state == "error" and type(error).__name__ in verdict.message


def test_real_recursion():
    def endless(x):
        return endless(x)

    verdict = judge(endless, "stable_softmax")
    assert verdict.state == "error" and "RecursionError" in verdict.message and len(verdict.message) < 2000


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the check runs in the process that is interrupted")
def test_interrupt_passes_through(capfd):
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        interrupt(capfd)
    finally:
        signal.signal(signal.SIGINT, handler)


IN_A_FORK = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from flashedu.grading.judging import judge
from flashedu.reference import stable_softmax
pressed = []
os.register_at_fork(before=lambda: pressed or pressed.append(os.kill(os.getpid(), signal.SIGINT)))
try:
    judge(stable_softmax, "stable_softmax")
except KeyboardInterrupt:
    print("heard", len(pressed))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
def test_interrupt_in_the_middle_of_a_fork_is_not_lost():
    """Python throws away what is raised in its hooks around a fork."""
    run = subprocess.run([sys.executable, "-c", IN_A_FORK], capture_output=True, text=True, timeout=100)
    assert (run.stdout, run.stderr) == ("heard 1\n", "")


def interrupt(capfd):
    def pressed_stop(x):
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(5)

    with pytest.raises(KeyboardInterrupt):
        judge(pressed_stop, "stable_softmax")

    def raises_it(x):
        raise KeyboardInterrupt

    verdict = judge(raises_it, "stable_softmax")
    assert verdict.state == "error" and "KeyboardInterrupt" in verdict.message
    assert capfd.readouterr() == ("", "")


def test_exception_without_a_text():
    class Mute(Exception):
        def __str__(self):
            raise ValueError

    def raises(x):
        raise Mute

    verdict = judge(raises, "stable_softmax")
    assert verdict.state == "error" and "Mute" in verdict.message


def test_prints_and_warnings_are_caught(capsys):
    def noisy(x):
        print("row", "x" * 100_000)
        sys.stderr.write("to stderr")
        warnings.warn("be careful", stacklevel=1)
        return x / 0 * 0

    value = score(noisy, "stable_softmax")
    assert capsys.readouterr() == ("", "") and type(value) is float and value == 0.0
    message = judge(noisy, "stable_softmax").message
    assert "It printed:" in message and "row x" in message and "be careful" in message and "divide by zero" in message
    assert len(message) < 2000


def test_a_right_answer_that_prints_passes(capsys):
    def chatty(x):
        print("hello")
        return softmax(x)

    assert score(chatty, "stable_softmax") == 1.0
    assert capsys.readouterr() == ("", "")


def test_settings_of_the_session_are_restored():
    def careless(x):
        np.seterr(all="raise")
        warnings.simplefilter("error")
        return softmax(x)

    before, filters = np.geterr(), list(warnings.filters)
    judge(careless, "stable_softmax")
    assert np.geterr() == before and warnings.filters == filters and sys.stdout is not None


def test_mutated_input_is_told():
    def in_place(x):
        result = softmax(x)
        x[:] = 0
        return result

    verdict = judge(in_place, "stable_softmax")
    assert verdict.state == "wrong" and verdict.failed == "inputs unchanged" and "became 0" in verdict.message


@pytest.mark.parametrize(
    "result, check_name, words",
    [
        (lambda x: None, "type", "it is None. Is a return missing?"),
        (lambda x: x.tolist(), "type", "list"),
        (lambda x: "text", "type", "of type str"),
        (lambda x: (softmax(x), 1), "type", "tuple of length 2"),
        (lambda x: (row for row in x), "type", "generator"),
        (lambda x: softmax(x)[..., None], "shape", "must have shape"),
        (lambda x: softmax(x).astype(np.float16), "dtype", "float32"),
        (lambda x: softmax(x).astype(complex), "dtype", "complex128"),
        (lambda x: softmax(x).astype(object), "dtype", "object"),
        (lambda x: np.full_like(x, np.nan), "one element", "is nan"),
        (lambda x: np.full_like(x, np.inf), "one element", "infinite"),
    ],
)
def test_wrong_results_are_described(result, check_name, words):
    def wrong(x):
        return result(x)

    verdict = judge(wrong, "stable_softmax")
    assert (verdict.state, verdict.failed) == ("wrong", check_name) and words in verdict.message


def test_torch_tensor_is_the_wrong_type():
    torch = pytest.importorskip("torch")
    verdict = judge(lambda x: torch.softmax(torch.tensor(x), -1), "stable_softmax")
    assert verdict.failed in ("type", "dtype") and "torch.Tensor" in verdict.message


def test_right_but_materialised_earns_at_most_half():
    def whole(q, k, v, block_size):
        return online_attention(q, k, v, len(k))

    verdict = judge(whole, "online_attention")
    assert verdict.failed == "memory" and "The result is right" in verdict.message and verdict.mistake == "materialises"
    assert verdict.score == 0.5 and [check for check, state in verdict.checks if state != "passed"] == ["memory"]


def test_hard_coded_visible_case():
    seen = {}

    def remembers(x):
        rng = np.random.default_rng(0)
        for shape in ((2, 3), (3, 4), (4, 4)):
            visible = rng.standard_normal(shape).astype(np.float32)
            seen[visible.tobytes()] = stable_softmax(visible)
        return seen.get(x.tobytes(), np.zeros_like(x))

    verdict = judge(remembers, "stable_softmax")
    assert verdict.state == "wrong" and verdict.score == 0.0


def test_wrong_signature():
    verdict = judge(lambda q: q, "online_attention")
    assert verdict.state == "error" and "(q, k, v, block_size)" in verdict.message


def test_unknown_names_and_non_functions():
    def my_attention(q, k, v):
        return q @ k.T @ v

    for fn, words in ((my_attention, "no exercise called 'my_attention'"), (42, "42 is not a function")):
        verdict = judge(fn)
        assert verdict.state == "error" and words in verdict.message and "online_attention" in verdict.message


def test_contracts_behind_a_broken_one_are_not_called_kept():
    checks = dict(judge(lambda x: x.tolist(), "stable_softmax").checks)
    assert checks["type"] == "failed" and checks["shape"] == checks["dtype"] == "not run"
    checks = dict(judge(lambda x: softmax(x)[..., None], "stable_softmax").checks)
    assert checks["type"] == "passed" and checks["shape"] == "failed" and checks["dtype"] == "not run"


def test_missing_default_is_told():
    message = judge(lambda q, k, v, causal: q, "naive_attention").message
    assert "It must take (q, k, v, causal=False), but it takes (q, k, v, causal)." in message


def test_methods_partials_and_callables_work():
    import functools

    class Softmax:
        def __call__(self, x):
            return softmax(x)

    assert judge(Softmax(), "stable_softmax").passed
    assert judge(functools.partial(softmax), "stable_softmax").passed
    assert judge(Softmax().__call__, "stable_softmax").passed


def test_check_prints_text_and_returns_the_verdict(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHEDU_PROGRESS", str(tmp_path / "progress.json"))
    verdict = check(stable_softmax)
    out = capsys.readouterr().out
    assert verdict.passed and "stable_softmax: passed" in out and "Exact:" in out


def test_require_raises_with_the_message():
    assert require(stable_softmax) is None
    with pytest.raises(AssertionError, match="large logits"):
        require(lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True), "stable_softmax")
    with pytest.raises(AssertionError, match="not attempted"):
        require(lambda x: None, "stable_softmax")


def test_smallest_case_is_small_and_shown():
    def transposed(q, k, v, causal=False):
        s = q @ k.T * q.shape[1] ** -0.5
        p = np.exp(s - s.max(axis=0))
        return p / p.sum(axis=0) @ v

    message = judge(transposed, "naive_attention").message
    assert "Nq = 1, Nk = 2, D = 1" in message and "q = [[" in message and "o[0, 0] is" in message


def test_verdict_html_escapes_the_learners_text():
    def markup(x):
        raise ValueError("<script>alert(1)</script>")

    html = judge(markup, "stable_softmax")._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html


def test_check_inside_the_answer():
    def stable_softmax(x):
        check(stable_softmax)
        return softmax(x)

    verdict = judge(stable_softmax)
    assert verdict.state == "error" and "take it out of the function's body" in verdict.message


def test_not_implemented_in_one_branch_is_an_error():
    def half(q, k, v, causal=False):
        if causal:
            raise NotImplementedError
        return naive_attention(q, k, v)

    verdict = judge(half, "naive_attention")
    assert (verdict.state, verdict.failed) == ("error", "causal") and "NotImplementedError" in verdict.message


def test_reshaping_the_input_in_place():
    def reshapes(x):
        result = softmax(x)
        x.shape = (-1,)
        return result

    verdict = judge(reshapes, "stable_softmax")
    assert verdict.failed == "inputs unchanged" and "changed the shape" in verdict.message


class Obstinate(np.ndarray):
    @property
    def shape(self):
        raise ValueError("no shape")


@pytest.mark.parametrize(
    "result",
    [
        lambda x: x.view(Obstinate),
        lambda x: np.ma.masked_array(x),
        lambda x: type("Odd", (), {"__repr__": lambda self: 1 / 0})(),
        lambda x: [x, x],
        lambda x: 10**5000,
    ],
)
def test_odd_results_never_raise(result):
    verdict = judge(lambda x: result(x), "stable_softmax")
    assert verdict.state == "wrong" and verdict.failed == "type"


def test_async_functions_are_described(capsys):
    async def later(x):
        return x

    verdict = judge(later, "stable_softmax")
    assert verdict.failed == "type" and "coroutine" in verdict.message and capsys.readouterr().err == ""


def test_switching_tracemalloc_off_is_told():
    def hides(q, k, v, block_size):
        tracemalloc.start()
        result = online_attention(q, k, v, len(k))
        tracemalloc.stop()
        return result

    verdict = judge(hides, "online_attention")
    assert verdict.failed == "memory" and "could not be measured" in verdict.message


def test_copies_in_a_wider_type_are_no_score_matrix():
    def wide(q, k, v, block_size):
        q, k, v = (x.astype(np.longdouble) for x in (q, k, v))
        return by_merging(q, k, v, block_size).astype(np.float32) if len(k) > 60 else online_attention(*_narrow(q, k, v), block_size)

    def _narrow(*arrays):
        return [x.astype(np.float32) for x in arrays]

    checks = dict(judge(wide, "online_attention").checks)
    assert checks["memory"] == "passed"


@pytest.mark.parametrize(
    "exercise, fn, slug",
    [
        ("stable_softmax", lambda x: np.zeros_like(x), None),
        ("stable_softmax", lambda x: np.nan_to_num(softmax(x.astype(np.float32))).astype(x.dtype), "float32-inside"),
        ("stable_softmax", lambda x: np.exp2(x - x.max(-1, keepdims=True)), None),
        ("naive_traffic", lambda n, d, h, kv, b: (2 * (h + kv) * n * d * b, 4 * h * n * n), "elements-for-bytes"),
        ("naive_traffic", lambda n, d, h, kv, b: (2 * (h + kv) * n * d * b, 2 * h * n * n * b), "stored-but-not-read"),
    ],
)
def test_names_are_true(exercise, fn, slug):
    assert judge(fn, exercise).mistake == slug


@pytest.mark.parametrize(
    "wrong, advice",
    [
        (lambda m, l, scores: (max(scores, 0), l), "wants one True or False"),
        (lambda m, l, scores: (np.max(m, scores.max(axis=1)), l), "np.max(a, b) takes b for the axis"),
        (lambda m, l, scores: (m, scores[:, :0].max(axis=1)), "takes the maximum of nothing"),
        (lambda m, l, scores: (m, scores @ scores), "as many columns in A as there are rows in B"),
    ],
)
def test_an_exception_that_says_little_is_explained(wrong, advice):
    verdict = judge(wrong, "update_normalizer")
    assert verdict.state == "error" and advice in verdict.message


def test_what_was_returned_but_never_stored_is_told():
    verdict = judge(lambda machine, block_q, block_k, causal: (machine.shape("o"), machine.shape("lse")), "tiled_on_machine")
    assert "o was never stored in HBM: machine.store does that" in verdict.message and verdict.mistake is None


def test_a_result_in_float32_is_not_blamed_on_float64_constants():
    verdict = judge(lambda x: softmax(x).astype(np.float32), "stable_softmax")
    assert verdict.failed == "dtype" and "np.sqrt" not in verdict.message


def test_torch_inside_after_torch_outside():
    torch = pytest.importorskip("torch")
    x = torch.randn(800, 800)
    (x @ x).softmax(-1)  # starts torch's threads, which a forked child does not have

    def with_torch(q, k, v, block_size):
        state = torch.zeros(len(q), v.shape[1] + 1, dtype=torch.float64)
        m = torch.full((len(q), 1), -torch.inf, dtype=torch.float64)
        q, k, v = (torch.from_numpy(np.array(a, np.float64)) for a in (q, k, v))
        v = torch.cat([v, torch.ones(len(v), 1)], 1)
        for j in range(0, len(k), block_size):
            s = q @ k[j : j + block_size].T * q.shape[1] ** -0.5
            new = torch.maximum(m, s.max(1, keepdim=True).values)
            state, m = state * (m - new).exp() + (s - new).exp() @ v[j : j + block_size], new
        return (state[:, :-1] / state[:, -1:]).numpy().astype(dtype)

    dtype = np.float32
    checks = dict(judge(with_torch, "online_attention").checks)
    assert checks["memory"] == checks["larger"] == "passed"


def test_an_answer_that_cannot_be_looked_at(capfd):
    class Closed:
        def __getattribute__(self, name):
            raise ValueError(name)

        def __call__(self, x):
            return x

    verdict = judge(Closed(), "stable_softmax")
    assert verdict.state == "error" and capfd.readouterr() == ("", "")


def test_public_names():
    assert all(callable(getattr(flashedu, name)) for name in flashedu.__all__)


def test_memory_of_a_call_is_measured():
    call = isolation.call(lambda: np.ones(10**6), (), 5, trace_memory=True)
    assert 8e6 <= call.peak_bytes < 9e6


# what a point is for


def test_another_dtype_costs_one_check_and_hides_no_other():
    def wide(q, k, v, block_size):
        return online_attention(q, k, v, block_size).astype(np.float64)

    def wide_and_unscaled(q, k, v, block_size):
        return wide(q * q.dtype.type(2), k, v, block_size)

    verdict = judge(wide, "online_attention")
    assert verdict.failed == "dtype" and [check for check, state in verdict.checks if state != "passed"] == ["dtype"]
    assert verdict.score == round(1 - 1 / len(verdict.checks), 3)
    unscaled = judge(wide_and_unscaled, "online_attention")
    assert unscaled.failed == "dtype" and unscaled.score < verdict.score and dict(unscaled.checks)["several blocks"] == "failed"
    assert dict(unscaled.checks)["memory"] == "not run"  # its values are wrong, and it holds no matrix
    whole = judge(lambda q, k, v, block_size: wide(q, k, v, len(k)), "online_attention")
    assert [check for check, state in whole.checks if state == "failed"] == ["dtype", "memory"] and whole.score == 0.5
