"""The measurements: what they count, how often they call, and in which order."""
import argparse
import importlib.util
import itertools
import json
import sys
import tracemalloc
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from flashedu import bench, results
from flashedu.__main__ import main
from flashedu.bench import Measurement, contenders, ladder, measure, result, speed, table
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


def test_a_slot_may_hold_more_calls():
    assert interleave(fakes(a=[0.1] * 3), FakeDevice(), rounds=1, slot_ms=10, most_calls=70)["a"]["calls"] == 70


@pytest.mark.parametrize("filler, before", [("filler", ["filler"] * 2), (None, ["fn"] * 3)])
def test_the_device_is_busy_before_its_clock_starts(monkeypatch, filler, before):
    torch = pytest.importorskip("torch")
    log, places = [], iter(("start", "stop"))

    class Event:
        def __init__(self, enable_timing):
            self.place = next(places)

        def record(self):
            log.append(self.place)

        def synchronize(self):
            assert self.place == "stop"

        def elapsed_time(self, other):
            return 12.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    clock = contenders.device_clock(filler and (lambda: log.append(filler)))
    assert clock(lambda: log.append("fn"), 3) == 4.0
    assert log == [*before, "start", "fn", "fn", "fn", "stop"]


def test_a_contender_beyond_the_limit_is_called_twice_and_never_again():
    device = FakeDevice()
    outcomes = interleave(fakes(slow=[50.0, 30.0], quick=[1.0] * 9), device, rounds=4, slot_ms=1, limit_ms=29.9)
    assert outcomes["slow"] == {"not_run": "one call takes more than 30 ms"}
    assert outcomes["quick"]["rounds"] == 4
    assert [name for name, _ in device.log].count("slow") == 2
    assert interleave(fakes(slow=[50.0] + [30.0] * 4), FakeDevice(), rounds=3, slot_ms=1, limit_ms=30)["slow"]["rounds"] == 3


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


def test_the_table_can_compare_with_another_of_ours():
    measured = measured_by_fakes()
    for row in measured["rows"]:
        row["contender"] = {"flashedu": "version3"}.get(row["contender"], row["contender"])
    assert "how many times as long they take as version3." in table.text(measured, "version3")
    line = next(line for line in table.text(measured, "version3").splitlines() if line.lstrip().startswith("4096"))
    assert line.split()[-1] == "1.50"


@pytest.mark.parametrize("options", [[], ["--ladder"]])
def test_only_a_whole_result_is_written_into_the_package(options):
    def folder(*more):
        parser = argparse.ArgumentParser()
        speed.add_arguments(parser)
        ladder.add_arguments(parser)
        return speed.folder(parser.parse_args([*options, *more]))

    assert folder() == folder("--lengths", *map(str, reversed(speed.LENGTHS))) == Path(results.__file__).parent
    assert folder("--head-dims", "64") is folder("--lengths", "512", "16384") is folder("--without", "naive") is None
    assert folder("--head-dims", "64", "--out", "here") == Path("here")


class Rung:
    """Attention on the CPU, wrong by `off` times itself, and a time."""

    def __init__(self, name, time_ms, causal, off=0.0, error=None):
        self.name, self.time_ms, self.causal, self.off, self.error = name, time_ms, causal, off, error

    def __call__(self, q, k, v):
        import torch

        if self.error:
            raise self.error
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal) * (1 + self.off)


@pytest.fixture
def dry(monkeypatch):
    """The ladder on the CPU, by a clock that knows how long each contender takes; returns the log of what it timed."""
    torch = pytest.importorskip("torch")
    log = []

    def clock(fn, calls):
        name = "matmul" if fn is matmul else fn.func.name
        log.append(name)
        fn()
        return 2.0 if fn is matmul else fn.func.time_ms

    def matmul():
        pass

    def rungs(n, causal):
        return {name: Rung(name, time_ms, causal, **more) for name, time_ms, more in (
            ("naive", 40.0, {}), ("version1", 900.0 if n < 64 else 1100.0, {}), ("version2", 4.0, {"off": 0.5}),
            ("fa2", 6.0, {}), ("cudnn", 3.0, {"error": RuntimeError("no engine")}))}

    place = {"device": "NVIDIA H200", "power_limit_w": 700.0, "torch": "2", "triton": "3"}
    for module, name, value in (
        (speed, "missing", lambda: None), (speed, "TOKENS", 64), (speed, "WIDTH", 32), (speed, "HEAD_DIMS", (16, 32)), (speed, "LENGTHS", (32, 64)),
        (contenders, "rungs", rungs), (contenders, "matmul", lambda: matmul), (contenders, "device_clock", lambda filler: clock),
        (contenders, "random_inputs", lambda *shape: list(torch.randn(4, *shape, generator=torch.Generator().manual_seed(0)))),
        (ladder, "compile_ahead", lambda *sizes: log.append(sizes)), (result, "environment", lambda: place),
    ):
        monkeypatch.setattr(module, name, value)
    return log


