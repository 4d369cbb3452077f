"""The Hopper kernel where there is no Hopper GPU: what it compiles to, who works on what, and what is refused."""
import importlib.util

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("there is no Triton on this system", allow_module_level=True)

from importlib.metadata import version

import torch

from flashedu.kernels import DEVICE, compiled, flash_attention
from flashedu.kernels.hopper import ROWS
from flashedu.kernels.hopper_launch import TILES, descriptor, refusal, schedule

SERIALISED = tuple(f"C751{i}" for i in range(6))
NEWER_PTXAS = version("triton").startswith("3.9")  # it stores some registers where the others' keep all


# ---- compiled

@pytest.mark.parametrize("n", [4096, 1000], ids=["whole", "ragged"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("head_dim", TILES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_compiled_for_hopper(dtype, head_dim, causal, n):
    found = compiled.hopper(head_dim, dtype, causal, n)
    print(found)
    assert found.fits and found.matrix_instruction == "wgmma.mma_async"
    assert found.counts["cp.async.bulk.tensor"] and found.counts["setmaxnreg"]
    assert [warning for warning in found.warnings if warning.startswith(SERIALISED)] == []
    tight = head_dim == 256 or (head_dim == 64 and (causal or n % TILES[64].block_k))  # has a mask, and three consumers
    assert found.stack_bytes <= (160 if NEWER_PTXAS and tight else 0)


@pytest.mark.parametrize("n", [4096, 1000], ids=["whole", "ragged"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_compiled_on_fp8(causal, n):
    found = compiled.hopper_fp8(causal, n)
    print(found)
    assert found.fits and found.matrix_instruction == "wgmma.mma_async"
    assert found.counts["cp.async.bulk.tensor"] and found.counts["setmaxnreg"]
    assert [warning for warning in found.warnings if warning.startswith(SERIALISED)] == []
    assert found.stack_bytes <= (400 if NEWER_PTXAS and causal else 0)


def test_what_is_not_compiled():
    for arguments in ((96,), (128, "float32")):
        with pytest.raises(ValueError, match="the Hopper kernel takes head_dim 64, 128 and 256 in 16 bits, but they are"):
            compiled.hopper(*arguments)


# ---- who works on what

def work(table):
    """{program: its numbers in order}"""
    counts, *rows = table.tolist()
    return {program: [row[program] for row in rows[:count]] for program, count in enumerate(counts)}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads, n_q, n_k, block_q, programs", [(16, 4096, 4096, 128, 132), (6, 1000, 700, 192, 7), (1, 1, 1, 128, 1), (3, 300, 1000, 128, 5), (64, 4096, 4096, 192, 132)])
def test_every_tile_is_given_out_once(heads, n_q, n_k, block_q, programs, causal):
    table = schedule(heads, 1 << 20, n_q, n_k, block_q, 128, causal, programs, "cpu")
    assert table.dtype == torch.int32 and table.shape[1] == programs
    given = [number for numbers in work(table).values() for number in numbers]
    assert sorted(given) == list(range(heads * -(-n_q // block_q)))


@pytest.mark.parametrize("heads, n, d, block_q", [(32, 16384, 64, 192), (128, 4096, 64, 192), (16, 16384, 128, 128), (64, 4096, 128, 128), (8, 16384, 256, 128)])
def test_causal_work_is_even(heads, n, d, block_q):
    """The program that has most is within 2 percent of the mean."""
    tiles = -(-n // block_q)
    table = schedule(heads, 4 * n * d, n, n, block_q, 128, True, 132, "cpu")
    loads = [sum(-(-min(n, (number % tiles + 1) * block_q) // 128) + 2 for number in numbers) for numbers in work(table).values()]
    assert max(loads) < 1.02 * sum(loads) / 132


def test_causal_sections_stay_in_the_cache_and_begin_with_the_longest():
    tiles = 32
    table = schedule(16, 4 << 20, 4096, 4096, 128, 128, True, 4, "cpu")  # four heads fill 16 MiB
    for numbers in work(table).values():
        sections = [number // tiles // 4 for number in numbers]
        assert sections == sorted(sections)
        for section in set(sections):
            own = [number % tiles for number, s in zip(numbers, sections) if s == section]
            assert own == sorted(own, reverse=True)


# ---- what it takes

def tensor(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("x", [
    tensor(2, 4, 100, 64), tensor(2, 100, 4, 128).transpose(1, 2), tensor(2, 100, 3, 4, 256)[:, :, 1].transpose(1, 2),
    tensor(1, 1, 1, 64), tensor(1, 5, 1, 64)[:, ::2], tensor(2, 4, 100, 128, dtype=torch.float16),
], ids=["plain", "bnhd", "packed", "one", "every second head", "float16"])
def test_taken(x):
    assert refusal(x, x, x) is None
    found = descriptor(x, ROWS.value)
    assert list(found.shape) == list(x.shape) and found.block_shape == [1, 1, 64, x.shape[-1]]
    assert all(ours == theirs for size, ours, theirs in zip(x.shape, found.strides, x.stride()) if size > 1)


@pytest.mark.parametrize("x, words", [
    (tensor(1, 2, 9, 80), "takes head dimensions 64, 128, 256, but it is 80"),
    (tensor(1, 2, 9, 64, dtype=torch.float32), "takes float16 and bfloat16, but q is float32"),
    (tensor(1, 2, 64, 9).transpose(2, 3), "are contiguous, but q has strides"),
    (tensor(1, 2, 9, 68)[..., :64], "begin at multiples of 16 bytes"),
    (tensor(1, 1, 9, 64).expand(1, 2, 9, 64), "begin at multiples of 16 bytes"),
], ids=["D", "dtype", "columns", "misaligned", "expanded"])
def test_refused(x, words):
    assert words in refusal(x, x, x)


@pytest.mark.skipif(DEVICE == "cuda" and torch.cuda.get_device_capability() == (9, 0), reason="there is a Hopper GPU here")
def test_without_a_hopper_gpu():
    q = torch.randn(1, 1, 4, 64, dtype=torch.float16, device=DEVICE)
    with pytest.raises(ValueError, match=r'^backend "hopper" needs a GPU of compute capability 9.0 \(Hopper\) and tensors on it; "triton" takes what it refuses.$'):
        flash_attention(q, q, q, backend="hopper")
