"""NaN and inf stay where they are: in their head and, in the results of queries, in their row."""
import functools
import importlib.util

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("there is no Triton on this system", allow_module_level=True)

import torch
from problems import Problem, solve

from flashedu.kernels import DEVICE
from flashedu.kernels.tiles import DKDV, DQ, FORWARD, pick

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, in the interpreter, about NaN and inf
SHAPE = (2, 4, 2, 20, 17, 16)
BATCH, HEAD, KV_HEAD, ROW = 1, 2, 1, 13  # heads 2 and 3 share key head 1
VALUES = [float("nan"), float("inf"), float("-inf")]


@functools.cache
def answer(name=None, index=None, value=None):
    """The answer to a problem, with one row, or one head, of q, k, v or do set to a value."""
    problem = Problem(SHAPE)
    tensors = dict(zip(("q", "k", "v", "do"), problem.tensors(DEVICE), strict=True))
    if name:
        tensors[name][index] = value
    return solve(*tensors.values(), problem)


def same_elsewhere(clean, touched, name, index):
    """Whether a result has the same bits everywhere but at an index."""
    elsewhere = torch.ones(clean[name].shape[:3], dtype=torch.bool)
    elsewhere[index] = False
    return torch.equal(clean[name][elsewhere], touched[name][elsewhere])


@pytest.mark.parametrize("name", ["q", "do"])
@pytest.mark.parametrize("value", VALUES)
def test_in_one_row_of_queries(value, name):
    row = (BATCH, HEAD, ROW)
    clean, touched = answer(), answer(name, row, value)
    for result in ("o", "lse", "dq"):
        assert same_elsewhere(clean, touched, result, row), result
    for result in ("dk", "dv"):  # sums over the rows of their own heads, and of no others
        assert same_elsewhere(clean, touched, result, (BATCH, KV_HEAD)), result
    assert not touched["dq"][row].isfinite().all()
    assert touched["o"][row].isfinite().all() == (name == "do")


@pytest.mark.parametrize("name", ["k", "v"])
@pytest.mark.parametrize("value", VALUES)
def test_in_one_head_of_keys(value, name):
    head, queries = (BATCH, KV_HEAD), (BATCH, slice(2 * KV_HEAD, 2 * KV_HEAD + 2))
    clean, touched = answer(), answer(name, head, value)
    for result, index in (("o", queries), ("lse", queries), ("dq", queries), ("dk", head), ("dv", head)):
        assert same_elsewhere(clean, touched, result, index), result
    assert not touched["o"][queries].isfinite().any()


def a_tile(q):
    """Rows that end a tile of queries and of keys in every kernel."""
    picked = [pick(table, q) for table in (FORWARD, DQ, DKDV)]
    return max(max(tile.block_q, tile.block_k) for tile in picked)


@pytest.mark.parametrize("name", ["k", "v", "q", "do"])
def test_tiles_above_the_diagonal_are_never_loaded(name):
    """Query i sees key j when j <= i + Nk - Nq: whole tiles that hold no such pair are skipped, not masked. So NaN in the keys
    after a tile's end does not reach the queries before it, nor NaN in the queries before it the keys after."""
    tile = a_tile(torch.empty((1, 16), device=DEVICE))
    problem = Problem((1, 1, 1, 2 * tile + 7, 2 * tile + 7, 16), causal=True)
    tensors = dict(zip(("q", "k", "v", "do"), problem.tensors(DEVICE), strict=True))
    clean = solve(*tensors.values(), problem)
    early, late = slice(None, tile), slice(tile, None)
    of_keys = name in ("k", "v")
    tensors[name][:, :, late if of_keys else early] = float("nan")
    touched = solve(*tensors.values(), problem)
    for result in ("o", "lse", "dq") if of_keys else ("dk", "dv"):
        kept, lost = (early, late) if of_keys else (late, early)
        assert torch.equal(clean[result][:, :, kept], touched[result][:, :, kept]), result
        if (name, result) not in (("v", "lse"), ("do", "dv")):
            assert touched[result][:, :, lost].isnan().all(), result
