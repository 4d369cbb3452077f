"""An answer in Triton is judged between guard bands, in a process of its own, and told what it did."""
import importlib.util
import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed here", allow_module_level=True)

from right_kernels import RIGHT, row_kernel  # isort: skip  first: before anything imports Triton

import numpy as np
import torch
import triton
import triton.language as tl

from flashedu.grading import judging, tensor_inputs
from flashedu.grading.judging import judge
from flashedu.grading.mistakes import KERNELS
from flashedu.grading.mistakes.edits import edited_kernels
from flashedu.grading.tensors import fences, fresh, place, watching
from flashedu.grading.tensors.fresh import in_fresh_process
from flashedu.grading.verdict import Verdict

FACTOR = tl.constexpr(1.0)


@triton.jit
def helper(x):
    return tl.sum(x, axis=0) * FACTOR


@triton.jit
def kernel(x_ptr, y_ptr, n, stride_m, stride_n, PAST: tl.constexpr, MASK: tl.constexpr, BLOCK: tl.constexpr):
    """A right softmax, but that it stores PAST elements more and, without MASK, loads whatever lies there."""
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_m + c * stride_n, mask=(c < n) | (not MASK), other=float("-inf")).to(tl.float32)
    m = tl.max(x, axis=0)
    p = tl.exp(x - tl.where(m == float("-inf"), 0.0, m))
    l = helper(p)
    tl.store(y_ptr + row * n + c, (p / tl.where(l == 0.0, 1.0, l)).to(y_ptr.dtype.element_ty), mask=c < n + PAST)


def softmax(x, past=0, mask=True):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    kernel[(len(x),)](x, y, x.shape[1], *x.stride(), past, mask, triton.next_power_of_2(x.shape[1]))
    return y


@triton.jit
def touch(x_ptr, offset):
    tl.store(x_ptr + offset, 1.0)


@pytest.fixture
def short_limit(monkeypatch):
    monkeypatch.setattr(judging, "TIME_LIMIT_S", 0.5)


# guard bands


def test_a_store_past_the_end_is_counted():
    verdict = judge(lambda x: softmax(x, past=1), "triton_softmax")
    assert (verdict.state, verdict.failed) == ("wrong", "guard bands")
    assert "It wrote 1 element past the end of result, of shape (1, 3)" in verdict.message and verdict.mistake == "no-mask-on-store"


def test_a_store_past_the_end_of_an_input_names_it():
    def damages_k(q, k, v, causal=False):
        touch[(1,)](k, k.shape[2] * k.shape[3])
        return RIGHT["flash_forward"]["one_masked_loop"](q, k, v, causal)

    verdict = judge(damages_k, "flash_forward")
    assert verdict.failed == "guard bands" and "1 element past the end of k" in verdict.message


def test_a_store_before_the_start_and_one_into_a_tensor_of_its_own():
    def damages(x):
        scratch = torch.zeros(3)
        touch[(1,)](scratch, -2)
        return softmax(x)

    verdict = judge(damages, "triton_softmax")
    assert verdict.failed == "guard bands" and "1 element before the start of a tensor that it made, of shape (3,)" in verdict.message


def test_a_load_past_the_end_is_nan():
    verdict = judge(lambda x: softmax(x, mask=False), "triton_softmax")
    assert verdict.state == "wrong" and "NaN in yours" in verdict.message and "Around the tensors" in verdict.message
    assert verdict.mistake == "no-mask-on-load"


