"""On a GPU: the same bits in every run, with programs enough to fill it."""
import importlib.util

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("there is no Triton on this system", allow_module_level=True)

import torch
from problems import Problem, solve

from flashedu.kernels import DEVICE, backward, forward, tiles

REPEATS = 50
SHAPE = (2, 16, 8, 1999, 1999)


@pytest.mark.parametrize("warps", [None, 8])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_same_bits(dtype, d, causal, warps, monkeypatch):
    """With the table's tiles, and with 8 warps, which is two groups that a Hopper GPU must hold together."""
    if warps:
        for module in (forward, backward):
            monkeypatch.setattr(module, "pick", lambda table, x: tiles.pick(table, x)._replace(num_warps=warps))
    problem = Problem((*SHAPE, d), dtype, causal)
    tensors = problem.tensors(DEVICE)
    first = solve(*tensors, problem)
    assert all(x.isfinite().all() for x in first.values())
    for repeat in range(1, REPEATS):
        again = solve(*tensors, problem)
        differing = [name for name in first if not torch.equal(first[name], again[name])]
        assert not differing, f"run {repeat}: {', '.join(differing)}"
