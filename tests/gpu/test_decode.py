"""On a GPU: split-KV attention is exact, repeats its bits, keeps heads apart, and reaches keys beyond 32 bits."""
import importlib.util
import zlib

import numpy as np
import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("there is no Triton on this system", allow_module_level=True)

import torch
from problems import HUGE, Problem, arrays, far_apart, forward_ratio

from flashedu.exactness import attention_bounds
from flashedu.kernels import DEVICE, decode, tiles
from flashedu.kernels.decode import decode_attention
from flashedu.kernels.forward import flash_forward
from flashedu.kernels.tiles import DECODE, tile_for

DTYPES = ("float32", "float16", "bfloat16")
SHAPES = (  # batch, heads, kv_heads, n_q, n_k
    (1, 8, 2, 1, 4096), (2, 4, 4, 1, 1001), (1, 32, 1, 1, 777), (3, 6, 2, 4, 1025), (2, 4, 1, 7, 3), (1, 2, 1, 100, 300), (1, 1, 1, 1, 1),
)
PARTS = (None, 1, 2, 7, 40)
EDGES = (1, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 1023, 1025)
PROGRAMS = ((64, "plain", 8, 2), (128, "bnhd", 8, 8), (128, "packed", 4, 1), (80, "padded", 6, 2), (40, "transposed", 4, 2), (256, "expanded", 4, 1))  # d, layout, heads, kv_heads
RANDOM, REPEATS, LONG = 12, 50, 131_072


def ratio(problem, splits=None):
    """The larger error / bound of o and lse."""
    shared_bytes = torch.cuda.get_device_properties(0).shared_memory_per_block_optin
    block_k = tile_for(DECODE, 4 if problem.dtype == "float32" else 2, problem.shape[-1], shared_bytes).block_k
    return forward_ratio(lambda q, k, v, causal, scale: decode_attention(q, k, v, causal, scale, splits), problem, DEVICE, block_k)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [16, 40, 64, 80, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_grid(dtype, d, causal):
    problems = [(Problem((*shape, d), dtype, causal, seed=seed), PARTS[(seed + d) % len(PARTS)]) for seed, shape in enumerate(SHAPES)]
    wrong = [case for case in problems if ratio(*case) > 1]
    assert not wrong


@pytest.mark.parametrize("splits", [1, 2, 3, 33, 63, 64, 65, 100, 300])
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_number_of_parts(dtype, splits):
    assert max(ratio(Problem((1, 8, 2, n_q, 3001, 128), dtype, True), splits) for n_q in (1, 5)) <= 1


def random_problem(program, dtype, causal, i):
    d, layout, heads, kv_heads = program
    rng = np.random.default_rng(zlib.crc32(repr((program, dtype, causal, i)).encode()))
    n_q, n_k = int(rng.integers(1, 17)), int(rng.choice(EDGES) if rng.random() < 0.4 else rng.integers(1, 5001))
    problem = Problem(
        (int(rng.integers(1, 4)), heads, kv_heads, n_q, n_k, d), dtype, causal, layout, magnitude=float(rng.choice([1, 8])), offset=float(rng.choice([0, 0, 8])),
        scale=None if rng.random() < 0.5 else round(float(rng.uniform(0.02, 0.5)), 3), seed=i,
    )
    return problem, None if rng.random() < 0.5 else int(rng.integers(1, 50))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: "-".join(map(str, program)))
@pytest.mark.parametrize("dtype", DTYPES)
def test_random(dtype, program, causal):
    cases = [random_problem(program, dtype, causal, i) for i in range(RANDOM)]
    wrong = [case for case in cases if ratio(*case) > 1]
    assert not wrong