def test_what_was_not_written_is_nan():
    def half(x):
        y = softmax(x)
        z = torch.empty_like(y)
        z[: (len(y) + 1) // 2] = y[: (len(y) + 1) // 2]
        return z

    verdict = judge(half, "triton_softmax")
    assert verdict.failed == "rows" and "is nan; right is" in verdict.message


def test_a_fence_counts_what_was_written_where():
    x = np.arange(12.0, dtype=np.float32).reshape(3, 4)[:, ::2]
    fence = fences.fence_array(x, "float32", "cpu")
    assert fence.tensor.stride() == (4, 2) and torch.equal(fence.tensor, torch.tensor(x.copy())) and fence.damage() == (0, 0, 0)
    around = fence.bits.view(torch.float32)
    assert around.isnan().sum() == len(around) - 6
    around[fences.BAND - 1] = around[fences.BAND + 1] = around[fences.BAND + fence.span] = 0
    assert fence.damage() == (1, 1, 1) and "its strides were not used" in fence.sentence("x")


@pytest.mark.parametrize("make", [torch.zeros_like, torch.ones_like, torch.clone, lambda x: x * 2, lambda x: x.new_full(x.shape, 3.0), lambda x: x.mT.contiguous()])
def test_results_of_torch_are_fenced_and_keep_their_values(make):
    x = torch.arange(6.0).reshape(2, 3)
    with watching.watched() as watch:
        y = make(x)
    assert torch.equal(y, make(x)) and y.stride() == make(x).stride()
    assert any(fence.holds(y) for fence in watch.made)


def test_views_are_not_fenced():
    x = torch.arange(6.0).reshape(2, 3)
    with watching.watched() as watch:
        x.mT, x[0], x.view(6), x.expand(4, 2, 3)
    assert watch.made == []


def test_every_input_has_strides_of_its_own():
    q, k, v, o, _, do, _ = tensor_inputs.backward_case("random", 9, 16, 16, batch=2, heads=4, kv_heads=2, layout="mixed")
    assert len({x.strides[2:] for x in (q, o, do)}) == 3 and all(a != b for a, b in zip(k.strides[2:], v.strides[2:]))


# whose work it is


def test_torch_may_not_compute_it():
    verdict = judge(lambda x: torch.softmax(softmax(x), -1), "triton_softmax")
    assert verdict.failed == "own kernel" and "It called torch's softmax" in verdict.message and verdict.mistake == "torch-does-it"

    def attention(q, k, v, causal=False):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True), torch.zeros(q.shape[:3])

    verdict = judge(attention, "flash_forward")
    assert verdict.failed == "own kernel" and verdict.score < 0.5


def test_a_kernel_must_be_launched():
    def elementwise(x):
        p = torch.exp(x - x.amax(1, keepdim=True).nan_to_num(neginf=0.0))
        return p / p.sum(1, keepdim=True).clamp_min(1e-30)

    verdict = judge(elementwise, "triton_softmax")
    assert verdict.failed == "own kernel" and "No Triton kernel was launched" in verdict.message and verdict.mistake == "no-kernel"


def in_numpy(x):
    x = x.numpy().astype(np.float64)
    p = np.exp(x - np.where(x.max(1) == -np.inf, 0, x.max(1))[:, None])
    l = p.sum(1, keepdims=True)
    return torch.from_numpy(p / np.where(l == 0, 1, l))


def by_pairs(x):
    l = x[:, 0].float()
    for column in x.float().unbind(1)[1:]:
        l = torch.logaddexp(l, column)
    return torch.exp(x - torch.where(l == -torch.inf, 0.0, l)[:, None])


@pytest.mark.parametrize("elsewhere", [in_numpy, by_pairs])
def test_a_kernel_for_show_is_seen(elsewhere):
    """What was computed outside of the kernel is there when no kernel runs."""
    def answer(x):
        softmax(x)
        return elsewhere(x).to(x.dtype)

    verdict = judge(answer, "triton_softmax")
    assert verdict.failed == "own kernel" and "comes out the same when the launched kernels do nothing" in verdict.message, str(verdict)


def test_the_package_may_not_compute_it():
    from flashedu.kernels.softmax import softmax_kernel

    def own_launcher(x):
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        softmax_kernel[(len(x),)](x, y, x.shape[1], *x.stride(), *y.stride(), BLOCK_N=triton.next_power_of_2(x.shape[1]))
        return y

    verdict = judge(own_launcher, "triton_softmax")
    assert verdict.failed == "own kernel" and "It launched softmax_kernel of flashedu.kernels.softmax" in verdict.message
    assert verdict.mistake == "package-does-it"


def test_elementwise_preparation_and_sums_are_fine():
    verdict = judge(lambda x: softmax((x * 1.0).contiguous()) + 0 * torch.zeros_like(x).sum(-1, keepdim=True), "triton_softmax")
    assert verdict.passed


# contracts


