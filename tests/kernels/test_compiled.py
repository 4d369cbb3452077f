"""The kernels, compiled for GPUs that need not be here: they fit, use the matrix units, and spill nothing that they need not."""
import importlib.util
import itertools
import os
import time
from pathlib import Path

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("there is no Triton on this system", allow_module_level=True)

import torch

from flashedu.hardware import GPUS
from flashedu.kernels import DEVICE, compiled, compiler, softmax

MATRIX = {75: "fma", 80: "mma.sync", 86: "mma.sync", 89: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma", 120: "mma.sync"}
SERIALISED = ("C7510", "C7511", "C7514", "C7515")  # ptxas: wgmma instructions wait for one another
TIMED = (90, 100)  # their tiles were chosen by timing on an H200, where a few spilled registers may be worth it
TOO_LARGE = ("backward", 75, "float32", 256)
CHOSEN = [  # of the whole grid: every capability and type, and both directions
    ("forward", 75, "float16", 64, False),
    ("forward", 80, "bfloat16", 128, True),
    ("forward", 86, "float16", 128, False),
    ("forward", 89, "bfloat16", 64, True),
    ("forward", 90, "bfloat16", 128, True),
    ("forward", 100, "bfloat16", 128, False),
    ("forward", 120, "float16", 128, True),
    ("forward", 80, "float32", 64, False),
    ("backward", 90, "bfloat16", 128, True),
]
GRID = [
    case
    for case in itertools.product(("forward", "backward"), MATRIX, ("float16", "bfloat16", "float32"), (64, 128, 256), (False, True))
    if case[1:3] != (75, "bfloat16")  # no bfloat16 before capability 8.0
    and case[:4] != TOO_LARGE
]


def name(case):
    function, capability, dtype, head_dim, causal = case
    return f"{function}-sm_{capability}-{dtype}-{head_dim}-{'causal' if causal else 'full'}"


def look(case):
    function, capability, dtype, head_dim, causal = case
    found = getattr(compiled, function)(capability, head_dim, dtype, causal)
    for kernel in found if function == "backward" else [found]:
        print(kernel)
        assert kernel.fits
        small = kernel.kernel == "dkdv_kernel" and head_dim == 256 and capability in TIMED  # 32 keys are too few for a warp group
        assert kernel.matrix_instruction == ("fma" if dtype == "float32" else "mma.sync" if small else MATRIX[capability])
        assert [warning for warning in kernel.warnings if warning.startswith(SERIALISED)] == []
        if kernel.matrix_instruction != "fma":
            timed = capability in TIMED and (function == "backward" or head_dim != 128)
            assert kernel.stack_bytes <= (512 if timed else 0), f"{kernel.spill_bytes} bytes spilled"


@pytest.mark.parametrize("case", CHOSEN, ids=name)
def test_chosen(case):
    look(case)


@pytest.mark.grid
@pytest.mark.parametrize("case", GRID, ids=name)
def test_the_whole_grid(case):
    look(case)


def test_what_has_no_tile_is_refused():
    _, capability, dtype, head_dim = TOO_LARGE
    with pytest.raises(compiled.CompilationFailed, match="65,536 bytes of shared memory a block is too small for head dimension 256"):
        compiled.backward(capability, head_dim, dtype)


def test_limits_are_those_of_the_gpus():
    for gpu in GPUS.values():
        major, minor = gpu.compute_capability
        assert compiled.SHARED_LIMITS[10 * major + minor] == gpu.block_shared_bytes


def test_what_does_not_fit_is_said():
    found = compiled.forward(86, 64, block_q=128, block_k=128, num_warps=8, num_stages=4)
    assert found.shared_bytes > found.shared_limit_bytes == 101_376 and not found.fits
    assert "does not fit" in repr(found) and "does not fit" not in repr(compiled.softmax(86))


def test_what_spills_and_waits_is_said():
    found = compiled.forward(90, block_q=128, block_k=128, num_warps=4, num_stages=3)
    assert found.registers == 255 and found.spill_bytes > 0 and found.stack_bytes > 0
    assert any(warning.startswith(SERIALISED) for warning in found.warnings)
    assert f"{found.spill_bytes:,} bytes spilled" in repr(found) and "C75" in repr(found)


def test_the_tile_is_the_one_that_was_asked_for():
    found = compiled.forward(80, 64, "float16", block_q=64, block_k=32, num_warps=4, num_stages=2)
    assert (found.constants["BLOCK_Q"], found.constants["BLOCK_K"], found.num_warps, found.num_stages) == (64, 32, 4, 2)
    tiles = {name: dict(block_q=q, block_k=k, num_warps=4, num_stages=1) for name, q, k in (("dq", 64, 32), ("dkdv", 32, 64))}
    dq, dkdv = compiled.backward(80, 64, "float16", **tiles)
    assert (dq.kernel, dq.constants["BLOCK_Q"], dq.constants["BLOCK_K"]) == ("dq_kernel", 64, 32)
    assert (dkdv.kernel, dkdv.constants["BLOCK_Q"], dkdv.constants["BLOCK_K"]) == ("dkdv_kernel", 32, 64)


@pytest.mark.parametrize("n_q, n_k", [(100, 1), (1, 100)])
def test_one_key_and_one_query_compile(n_q, n_k):
    """As a constant of the program, one key made ptxas 12.8 die."""
    q, kv = (torch.empty(1, n, heads, 64, dtype=torch.float16, device="meta").transpose(1, 2) for n, heads in ((n_q, 3), (n_k, 1)))
    lse = torch.empty(1, 3, n_q, device="meta")
    kernels = compiled._ask(90, "flash_backward", (q, kv, kv, q, lse, q, True), {"dq_kernel": {}, "dkdv_kernel": {}}, module="flashedu.kernels.backward")
    assert [kernel.kernel for kernel in kernels] == ["dq_kernel", "dkdv_kernel"] and all(kernel.fits for kernel in kernels)


def test_softmax_has_no_products():
    found = compiled.softmax(90, n=1000, num_warps=2)
    assert found.matrix_instruction is None and found.fits and found.spill_bytes == 0 and found.counts["ex2"] > 0
    assert found.constants == {"BLOCK_N": 1024} and found.num_warps == 2
    assert "no products" in repr(found)


def test_a_question_is_answered_once():
    first = compiled.softmax(80)
    start = time.perf_counter()
    assert compiled.softmax(80) is first
    assert time.perf_counter() - start < 0.1


def test_this_process_goes_on_as_before():
    before = os.environ.get("TRITON_INTERPRET")
    compiled.softmax(89)
    assert os.environ.get("TRITON_INTERPRET") == before
    x = torch.tensor([[0.0, 0.0]], device=DEVICE)
    assert softmax.triton_softmax(x).tolist() == [[0.5, 0.5]]


SOFTMAX = Path(softmax.__file__).read_text()
KERNEL = """
@triton.jit
def copy(x_ptr, y_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y_ptr + i, {value})

def launch(x):
    y = torch.empty_like(x)
    copy[(1,)](x, y, BLOCK=x.numel())
    return y
"""
X = torch.empty(64, device="meta")


def kernel(value="tl.load(x_ptr + i)"):
    return KERNEL.format(value=value)


def test_a_program_of_ones_own():
    x = torch.empty((8, 100))
    (found,) = compiled.compile_source(SOFTMAX, "triton_softmax", [x], 80, num_warps=4)
    assert (found.kernel, found.constants, found.num_warps) == ("softmax_kernel", {"BLOCK_N": 128}, 4)
    (found,) = compiled.compile_source(kernel(), "launch", [X], 75)
    assert (found.kernel, found.capability, found.constants) == ("copy", 75, {"BLOCK": 64})


def test_alignment_is_that_of_the_tensors():
    """A thread reads several elements with one instruction, unless rows of odd length begin anywhere."""
    even, odd = (torch.empty((8, n), dtype=torch.float16)[:, :1024] for n in (2048, 2047))
    loads = [compiled.compile_source(SOFTMAX, "triton_softmax", [x], 80)[0].counts["ld.global"] for x in (even, odd)]
    assert 0 < loads[0] < loads[1]


@pytest.mark.parametrize(
    ("source", "function", "says"),
    [
        (kernel("tl.arange(0, 48)"), "launch", "copy does not compile for sm_80 with BLOCK=64: arange's range must be a power of 2."),
        (kernel('tl.inline_asm_elementwise("nonsense $0, $1;", "=r,r", [i], tl.int32, True, 1)'), "launch", "ptxas says: "),
        (kernel("missing"), "launch", "missing is not defined"),
        (kernel(), "other", "the program defines no function other."),
        ("def launch(x): return x", "launch", "launch launched no kernel."),
        ("def launch(x): (", "launch", "'(' was never closed"),
        ("def launch(x): raise SystemExit", "launch", "SystemExit."),
        ("import os\ndef launch(x): os._exit(3)", "launch", "The process that compiles ended with status 3"),
        ("import sys, os\ndef launch(x): print('1'); os.write(1, b'1'); sys.exit('all the same')", "launch", "all the same."),
    ],
)
def test_a_program_that_cannot_be_compiled(source, function, says):
    with pytest.raises(compiled.CompilationFailed) as raised:
        compiled.compile_source(source, function, [X], 80)
    text = str(raised.value)
    assert says in text and text.endswith(".") and "\n" not in text
    assert len(compiled.compile_source(kernel(), "launch", [X], 80)) == 1  # the next question is answered


def test_a_program_that_takes_too_long(monkeypatch):
    compiled.compile_source(kernel(), "launch", [X], 80)
    monkeypatch.setattr(compiler, "SECONDS", 0.5)
    with pytest.raises(compiled.CompilationFailed, match=r"no answer within 0\.5 seconds"):
        compiled.compile_source("def launch(x):\n    while True: pass", "launch", [X], 80)
    monkeypatch.undo()
    assert compiled.compile_source(kernel(), "launch", [X], 86)[0].capability == 86


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: compiled.forward(91), ValueError, "capability must be one of 75, 80, 86, 89, 90, 100, 120, where 90 means 9.0, but it is 91."),
        (lambda: compiled.forward("sm_90"), ValueError, "but it is 'sm_90'."),
        (lambda: compiled.forward(90, dtype="float64"), ValueError, "dtype must be float32, float16 or bfloat16, but it is 'float64'."),
        (lambda: compiled.forward(90, head_dim=0), ValueError, "head_dim must be at least 1, but it is 0."),
        (lambda: compiled.backward(90, n=1.5), TypeError, "n must be a whole number, but it is 1.5."),
        (lambda: compiled.forward(90, block_k=48), compiled.CompilationFailed, "BLOCK_K=48: arange's range must be a power of 2."),
        (lambda: compiled.forward(90, block_r=64), compiled.CompilationFailed, "block_r cannot be changed"),
    ],
)
def test_what_cannot_be_asked(call, error, says):
    with pytest.raises(error) as raised:
        call()
    assert str(raised.value).endswith(says) or says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_without_triton(monkeypatch):
    monkeypatch.setattr(compiled.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(compiled.CompilationFailed, match="Triton is not installed here"):
        compiled.forward(90, n=17)
