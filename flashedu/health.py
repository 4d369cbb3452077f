"""What works on this machine: packages, GPU or interpreter, self-tests, and what to do about each failure."""
import importlib.util
import os
import platform
import subprocess
import sys
from importlib import metadata

import numpy as np

PACKAGES = {  # name: what it is needed for
    "numpy": "everything",
    "jupyterlab": "reading and running the notebooks",
    "ipywidgets": "sliders",
    "matplotlib": "figures",
    "torch": "chapters 4 and later",
    "triton": "the kernels of chapters 4 and later",
}
NUMPY_ONLY = "Chapters 0 to 3 and 7 work here, and what NumPy computes in 5, 6 and 8."
# The name of the GPU, or an empty line; then the attention kernels at a small ragged problem, judged by the bound. In a
# process of its own, since a broken driver may end the process.
SELF_TEST = """
import torch
print(torch.cuda.get_device_name() if torch.cuda.is_available() else "", flush=True)
from flashedu.kernels import DEVICE, flash_attention
from flashedu.exactness import attention_bounds
from flashedu.grading.inputs import qkv
q, k, v = (x[None, None] for x in qkv("random", 65, 130, 24))
o, lse = flash_attention(*(torch.from_numpy(x).to(DEVICE) for x in (q, k, v)), causal=True, return_lse=True, backend="triton")
ratio = max(bound.ratio(x.cpu().numpy()) for bound, x in zip(attention_bounds(q, k, v, causal=True, block_k=32), (o, lse)))
assert ratio <= 1, f"flash attention ran, but it is off by {ratio:.3g} times what rounding allows"
"""


def examine(out=print):
    """Print one line for each finding, with what to do about failures; True when chapters 0 to 3 can be worked through."""
    out(f"Python {platform.python_version()} on {platform.system()} {platform.machine()}")
    good = _packages(out)
    good &= _numpy_self_test(out)
    what_works = _kernels(out)
    out(what_works if good else "Chapters 0 to 3 do not work here yet: see the lines marked FAIL.")
    return bool(good)


def _line(out, mark, what, advice=""):
    out(f"  {mark:<5} {what}" + (f"\n        -> {advice}" if advice else ""))


def _packages(out):
    complete = True
    for name, purpose in PACKAGES.items():
        try:
            _line(out, "ok", f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            if name == "triton" and platform.system() != "Linux":
                advice = "there is no wheel for this system; on Windows try the package triton-windows, on macOS use a Linux machine for chapters 4 and later"
                _line(out, "none", f"{name}: needed for {purpose}", advice)
            else:
                early = name not in ("torch", "triton")
                complete &= not early
                _line(out, "FAIL" if early else "none", f"{name} is missing: needed for {purpose}", "run `make lab`, or pip install -e '.[course]' -c constraints.txt")
    return complete


def _numpy_self_test(out):
    from flashedu.exactness import attention_bounds
    from flashedu.grading.inputs import qkv
    from flashedu.reference import tiled_attention

    q, k, v = qkv("random", 65, 130, 24)
    o, lse = tiled_attention(q, k, v, 16, 32, causal=True)
    bounds = attention_bounds(q, k, v, causal=True, block_k=32)
    ratio = max(bound.ratio(value) for bound, value in zip(bounds, (o, lse)))
    if ratio <= 1:
        _line(out, "ok", f"NumPy {np.__version__}: tiled attention is exact ({ratio:.2f} of what rounding allows)")
        return True
    _line(out, "FAIL", f"NumPy {np.__version__}: tiled attention is off by {ratio:.3g} times what rounding allows",
          "NumPy's matrix library seems broken; reinstall numpy, e.g. remove .venv and run `make lab`")
    return False


def _kernels(out):
    """Examine torch, Triton and the kernels; returns the sentence on the chapters that work if NumPy does."""
    missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    if missing:
        _line(out, "none", f"no kernels here, without {' and '.join(missing)}; chapters 0 to 3 do not need them")
        return NUMPY_ONLY
    test = _child(SELF_TEST)
    if not test.stdout:
        _line(out, "FAIL", f"torch does not import: {_last_line(test.stderr)}", "remove .venv and run `make lab`")
        return "Chapters 0 to 3 work here; the others find torch, and end in its error."
    name = test.stdout.splitlines()[0]
    where = f"GPU: {name}" if name else "no GPU: Triton's interpreter"
    if test.returncode == 0:
        _line(out, "ok", f"{where}; the kernel self-test passes")
    elif name:
        _line(out, "FAIL", f"{where}; the kernel self-test fails: {_last_line(test.stderr)}",
              "check the driver with nvidia-smi; a C compiler (gcc) must be installed; TRITON_INTERPRET=1 runs kernels on the CPU meanwhile")
    else:
        _line(out, "FAIL", f"{where}; the kernel self-test fails: {_last_line(test.stderr)}", "install the pinned pair of torch and triton with `make lab`")
    return NUMPY_ONLY if test.returncode else "All chapters work here."


def _child(code):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    try:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, env=environment)
    except subprocess.TimeoutExpired as late:
        return subprocess.CompletedProcess([], 1, (late.stdout or b"").decode(errors="replace"), "no answer within 180 seconds")


def _last_line(text):
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "it ended without a message"
