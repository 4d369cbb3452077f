"""The doctor says what works and, for everything that does not, what to do."""
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from flashedu import exactness, health
from flashedu.health import PACKAGES, examine

ROOT = Path(__file__).parents[1]
DONE = subprocess.CompletedProcess([], 0, "\n", "")  # torch imports, and sees no GPU


def failed(stderr, stdout=""):
    return subprocess.CompletedProcess([], 1, stdout, stderr)


@pytest.fixture
def machine(monkeypatch):
    """A machine where everything is installed and works, without starting a process; each test breaks one thing."""
    monkeypatch.setattr(health.metadata, "version", lambda name: "9.8.7")
    monkeypatch.setattr(health.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(health, "_child", lambda code: DONE)
    monkeypatch.setattr(health.platform, "system", lambda: "Linux")
    return monkeypatch


def examined():
    text = []
    good = examine(out=text.append)
    return good, "\n".join(text)


def without(monkeypatch, *names):
    def version(name):
        if name in names:
            raise metadata.PackageNotFoundError(name)
        return "9.8.7"

    monkeypatch.setattr(health.metadata, "version", version)
    monkeypatch.setattr(health.importlib.util, "find_spec", lambda name: None if name in names else object())


def finding(text, word):
    """The line that speaks of `word`: (its mark, the line, the advice after it or None)."""
    found = re.search(rf"^  (\S+) +(.*\b{re.escape(word)}.*)(?:\n +-> (.*))?", text, re.MULTILINE)
    return found.groups()


def test_as_a_command_on_this_machine():
    run = subprocess.run([sys.executable, "-m", "flashedu", "doctor"], cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert run.returncode == 0, run.stdout + run.stderr
    for name in PACKAGES:
        try:
            assert f"  ok    {name} {metadata.version(name)}\n" in run.stdout
        except metadata.PackageNotFoundError:
            assert finding(run.stdout, name)[2]
    assert "tiled attention is exact" in run.stdout
    assert run.stdout.splitlines()[-1].startswith("All chapters work here." if sys.platform == "linux" else "Chapters 0 to 3 and 7 work here, and")
    assert "FAIL" not in run.stdout and run.stderr == ""


def test_all_well(machine):
    good, text = examined()
    assert good and "FAIL" not in text and "->" not in text
    for name in PACKAGES:
        assert finding(text, name)[0] == "ok"
    assert "no GPU: Triton's interpreter; the kernel self-test passes" in text


@pytest.mark.parametrize("name", [name for name in PACKAGES if name not in ("torch", "triton")])
def test_a_package_of_the_first_chapters_is_missing(machine, name):
    without(machine, name)
    good, text = examined()
    mark, line, advice = finding(text, f"{name} is missing")
    assert not good and mark == "FAIL" and PACKAGES[name] in line
    assert "make lab" in advice and "pip install" in advice
    assert text.endswith("Chapters 0 to 3 do not work here yet: see the lines marked FAIL.")


@pytest.mark.parametrize("names", [("torch",), ("triton",), ("torch", "triton")])
def test_without_kernels_the_first_chapters_work(machine, names):
    without(machine, *names)
    machine.setattr(health, "_child", None)  # nothing is tried
    good, text = examined()
    assert good and "FAIL" not in text
    for name in names:
        mark, line, advice = finding(text, f"{name} is missing")
        assert mark == "none" and PACKAGES[name] in line and "make lab" in advice
    assert f"no kernels here, without {' and '.join(names)}; chapters 0 to 3 do not need them" in text


@pytest.mark.parametrize("system", ["Darwin", "Windows"])
def test_triton_has_no_wheel_elsewhere(machine, system):
    without(machine, "triton")
    machine.setattr(health.platform, "system", lambda: system)
    good, text = examined()
    mark, _, advice = finding(text, "triton: needed for")
    assert good and mark == "none" and "no wheel" in advice and "make lab" not in advice


def test_torch_does_not_import(machine):
    machine.setattr(health, "_child", lambda code: failed("Traceback ...\n  File ...\nImportError: libgomp.so.1: not found\n"))
    good, text = examined()
    mark, line, advice = finding(text, "torch does not import")
    assert good and mark == "FAIL" and line.endswith("ImportError: libgomp.so.1: not found")
    assert text.splitlines()[-1].startswith("Chapters 0 to 3 work here; the others")
    assert "make lab" in advice


@pytest.mark.parametrize("gpu, word", [("", "make lab"), ("NVIDIA H200", "nvidia-smi")])
def test_the_kernel_self_test_fails(machine, gpu, word):
    machine.setattr(health, "_child", lambda code: failed("AssertionError: flash attention ran, but its result is wrong", stdout=gpu + "\n"))
    good, text = examined()
    mark, line, advice = finding(text, "the kernel self-test fails")
    assert good and mark == "FAIL" and "its result is wrong" in line and word in advice
    assert (f"GPU: {gpu}" if gpu else "no GPU: Triton's interpreter") in line


def test_a_gpu_is_named(machine):
    machine.setattr(health, "_child", lambda code: subprocess.CompletedProcess([], 0, "NVIDIA H200\n", ""))
    assert "  ok    GPU: NVIDIA H200; the kernel self-test passes" in examined()[1]


def test_a_process_that_dies_without_a_word(machine):
    machine.setattr(health, "_child", lambda code: failed("\n"))
    assert "torch does not import: it ended without a message" in examined()[1]


def test_arithmetic_that_is_wrong(machine):
    machine.setattr(exactness.Bound, "ratio", lambda self, value: 3.5)
    good, text = examined()
    mark, _, advice = finding(text, "tiled attention is off by 3.5 times")
    assert not good and mark == "FAIL" and advice


def test_child_runs_code_without_the_interpreter_switch(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    run = health._child("import os; print(os.environ.get('TRITON_INTERPRET'))")
    assert (run.returncode, run.stdout) == (0, "None\n")
    run = health._child("raise SystemExit('no')")
    assert run.returncode == 1 and health._last_line(run.stderr) == "no"


@pytest.mark.parametrize("printed", [None, b"NVIDIA H200\n"])
def test_child_does_not_wait_for_ever(monkeypatch, printed):
    def run(*args, timeout, **kwargs):
        raise subprocess.TimeoutExpired("python", timeout, output=printed)

    monkeypatch.setattr(health.subprocess, "run", run)
    run = health._child("")
    assert run.returncode == 1 and "180 seconds" in run.stderr and run.stdout.encode() == (printed or b"")


def test_the_self_test_can_fail():
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    wrong = health.SELF_TEST.replace("(q, k, v)), causal=True", "(q, k, k)), causal=True")
    assert wrong != health.SELF_TEST
    run = health._child(wrong)
    assert run.returncode and "times what rounding allows" in health._last_line(run.stderr)
