"""On a GPU: version 1's kernel is exact, and its threads see what the others stored: the same bits in every run."""
import importlib.util

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("there is no Triton on this system", allow_module_level=True)

import torch
from problems import Problem, forward_ratio

from flashedu.kernels import DEVICE, version1
from flashedu.kernels.tiles import FORWARD, tile_for
from flashedu.kernels.version1 import version1_forward

CASES = (("float32", 40), ("float32", 128), ("float16", 64), ("float16", 256), ("bfloat16", 80), ("bfloat16", 128), ("bfloat16", 256))  # dtype, d
SHAPES = (  # batch, heads, kv_heads, n_q, n_k: whole tiles once, then ragged ones, one tile of queries for many of keys, one of keys
    (2, 4, 2, 256, 256), (1, 4, 2, 1001, 1001), (1, 4, 2, 129, 65), (2, 4, 1, 17, 777), (1, 4, 2, 777, 17),
)
REPEATS = 30


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype, d", CASES)
def test_exact(dtype, d, causal):
    shared_bytes = torch.cuda.get_device_properties(0).shared_memory_per_block_optin
    block_k = tile_for(FORWARD, 4 if dtype == "float32" else 2, d, shared_bytes).block_k
    problems = [Problem((*shape, d), dtype, causal, seed=seed) for seed, shape in enumerate(SHAPES)]
    wrong = [problem for problem in problems if forward_ratio(version1_forward, problem, DEVICE, block_k) > 1]
    assert not wrong


@pytest.mark.parametrize("warps", [None, 4])
@pytest.mark.parametrize("n_q", [30, 1999])
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_same_bits(dtype, d, n_q, warps, monkeypatch):
    """Also with one tile of queries, which is written and read again at once."""
    if warps:
        usual = version1.pick
        monkeypatch.setattr(version1, "pick", lambda table, x: usual(table, x)._replace(num_warps=warps))
    q, k, v, _ = Problem((2, 16, 8, n_q, 1999, d), dtype).tensors(DEVICE)
    for causal in (False, True):
        first = version1_forward(q, k, v, causal)
        assert all(x.isfinite().all() for x in first)
        for repeat in range(1, REPEATS):
            assert all(torch.equal(x, y) for x, y in zip(first, version1_forward(q, k, v, causal))), f"run {repeat}"
