"""The measurements: what they count, how often they call, and in which order."""
import json
import sys
import tracemalloc
import warnings

import numpy as np
import pytest

from flashedu import bench
from flashedu.__main__ import main
from flashedu.bench import Measurement, measure, speed, table
from flashedu.bench.result import write
from flashedu.bench.rounds import MOST_CALLS, interleave

MB = 1_000_000  # far above what a call itself allocates


def one():
    return np.empty(MB, np.uint8)


def two_at_once():
    return one(), one()


def one_after_the_other():
    for _ in range(5):
        one()


def inputs_only(x):
    x += 1


@pytest.mark.parametrize("fn, args, megabytes", [
    (one, (), 1), (two_at_once, (), 2), (one_after_the_other, (), 1), (inputs_only, (np.zeros(5 * MB, np.uint8),), 0),
])
def test_peak_is_the_most_held_at_once_without_the_inputs(fn, args, megabytes):
    assert measure(fn, *args, repeats=1).peak_bytes // MB == megabytes


def test_calls_once_traced_and_then_untraced():
    traced = []
    measure(lambda: traced.append(tracemalloc.is_tracing()), repeats=4)
    assert traced == [True] + 4 * [False]


def test_arguments_are_passed_on():
    seen = []
    measure(lambda *args: seen.append(args), 1, "a", repeats=2)
    assert seen == 3 * [(1, "a")]


def test_seconds_are_the_median(monkeypatch):
    clock = iter([0.0, 1.0, 10.0, 15.0, 20.0, 22.0])  # calls of 1, 5 and 2 seconds
    monkeypatch.setattr(bench.time, "perf_counter", lambda: next(clock))
    assert measure(int).seconds == 2.0


def test_a_failing_function_leaves_no_tracing_behind():
    with pytest.raises(ZeroDivisionError):
        measure(lambda: 1 / 0)
    assert not tracemalloc.is_tracing()


def test_inside_somebody_elses_tracing():
    tracemalloc.start()
    try:
        held = [one() for _ in range(4)]
        del held[1:]  # the outer session has a peak above what is held now
        assert measure(inputs_only, np.zeros(8, np.uint8), repeats=1).peak_bytes < MB
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("repeats, error", [(0, ValueError), (-2, ValueError), (2.5, TypeError), (True, TypeError), ("3", TypeError), (None, TypeError)])
def test_repeats_refused(repeats, error):
    with pytest.raises(error, match=rf"^repeats must be .*{repeats!r}.*\.$"):
        measure(int, repeats=repeats)


@pytest.mark.parametrize("fn", [3, None, "len"])
def test_fn_refused(fn):
    with pytest.raises(TypeError, match=rf"^fn must be a function, but it is {fn!r}\.$"):
        measure(fn)


def test_a_measurement_is_two_numbers():
    assert Measurement(1.5, 3) == Measurement(seconds=1.5, peak_bytes=3)


class FakeDevice:
    """A clock by which a call takes as long as the function says, and a record of what was timed."""

    def __init__(self):
        self.log = []

    def __call__(self, fn, calls):
        self.log.append((fn.name, calls))
        return fn()


class Fake:
    def __init__(self, name, times):
        self.name, self.times = name, iter(times)

    def __call__(self):
        time_ms = next(self.times)
        if isinstance(time_ms, Exception):
            raise time_ms
        return time_ms


def fakes(**times):
    return {name: lambda name=name: Fake(name, times[name]) for name in times}


def test_contenders_take_turns_and_each_round_begins_with_another():
    device = FakeDevice()
    interleave(fakes(a=[1.0] * 9, b=[2.0] * 9, c=[3.0] * 9), device, rounds=4, slot_ms=6)
    assert device.log[:6] == [("a", 1), ("a", 1), ("b", 1), ("b", 1), ("c", 1), ("c", 1)]  # a call to compile, one to estimate
    assert device.log[6:] == [("a", 6), ("b", 3), ("c", 2), ("b", 3), ("c", 2), ("a", 6), ("c", 2), ("a", 6), ("b", 3), ("a", 6), ("b", 3), ("c", 2)]


def test_the_median_and_the_extremes_are_those_of_the_rounds():
    times = [100.0, 50.0, 4.0, 1.0, 9.0, 2.0, 3.0]  # the first two are not samples
    outcomes = interleave(fakes(a=times), FakeDevice(), rounds=5, slot_ms=10)
    assert outcomes == {"a": {"time_ms": 3.0, "time_ms_min": 1.0, "time_ms_max": 9.0, "rounds": 5, "calls": 1}}