@pytest.mark.parametrize(
    "result, check, words",
    [
        (lambda x: None, "type", "it is None. Is a return missing?"),
        (lambda x: softmax(x).numpy(), "type", "must be a torch tensor, but it is of type ndarray"),
        (lambda x: (softmax(x), 1), "type", "a tuple of length 2"),
        (lambda x: softmax(x).double(), "dtype", "it has torch.float64"),
        (lambda x: softmax(x)[None], "shape", "must have shape (1, 1), but it has (1, 1, 1)"),
        (lambda x: softmax(x.mul_(2) / 2), "inputs unchanged", "became"),
    ],
)
def test_contracts(result, check, words):
    def answer(x):
        softmax(x)
        return result(x)

    verdict = judge(answer, "triton_softmax")
    assert (verdict.state, verdict.failed) == ("wrong", check) and words in verdict.message


def test_an_error_in_a_kernel_shows_its_line():
    def wrong_type(x):
        y = torch.empty_like(x)
        row_kernel[(1,)](x, y, x.shape[1], B=3.5)
        return y

    verdict = judge(wrong_type, "triton_softmax")
    assert verdict.state == "error" and "in row_kernel:  c = tl.arange(0, B)" in verdict.message and "InterpreterError" not in verdict.message


@pytest.mark.parametrize("name", ["flash_forward", "flash_backward"])
def test_a_product_that_no_gpu_compiles_is_refused(name):
    narrow = edited_kernels(KERNELS[name], name, (("BLOCK_D=padded(d)", "BLOCK_D=triton.next_power_of_2(d)"),), f"{name}/narrow")
    verdict = judge(narrow, name)
    assert (verdict.state, verdict.failed) == ("error", "any head dimension"), verdict.message
    assert "K >= " in verdict.message and "tl.dot(" in verdict.message


def test_a_signature_that_does_not_fit():
    assert "It must take (q, k, v, causal=False)" in judge(lambda q, k: q, "flash_forward").message


def test_another_order_of_programs_gives_the_same_bits():
    @triton.jit
    def sums(x_ptr, y_ptr, n):
        tl.atomic_add(y_ptr, tl.load(x_ptr + tl.program_id(0)))

    x = torch.tensor([1e8, -1e8, 1.0])  # 1 in this order, 0 in the opposite one
    results = []
    for backwards in (False, True, False):
        y = torch.zeros(1)
        with watching.watched(backwards):
            sums[(3,)](x, y, 3)
        results.append(y.item())
    assert results == [1, 0, 1]


@triton.jit
def add_to_row(x_ptr, m_ptr, l_ptr, n, stride_m, stride_n, B: tl.constexpr):
    row, c = tl.program_id(0), tl.program_id(1) * B + tl.arange(0, B)
    x = tl.load(x_ptr + row * stride_m + c * stride_n, mask=c < n, other=float("-inf")).to(tl.float32)
    m = tl.load(m_ptr + row)
    m_new = tl.maximum(m, tl.max(x, axis=0))
    safe = tl.where(m_new == float("-inf"), 0.0, m_new)
    tl.store(l_ptr + row, tl.load(l_ptr + row) * tl.exp(m - safe) + tl.sum(tl.exp(x - safe), axis=0))
    tl.store(m_ptr + row, m_new)


@triton.jit
def divide(x_ptr, m_ptr, l_ptr, y_ptr, n, stride_m, stride_n, B: tl.constexpr):
    row, c = tl.program_id(0), tl.program_id(1) * B + tl.arange(0, B)
    x = tl.load(x_ptr + row * stride_m + c * stride_n, mask=c < n, other=float("-inf")).to(tl.float32)
    m, l = tl.load(m_ptr + row), tl.load(l_ptr + row)
    y = tl.where(l == 0.0, 0.0, tl.exp(x - m) / l)
    tl.store(y_ptr + row * n + c, y.to(y_ptr.dtype.element_ty), mask=c < n)


def test_a_race_that_one_order_hides_is_seen():
    """Programs of one row take turns in the interpreter; on a GPU they would overwrite each other's sums."""
    def race(x):
        m, l = torch.full((len(x),), -torch.inf), torch.zeros(len(x))
        y = torch.empty(x.shape, dtype=x.dtype)
        grid = len(x), triton.cdiv(x.shape[1], 64)
        add_to_row[grid](x, m, l, x.shape[1], *x.stride(), B=64)
        divide[grid](x, m, l, y, x.shape[1], *x.stride(), B=64)
        return y

    verdict = judge(race, "triton_softmax")
    assert verdict.failed == "the same bits" and dict(verdict.checks)["wide rows"] == "passed", str(verdict)


