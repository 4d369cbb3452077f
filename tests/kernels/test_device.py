"""Where kernels run is settled when the package is imported: before Triton, or with a sentence that says so."""
import importlib.util

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("there is no Triton on this system", allow_module_level=True)

import os
import subprocess
import sys
from pathlib import Path

import torch

from flashedu.kernels import DEVICE
from flashedu.kernels.device import TOO_EARLY

ROOT = Path(__file__).parents[2]


def run(code, **environment):
    """What code prints in a new Python without a GPU."""
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100, env={**inherited, "CUDA_VISIBLE_DEVICES": "", **environment})


def test_here():
    assert torch.cuda.is_available() == (DEVICE == "cuda")


def test_without_a_gpu_the_interpreter_is_switched_on():
    code = "import flashedu.kernels, os, torch, triton; print(flashedu.kernels.DEVICE, os.environ['TRITON_INTERPRET'])\n" \
           "from flashedu.kernels.softmax import triton_softmax; print(triton_softmax(torch.zeros(1, 2)).tolist())"
    found = run(code)
    assert (found.returncode, found.stdout) == (0, "cpu 1\n[[0.5, 0.5]]\n"), found.stderr


def test_triton_imported_too_early_is_told_so():
    found = run("import triton, flashedu.kernels")
    assert found.returncode == 1 and found.stderr.splitlines()[-1] == f"ImportError: {TOO_EARLY}"


def test_triton_may_be_first_if_the_interpreter_is_on():
    found = run("import triton, flashedu.kernels; print(flashedu.kernels.DEVICE)", TRITON_INTERPRET="1")
    assert (found.returncode, found.stdout) == (0, "cpu\n"), found.stderr
