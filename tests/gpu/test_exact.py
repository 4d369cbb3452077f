"""On a GPU: forward, lse and gradients are exact, for every dtype, head dimension, layout and tile."""
import importlib.util
import itertools
import zlib

import numpy as np
import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("there is no Triton on this system", allow_module_level=True)

import torch
from problems import Problem, ratios, softmax_ratio

from flashedu.kernels import DEVICE, backward, forward, tiles

DTYPES = ("float32", "float16", "bfloat16")
SHAPES = (  # batch, heads, kv_heads, n_q, n_k: whole tiles once, then ragged ones, with a row of tiles that sees no key
    (2, 2, 2, 256, 256), (1, 4, 2, 1001, 1001), (1, 4, 2, 129, 65), (1, 4, 2, 65, 129), (2, 4, 1, 17, 777), (1, 4, 2, 777, 17),
)
PROGRAMS = (  # d, layout, heads, kv_heads: each is a program of its own, so they are few
    (64, "plain", 4, 2), (64, "bnhd", 4, 4), (128, "packed", 4, 2), (40, "padded", 4, 1), (80, "transposed", 2, 1), (96, "expanded", 4, 2), (256, "bnhd", 2, 2),
)
RANDOM = 8  # problems of each program, dtype and mask
EDGES = (15, 17, 63, 65, 127, 129, 255, 257)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [16, 40, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_grid(dtype, d, causal, judged):
    judged(Problem((*shape, d), dtype, causal, seed=i) for i, shape in enumerate(SHAPES))


def random_problem(program, dtype, causal, i):
    d, layout, heads, kv_heads = program
    rng = np.random.default_rng(zlib.crc32(repr((program, dtype, causal, i)).encode()))
    n_q, n_k = (int(rng.choice(EDGES) if rng.random() < 0.4 else rng.integers(2, 1101)) for _ in range(2))
    return Problem(
        (int(rng.integers(1, 3)), heads, kv_heads, n_q, n_k, d), dtype, causal, layout, magnitude=float(rng.choice([1, 8])),
        offset=float(rng.choice([0, 0, 8])), scale=None if rng.random() < 0.5 else round(float(rng.uniform(0.02, 0.5)), 3), seed=i,
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: "-".join(map(str, program)))
@pytest.mark.parametrize("dtype", DTYPES)
def test_random(dtype, program, causal, judged):
    judged(random_problem(program, dtype, causal, i) for i in range(RANDOM))


@pytest.mark.parametrize("d", [1, 8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_edges(dtype, d, judged):
    """One row, one key, one head, few columns."""
    judged(Problem((1, 1, 1, *lengths, d), dtype, causal) for lengths in ((1, 1), (1, 300), (300, 1)) for causal in (False, True))


ROWS = [(name, *row) for name in ("FORWARD", "DQ", "DKDV") for row in getattr(tiles, name)]


@pytest.mark.parametrize("name, itemsize, d", ROWS)
def test_every_tile(name, itemsize, d, judged, monkeypatch):
    """Also those of other GPUs, as far as this one has the shared memory for them."""
    shared_bytes = torch.cuda.get_device_properties(0).shared_memory_per_block_optin
    column = [tile for needed, tile in zip(tiles.SHARED_BYTES, getattr(tiles, name)[itemsize, d]) if tile and needed <= shared_bytes]
    for tile in dict.fromkeys(column):
        usual = tiles.pick
        chosen = lambda table, x, tile=tile, usual=usual: tile if table is getattr(tiles, name) else usual(table, x)  # noqa: E731
        for module in (forward, backward):
            monkeypatch.setattr(module, "pick", chosen)
        dtypes = ("float32",) if itemsize == 4 else ("float16", "bfloat16")
        judged(Problem((1, 2, 1, n_q, n_k, d), dtype, True) for dtype, (n_q, n_k) in itertools.product(dtypes, ((333, 333), (150, 215), (215, 150))))


def test_float32_is_float32_unless_tf32_is_asked_for(judged):
    """TF32 keeps 11 bits of each factor: every result breaks the bound then, and only then."""
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this GPU has no TF32")
    problem, before = Problem((1, 2, 2, 300, 300, 64)), torch.get_float32_matmul_precision()
    assert before == "highest"
    judged([problem])
    try:
        torch.set_float32_matmul_precision("high")
        coarse = ratios(problem, DEVICE)
    finally:
        torch.set_float32_matmul_precision(before)
    print(coarse)
    assert min(coarse.values()) > 1
    judged([problem])


@pytest.mark.parametrize("shape", [(1, 1), (300, 1000), (5, 50_257), (3, 2**20), (100_000, 20)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax(dtype, shape):
    x = 4 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert softmax_ratio(x.to(DEVICE, getattr(torch, dtype))) <= 1