@pytest.mark.parametrize("time_ms, calls", [(0.001, MOST_CALLS), (2.6, 4), (3.0, 3), (700.0, 1)])
def test_a_sample_is_as_many_calls_as_fit_into_the_slot(time_ms, calls):
    assert interleave(fakes(a=[time_ms] * 3), FakeDevice(), rounds=1, slot_ms=10)["a"]["calls"] == calls


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_a_contender_that_fails_is_reported_and_the_others_go_on(before):
    bad = [1.0] * before + [OutOfMemoryError("Tried to allocate 17 GiB.\nmore")]
    outcomes = interleave(fakes(bad=bad, good=[1.0] * 5), FakeDevice(), rounds=3, slot_ms=1)
    assert outcomes["bad"] == {"out_of_memory": "Tried to allocate 17 GiB."}
    assert outcomes["good"]["rounds"] == 3
    assert list(outcomes) == ["bad", "good"]


def test_a_refusal_keeps_the_warnings_that_explain_it():
    def prepare():
        warnings.warn("Flash attention was not compiled (Triggered internally at x.cpp:5.)", stacklevel=1)
        raise RuntimeError("No available kernel.")

    assert interleave({"a": prepare}, FakeDevice(), rounds=2, slot_ms=1) == {"a": {"refused": "No available kernel. | Flash attention was not compiled"}}


def by_hand(n, head_dim, causal):
    """FLOPs of q k^T and P v as two for each multiply-add of a visible pair, the diagonal counted half."""
    pairs = n * n / 2 if causal else n * n
    return 2 * 2 * pairs * head_dim * (speed.WIDTH // head_dim) * (speed.TOKENS // n)


@pytest.mark.parametrize("head_dim", speed.HEAD_DIMS)
@pytest.mark.parametrize("n", speed.LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
def test_credited_flops(n, head_dim, causal):
    assert speed.flops_of("forward", n, head_dim, causal) == by_hand(n, head_dim, causal)
    assert speed.flops_of("backward", n, head_dim, causal) == 2.5 * by_hand(n, head_dim, causal)


def measured_by_fakes():
    """A result with times as a device might give them, one contender out of memory and one refusing."""
    times = fakes(matmul=[2.0] * 9, flashedu=[4.0] * 9, fa2=[6.0] * 9, cudnn=[RuntimeError("no engine")], naive=[1.0, OutOfMemoryError("too big")])
    outcomes = interleave(times, FakeDevice(), rounds=3, slot_ms=1)
    rows = speed.rows_of(dict(direction="backward", head_dim=128, n=4096, causal=True), outcomes, {"flashedu": 0.001})
    return {"environment": {"device": "NVIDIA GeForce RTX 4090", "power_limit_w": 450.0, "torch": "2", "triton": "3"}, "date": "2026-01-31", "rows": rows}


def test_rates_and_shares_follow_from_the_times():
    rows = {row["contender"]: row for row in measured_by_fakes()["rows"]}
    ours = rows["flashedu"]
    assert ours["flops_per_s"] == pytest.approx(2.5 * by_hand(4096, 128, True) / 4e-3, rel=1e-4)
    assert rows["matmul"]["flops_per_s"] == pytest.approx(2 * 8192**3 / 2e-3, rel=1e-4)
    assert ours["of_matmul"] == pytest.approx(ours["flops_per_s"] / rows["matmul"]["flops_per_s"], rel=1e-3)
    assert (ours["batch"], ours["heads"], ours["relative_error"]) == (4, 16, 0.001)
    assert rows["cudnn"].keys() & {"time_ms", "flops_per_s", "of_matmul"} == set()


def test_the_table_shows_times_rates_ratios_and_reasons():
    text = table.text(measured_by_fakes())
    line = next(line for line in text.splitlines() if line.lstrip().startswith("4096"))
    rate = 2.5 * by_hand(4096, 128, True) / 4e-3 / 1e12
    assert line.split()[:4] == ["4096", "4.000", f"{rate:.0f}", f"{100 * rate / 549.756:.0f}%"]
    assert line.split()[-4:] == ["refused", "no", "memory", "1.50"]  # fa2 takes 1.5 times as long as ours; cudnn has no time
    assert "backward, D = 128, causal; the matrix product ran at 550 to 550 TFLOP/s" in text
    assert "cudnn, refused (1x, first backward, D = 128, N = 4096): no engine" in text
    assert "naive, out of memory (1x, first backward, D = 128, N = 4096): too big" in text


def test_a_result_is_written_under_the_device_s_name_one_row_a_line(tmp_path):
    measured = measured_by_fakes()
    path = write(tmp_path, "attention_speed", measured)
    assert path == tmp_path / "rtx_4090_attention_speed.json"
    text = path.read_text()
    assert json.loads(text) == measured
    assert sum('"contender"' in line for line in text.splitlines()) == len(measured["rows"])


def test_without_a_gpu_the_command_says_so_and_measures_nothing(monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["bench", "--quick"]) == 2
    printed = capsys.readouterr()
    assert printed.err == "bench needs a CUDA GPU, and torch sees none on this machine.\n"
    assert printed.out == ""


def test_without_torch_too(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["bench"]) == 2
    assert capsys.readouterr().err == "bench needs a CUDA GPU and torch, which is not installed here.\n"