@pytest.mark.parametrize("n_q, n_k", [(1, LONG), (4, LONG - 1)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_long(dtype, n_q, n_k):
    assert ratio(Problem((1, 2, 1, n_q, n_k, 128), dtype, causal=True)) <= 1


@pytest.mark.parametrize("itemsize, d", list(DECODE))
def test_every_tile(itemsize, d, monkeypatch):
    """Also those of other GPUs, as far as this one has the shared memory for them."""
    shared_bytes = torch.cuda.get_device_properties(0).shared_memory_per_block_optin
    column = [tile for needed, tile in zip(tiles.SHARED_BYTES, DECODE[itemsize, d]) if needed <= shared_bytes]
    for tile in dict.fromkeys(column):
        monkeypatch.setattr(decode, "pick", lambda table, x, tile=tile: tile)
        for dtype in ("float32",) if itemsize == 4 else ("float16", "bfloat16"):
            assert max(ratio(Problem((1, 8, 2, n_q, 700, d), dtype, True), 3) for n_q in (1, 4, 16)) <= 1, tile


@pytest.mark.parametrize("n_q", [1, 5, 16])
@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits(dtype, d, n_q):
    q, k, v, _ = Problem((2, 16, 4, n_q, 20_001, d), dtype).tensors(DEVICE)
    first = decode_attention(q, k, v, causal=True)
    assert all(x.isfinite().all() for x in first)
    for repeat in range(1, REPEATS):
        assert all(map(torch.equal, first, decode_attention(q, k, v, causal=True))), f"run {repeat}"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("splits", [1, 8, 64])
def test_integers_exactly(splits, dtype):
    """Equal scores, parts of equal size: sums of whole numbers, which the parts' equal weights only scale."""
    v = torch.randint(-8, 9, (2, 4, 4096, 128), generator=torch.Generator(DEVICE).manual_seed(0), device=DEVICE).to(getattr(torch, dtype))
    o, lse = decode_attention(torch.ones_like(v[:, :, :1]).repeat(1, 4, 1, 1), torch.zeros_like(v), v, splits=splits)
    mean = v.double().sum(2) / 4096
    assert torch.equal(o[:, :, 0], mean.to(v.dtype).repeat_interleave(4, 1))
    torch.testing.assert_close(lse, torch.full_like(lse, float(np.log(4096))), rtol=3e-7, atol=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("n_q", [1, 16])
@pytest.mark.parametrize("d", [64, 128])
def test_nan_stays_in_its_head(d, n_q, value):
    q, k, v, _ = Problem((2, 8, 2, n_q, 1999, d), "bfloat16").tensors(DEVICE)
    clean = decode_attention(q, k, v)
    for x in (k, v):
        x[1, 0, 700] = value
    touched = decode_attention(q, k, v)
    elsewhere = torch.ones(2, 8, dtype=torch.bool, device=DEVICE)
    elsewhere[1, :4] = False
    assert all(torch.equal(x[elsewhere], y[elsewhere]) for x, y in zip(clean, touched, strict=True))
    assert not touched[0][1, :4].isfinite().any()


def test_a_cache_that_grows_is_one_program():
    """Nothing is compiled for a longer cache, whose rows lie where they lay. (A multiple of 16 is another kind of number.)"""
    room = torch.randn(2, 1, 8, 4096, 128, device=DEVICE, dtype=torch.bfloat16)
    q = torch.randn(1, 32, 1, 128, device=DEVICE, dtype=torch.bfloat16)
    for n in (1001, 1024):
        decode_attention(q, *room[:, :, :, :n], splits=5)
    kernels = decode.decode_kernel.device_caches[torch.cuda.current_device()][0]
    before = len(kernels)
    for n in (1003, 1040, 2047, 2048, 4095, 4096):
        o, _ = decode_attention(q, *room[:, :, :, :n], splits=5)
        right, _ = flash_forward(q, *room[:, :, :, :n])
        assert (o.float() - right.float()).norm() < 2**-7 * right.float().norm()
    assert len(kernels) == before > 0


def on_the_gpu(length):
    if torch.cuda.mem_get_info()[0] < 2.2 * length:
        pytest.skip(f"needs {2.2 * length / 1e9:.0f} GB of free GPU memory")
    return torch.empty(length, dtype=torch.bfloat16, device=DEVICE)


@pytest.mark.parametrize("n_q", [1, 5])
@pytest.mark.parametrize("axis, apart, shape", [
    (0, 2**30 + 8, (3, 2, 1, 1, 700, 64)), (1, 2**30 + 8, (1, 3, 3, 1, 700, 64)), (2, 2**23 + 8, (1, 2, 1, 1, 700, 40)), (2, 2**26 + 8, (1, 2, 1, 1, 70, 40)), (3, 2**26 + 8, (1, 2, 1, 1, 70, 40)),
], ids=["batch", "heads", "tiles", "rows", "columns"])
def test_offsets_beyond_32_bits(axis, apart, shape, n_q):
    near = Problem((*shape[:3], n_q, *shape[4:]), "bfloat16").tensors(DEVICE)
    found = decode_attention(*far_apart(near, axis, apart, on_the_gpu)[:3], causal=True, splits=3)
    bounds = attention_bounds(*arrays(*near[:3]), True, block_k=64, dtype="bfloat16")
    assert max(bound.ratio(arrays(x)[0]) for bound, x in zip(bounds, found, strict=True)) <= 1


def test_a_cache_beyond_32_bits():
    """More than 2**31 elements in k, and in v; the last head is where they end."""
    n, d = 2**20, 128
    kv_heads = HUGE // (n * d) + 1
    on_the_gpu(2 * kv_heads * n * d)  # skips where they do not fit
    torch.cuda.empty_cache()
    k, v = (torch.randn(1, kv_heads, n, d, device=DEVICE, dtype=torch.bfloat16) for _ in "kv")
    q = torch.randn(1, 2 * kv_heads, 1, d, device=DEVICE, dtype=torch.bfloat16)
    found = decode_attention(q, k, v, splits=40)
    for h in (0, kv_heads - 1):
        alone = decode_attention(q[:, 2 * h : 2 * h + 2], k[:, h : h + 1], v[:, h : h + 1], splits=40)
        assert all(torch.equal(x[:, 2 * h : 2 * h + 2], y) for x, y in zip(found, alone, strict=True))


def test_parts_beyond_32_bits():
    """More than 2**31 elements in the parts."""
    rows, splits, d = 2**17, 140, 128
    on_the_gpu(2 * splits * rows * d + 2**30)
    torch.cuda.empty_cache()
    q = torch.randn(rows // 64, 64, 1, d, device=DEVICE, dtype=torch.bfloat16)
    k, v = (torch.randn(rows // 64, 1, 2, d, device=DEVICE, dtype=torch.bfloat16) for _ in "kv")
    many, one = decode_attention(q, k, v, splits=splits), decode_attention(q, k, v, splits=1)
    for x, y in zip(many, one, strict=True):
        assert (x[-1].float() - y[-1].float()).norm() <= 2**-8 * y[-1].float().norm() > 0