def test_a_result_that_is_used_again_is_seen():
    kept = {}

    def answer(x):
        y = kept.setdefault((x.shape, x.dtype), torch.empty(x.shape, dtype=x.dtype))
        kernel[(len(x),)](x, y, x.shape[1], *x.stride(), 0, True, triton.next_power_of_2(x.shape[1]))
        return y

    verdict = judge(answer, "triton_softmax")
    assert verdict.failed == "the same bits" and "In run 2 result was the tensor that run 1 had returned" in verdict.message


def test_thousands_of_tensors_do_not_fill_the_memory():
    with watching.watched() as watch:
        for _ in range(2 * watching.MOST_FENCES):
            torch.zeros(5)
        torch.zeros(1000, dtype=torch.float16)
    assert len(watch.made) == watching.MOST_FENCES and watch.largest_bytes == 2000


@pytest.mark.parametrize("names", ["BLOCK_Q BLOCK_K", "BLOCK_M BLOCK_N", "BM BN", "Br Bc", "Q_TILE_SIZE K_TILE_SIZE", "BLOCK_SIZE_M BLOCK_SIZE_N", "Q K"])
def test_the_size_of_a_tile_is_known_by_its_name(names):
    q, k = names.split()
    assert watching._tile({"D": 16, "BLOCK_D": 16, q: 128, k: 32, "num_warps": 4, "CAUSAL": True}) == (128, 32)


def test_autotuned_kernels_run_with_their_first_config():
    tuned = triton.autotune([triton.Config({"B": 4096}), triton.Config({"B": 2})], key=["n"])(row_kernel)

    def answer(x):
        x = x.contiguous()
        y = torch.empty_like(x)
        tuned[(len(x),)](x, y, x.shape[1])
        return y

    assert judge(answer, "triton_softmax").passed


# processes


@triton.jit
def far_away(x_ptr, y_ptr):
    tl.store(y_ptr + 100_000_000_000, tl.load(x_ptr))


def segfaults(x):
    y = torch.empty_like(x)
    far_away[(1,)](x, y)
    return y


@pytest.mark.parametrize("elsewhere", [False, True], ids=["fork", "fresh"])
def test_a_segmentation_fault_is_told(elsewhere, capfd):
    verdict = judge(segfaults, "triton_softmax", fresh=elsewhere)
    assert verdict.state == "error" and 'SIGSEGV, in the check "one element", rows = 1, n = 1' in verdict.message
    assert "A pointer ran far outside its tensor" in verdict.message and capfd.readouterr() == ("", "")


@triton.jit
def endless(x_ptr):
    while tl.load(x_ptr) == tl.load(x_ptr):
        pass


def never_ends(x):
    endless[(1,)](torch.zeros(1))
    return x


def test_to_be_watched_costs_no_import_of_torchs_compiler():
    code = ("import sys, flashedu.kernels, torch; from flashedu.grading.tensors.watching import watched\n"
            "with watched(): torch.empty(0)\n"
            "print(sorted({name.split('.')[1] for name in sys.modules if name.startswith('torch._dynamo')}))")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert run.stdout == "[]\n", run.stdout + run.stderr


def test_an_endless_loop_in_a_kernel_is_stopped(short_limit):
    verdict = judge(never_ends, "triton_softmax")
    assert verdict.state == "wrong" and verdict.failed == "time limit" and "a loop never ends" in verdict.message


def test_what_a_fresh_process_prints_is_shown_in_the_verdict(capfd):
    def prints(x):
        print("hello")
        return softmax(x, past=1)

    verdict = judge(prints, "triton_softmax", fresh=True)
    assert verdict.failed == "guard bands" and "It printed:\n\n  hello" in verdict.message and capfd.readouterr() == ("", "")


def test_an_answer_that_cannot_be_copied():
    lock = threading.Lock()
    verdict = judge(lambda x: lock and softmax(x), "triton_softmax", fresh=True)
    assert verdict.state == "error" and "could not be copied into a process of its own" in verdict.message


def test_a_fresh_process_that_ends_itself():
    assert in_fresh_process(os._exit, (3,), 10, interpret=True) == ("died", "exit status 3")


def test_a_fresh_process_that_sleeps_is_ended(monkeypatch):
    monkeypatch.setattr(fresh, "STARTING_S", 0.0)
    assert in_fresh_process(time.sleep, (100,), 0.2, interpret=True) == ("time limit", "")