def climb(dry, tmp_path, **options):
    """(exit status, rows by (D, N, causal, contender)) of a dry run."""
    status = ladder.run((16, 32), (32, 64), out=tmp_path, **options)
    rows = json.loads((tmp_path / "h200_ladder.json").read_text())["rows"]
    found = {(row["head_dim"], row["n"], row["causal"], row["contender"]): row for row in rows}
    assert len(found) == len(rows)
    return status, found


def test_the_ladder_has_a_time_or_a_reason_for_every_rung_at_every_size(dry, tmp_path, capsys):
    status, rows = climb(dry, tmp_path)
    assert status == 0
    assert list(rows) == list(itertools.product((16, 32), (32, 64), (False, True), ("matmul", *contenders.RUNGS)))
    for (_, n, _, name), row in rows.items():
        assert (row["direction"], row["batch"] * n, row["heads"] * row["head_dim"]) == ("forward", 64, 32)
        if name == "cudnn":
            assert row["refused"] == "no engine" and "relative_error" not in row
        elif name == "version3":
            assert row["not_run"] == "it needs a GPU of compute capability 9.0 (Hopper)"
        elif name == "version1" and n == 64:
            assert row["not_run"] == "one call takes more than 1000 ms" and "time_ms" not in row
        elif name != "matmul":
            assert row["flops_per_s"] == pytest.approx(row["flops"] / row["time_ms"] * 1e3, rel=1e-4)
            assert row["rounds"] == (ladder.SLOW_ROUNDS if name in ladder.SLOW else ladder.ROUNDS)
            assert row["relative_error"] == pytest.approx(0.5, abs=1e-3) if name == "version2" else row["relative_error"] < 1e-6
    printed = capsys.readouterr()
    assert "take as version3" in printed.out and "version3, not run (8x, first forward, D = 16, N = 32): it needs a GPU" in printed.out
    assert len(printed.err.splitlines()) == 8


def test_kernels_are_compiled_first_and_the_slow_rungs_have_rounds_of_their_own(dry, tmp_path):
    climb(dry, tmp_path, rounds=2, without=["cudnn", "fa2"])
    assert dry[0] == ((16, 32), (32, 64), ["naive", "version1", "version2", "version3"])
    size = ["matmul"] * 2 + ["version2"] * 2 + ["matmul", "version2", "version2", "matmul"]
    size += ["naive"] * 2 + ["version1"] * 2
    assert dry[1 : len(size) + 5] == [*size, "naive", "version1", "version1", "naive"]


def test_a_version_that_is_refused_is_a_failure(dry, tmp_path, monkeypatch):
    usual = contenders.rungs
    monkeypatch.setattr(contenders, "rungs", lambda n, causal: usual(n, causal) | {"version3": Rung("version3", 1.0, causal, error=ValueError("bad layout"))})
    status, rows = climb(dry, tmp_path)
    assert status == 1 and rows[16, 64, True, "version3"]["refused"] == "bad layout"


def test_every_kernel_is_compiled_ahead_and_one_that_fails_stops_no_other(monkeypatch):
    torch = pytest.importorskip("torch")
    launched = []

    def versions(causal):
        def attend(name, q, k, v):
            launched.append((name, *q.shape[1:], causal))
            if name == "version2":
                raise RuntimeError("does not compile")
        return {name: partial(attend, name) for name in ("version1", "version2", "version3")}

    monkeypatch.setattr(contenders, "versions", versions)
    monkeypatch.setattr(torch, "zeros", lambda *shape, device, dtype: torch.empty(shape, dtype=dtype))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    ladder.compile_ahead((64, 256), (512, 1024, 4096), ["naive", "version2", "version3", "cudnn"])
    both = set(itertools.product(("version3",), ((64, 32), (256, 8)), (512, 4096), (False, True)))
    assert {(name, (d, heads), n, causal) for name, heads, n, d, causal in launched if name == "version3"} == both
    assert len([name for name, *_ in launched if name == "version2"]) == 4  # its first length fails
    assert all(name != "version1" for name, *_ in launched)


@pytest.mark.parametrize("n", [5, 600])
@pytest.mark.parametrize("causal", [False, True])
def test_the_error_is_that_of_the_last_head_against_float64(causal, n):
    torch = pytest.importorskip("torch")
    q, k, v = torch.randn(3, 2, 3, n, 8, generator=torch.Generator().manual_seed(0))
    rows, right = ladder.exact_rows(q, k, v, causal)
    assert (len(rows), rows[0], rows[-1], right.dtype) == (min(n, ladder.ROWS), 0, n - 1, torch.float64)
    o = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=causal)
    assert ladder.relative_error(o, rows, right) < 1e-14
    o[-1, -1] *= 1.25
    assert ladder.relative_error(o, rows, right) == 0.25
    o[-1, -1] /= 1.25
    o[:-1] = o[:, :-1] = 0
    assert ladder.relative_error(o, rows, right) < 1e-14


@pytest.mark.parametrize("capability, third", [((9, 0), True), ((8, 0), False), ((10, 0), False)])
def test_version_3_is_for_hopper_alone(capability, third, monkeypatch):
    torch = pytest.importorskip("torch")
    if importlib.util.find_spec("triton") is None:
        pytest.skip("there is no Triton on this system")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert list(contenders.versions(True)) == ["version1", "version2"] + ["version3"] * third


def test_the_versions_compute_attention(monkeypatch):
    """Where there is no GPU, in the interpreter."""
    torch = pytest.importorskip("torch")
    if importlib.util.find_spec("triton") is None:
        pytest.skip("there is no Triton on this system")
    from flashedu.kernels import DEVICE

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    q, k, v = torch.randn(3, 1, 2, 100, 16, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    for causal in (False, True):
        rows, right = ladder.exact_rows(q, k, v, causal)
        for attend in contenders.versions(causal).values():
            assert ladder.relative_error(attend(q, k, v), rows, right) < 1e-6


@pytest.mark.parametrize("options", [["--quick"], ["--ladder", "--quick"]])
def test_without_a_gpu_the_command_says_so_and_measures_nothing(options, monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["bench", *options]) == 2
    printed = capsys.readouterr()
    assert printed.err == "bench needs a CUDA GPU, and torch sees none on this machine.\n"
    assert printed.out == ""


@pytest.mark.parametrize("options", [[], ["--ladder"]])
@pytest.mark.parametrize("place", ["file", "file/sub", "file/sub/sub"])
def test_a_result_that_cannot_be_written_is_not_measured(place, options, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(speed, "missing", lambda: pytest.fail("it went on"))
    (tmp_path / "file").touch()
    assert main(["bench", *options, "--out", str(tmp_path / place)]) == 2
    printed = capsys.readouterr()
    assert printed.err == f"bench cannot write its result: {tmp_path / 'file'} is no folder that can be written to, so name another one with --out.\n"
    assert printed.out == ""


def test_a_folder_for_the_result_must_let_it_be_written(tmp_path, monkeypatch):
    assert speed.unwritable(tmp_path / "new" / "newer") is speed.unwritable(tmp_path) is speed.unwritable(None) is None
    monkeypatch.setattr(speed.os, "access", lambda path, mode: False)
    assert speed.unwritable(tmp_path / "new").startswith(f"bench cannot write its result: {tmp_path} is no folder that can be written to")


def test_without_torch_too(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["bench"]) == 2
    assert capsys.readouterr().err == "bench needs a CUDA GPU and torch, which is not installed here.\n"