CELLS = (
    """
    import flashedu.kernels
    import torch, triton, triton.language as tl
    ONE = tl.constexpr(1.0)
    TWICE = 2
    @triton.jit
    def biggest(x):
        return tl.max(x, axis=0)
    """,
    """
    @triton.jit
    def kernel(x_ptr, y_ptr, n, stride_m, stride_n, BLOCK: tl.constexpr):
        row, c = tl.program_id(0), tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride_m + c * stride_n, mask=c < n, other=float("-inf")).to(tl.float32)
        m = biggest(x)
        p = tl.exp(x - tl.where(m == float("-inf"), 0.0, m)) * ONE
        l = tl.sum(p, axis=0)
        tl.store(y_ptr + row * n + c, (p / tl.where(l == 0, 1.0, l)).to(y_ptr.dtype.element_ty), mask=c < n)
    def width(n):
        return TWICE * triton.next_power_of_2(n)
    def triton_softmax(x):
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        kernel[(len(x),)](x, y, x.shape[1], *x.stride(), BLOCK=width(x.shape[1]))
        return y
    """,
)
ASK = "from flashedu.grading.judging import judge; verdict = judge(triton_softmax, fresh=True)"


@pytest.fixture
def shell(monkeypatch):
    """Runs cells as a notebook does: in __main__, their source known to linecache alone."""
    interactive = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell.instance()
    monkeypatch.setitem(sys.modules, "__main__", interactive.user_module)

    def run(*cells):
        for cell in cells:
            interactive.run_cell(textwrap.dedent(cell)).raise_error()
        return interactive.user_ns

    yield run
    type(interactive).clear_instance()


def test_an_answer_from_a_notebook_in_a_fresh_process(shell):
    assert shell(*CELLS, ASK)["verdict"].passed
    verdict = shell(CELLS[1].replace("return TWICE *", "return 1.5 *"), ASK)["verdict"]
    assert verdict.state == "error" and "in kernel:  row, c = tl.program_id(0), tl.arange(0, BLOCK)" in verdict.message


@pytest.mark.parametrize("second", [Verdict("flash_forward", "error", 0.0, "It died."), Verdict("flash_forward", "passed", 1.0, "Exact.", (("type", "passed"), ("GPU: float32", "passed")))])
def test_interpreter_and_gpu_make_one_verdict(second):
    """Both halves of a check where there is a GPU; a second half that failed leaves no full score."""
    first = Verdict("flash_forward", "passed", 1.0, "Exact.", (("type", "passed"), ("one key", "passed")))
    both = judging._both(first, second, ("type", "GPU: float32"))
    assert both.state == second.state and (both.score == 1.0) == second.passed
    assert dict(both.checks) == {"type": "passed", "one key": "passed", "GPU: float32": "passed" if second.passed else "not run"}
    assert "In the interpreter: Exact." in both.message and f"On the GPU: {second.message}" in both.message


# where there is no Triton, or where it came too early


def test_without_triton_it_is_skipped(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "triton" else find_spec(name, *rest))
    verdict = judge(softmax, "triton_softmax")
    assert verdict.state == "skipped" and verdict.score == 0.0 and not verdict.passed and "Triton is not installed here" in verdict.message


def test_triton_before_the_switch_is_told():
    """In a process of its own: here the switch has been thrown."""
    code = (
        "import triton\nfrom flashedu.grading.judging import judge\nfrom flashedu.grading.exercises import EXERCISES\n"
        "verdict = judge(EXERCISES['triton_softmax'].reference)\nassert verdict.state == 'error' and not verdict.passed\nprint(verdict.message)"
    )
    import subprocess

    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100)
    if place.here().gpu:
        pytest.skip("there is a GPU, so that no switch is needed")
    assert "import flashedu.kernels` before `import triton`" in result.stdout, result.stderr


@pytest.mark.parametrize("triton_version, numpy_version, skipped", [("3.6.0", "2.4.6", True), ("3.6.0", "2.3.5", False), ("3.7.1", "2.5.0", False)])
def test_an_interpreter_that_cannot_work_is_said(triton_version, numpy_version, skipped, monkeypatch):
    monkeypatch.setattr(triton, "__version__", triton_version)
    monkeypatch.setattr(np, "__version__", numpy_version)
    trouble = place.here().trouble
    assert (trouble is not None and trouble[0] == "skipped" and "install triton 3.7 or numpy 2.3" in trouble[2]) == skipped
