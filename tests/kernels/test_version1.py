"""The kernel in version 1's loop order: exact for every length, width, mask and grouping; and it does visit tiles in that order."""
import importlib.util
import itertools
from pathlib import Path

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("there is no Triton on this system", allow_module_level=True)

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import REFUSED, Problem, arrays, forward_ratio, refused

from flashedu.cost import tile_counts
from flashedu.exactness import attention_bounds
from flashedu.kernels import DEVICE, compiled, version1
from flashedu.kernels.tiles import FORWARD, Tile
from flashedu.kernels.version1 import version1_forward

SMALL = Tile(32, 16, 4, 1)  # so that few rows are several tiles, and a tile of queries is not one of keys


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(version1, "pick", lambda table, x: SMALL)


def worst(problem):
    return forward_ratio(version1_forward, problem, DEVICE, version1.pick(FORWARD, torch.empty(problem.shape[-1])).block_k)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_q, n_k", [(1, 1), (1, 70), (70, 1), (15, 17), (33, 31), (64, 48), (65, 33), (33, 65)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_any_length(dtype, n_q, n_k, causal):
    assert worst(Problem((1, 1, 1, n_q, n_k, 16), dtype, causal)) <= 1


@pytest.mark.parametrize("d", [1, 8, 16, 40, 64, 80, 128, 256])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_any_head_dimension(dtype, d):
    assert worst(Problem((1, 1, 1, 17, 35, d), dtype, causal=True, layout="padded")) <= 1


@pytest.mark.parametrize("heads, kv_heads", [(1, 1), (2, 2), (4, 2), (4, 1)])
def test_batches_and_groups(heads, kv_heads):
    assert worst(Problem((2, heads, kv_heads, 15, 33, 8))) <= 1


@pytest.mark.parametrize("magnitude, offset, scale", [(8, 0, None), (1, 30, None), (100, 0, None), (1, 0, 0.05), (1, 0, 2)])
def test_any_magnitude(magnitude, offset, scale):
    assert worst(Problem((1, 1, 1, 40, 70, 16), magnitude=magnitude, offset=offset, scale=scale)) <= 1


@pytest.mark.parametrize("tile", [Tile(16, 16, 4, 1), Tile(16, 64, 4, 1), Tile(64, 16, 4, 1), Tile(64, 64, 4, 1)])
def test_any_tile(tile, monkeypatch):
    monkeypatch.setattr(version1, "pick", lambda table, x: tile)
    assert max(worst(Problem((1, 1, 1, n_q, n_k, 16), "float32", causal)) for causal in (False, True) for n_q, n_k in ((70, 70), (70, 41), (41, 70))) <= 1


@pytest.mark.parametrize("n_q, n_k", [(70, 33), (129, 1), (65, 64)])
def test_rows_that_see_no_key(n_q, n_k):
    q, k, v, _ = Problem((1, 1, 1, n_q, n_k, 8)).tensors(DEVICE)
    o, lse = version1_forward(q, k, v, causal=True)
    blind = n_q - n_k
    assert (o[:, :, :blind] == 0).all() and (lse[:, :, :blind] == -torch.inf).all()
    assert o.isfinite().all() and lse[:, :, blind:].isfinite().all()
    torch.testing.assert_close(o[:, :, blind], v[:, :, 0], rtol=0, atol=0)  # the first row that sees a key sees one alone


def test_equal_scores_give_the_mean():
    """Whole numbers, and their means over 16, 32 and 64 keys: every step is exact."""
    v = torch.arange(64.0, device=DEVICE).reshape(1, 1, 64, 1).expand(1, 1, 64, 16)[:, :, [*range(0, 64, 2), *range(1, 64, 2)]]
    o, lse = version1_forward(torch.ones_like(v), torch.zeros_like(v), v)
    assert (o == 31.5).all()
    assert attention_bounds(*arrays(torch.ones_like(v), torch.zeros_like(v), v))[1].ratio(arrays(lse)[0]) <= 1


def test_what_is_not_finite_stays_in_its_head():
    q, k, v, _ = Problem((1, 4, 2, 40, 40, 16), causal=True).tensors(DEVICE)
    right, _ = version1_forward(q, k, v, causal=True)
    k[:, 0, 5] = torch.nan
    o, _ = version1_forward(q, k, v, causal=True)
    assert o[:, :2, 39].isnan().all() and torch.equal(o[:, 2:], right[:, 2:])


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    n_q=st.integers(1, 70), n_k=st.integers(1, 70), d=st.integers(1, 33), causal=st.booleans(), dtype=st.sampled_from(["float32", "float16"]),
    layout=st.sampled_from(["plain", "bnhd", "packed", "padded", "transposed", "expanded"]), magnitude=st.sampled_from([0.1, 1, 8]), seed=st.integers(0, 99),
)
def test_random_problems(n_q, n_k, d, causal, dtype, layout, magnitude, seed):
    assert worst(Problem((1, 2, 1, n_q, n_k, d), dtype, causal, layout, magnitude, seed=seed)) <= 1


@pytest.mark.skipif(DEVICE != "cpu", reason="only in the interpreter can loads be watched")
@pytest.mark.parametrize("n_q, n_k, causal", [(100, 70, False), (70, 100, True), (100, 70, True), (64, 64, True)])
def test_keys_are_outside_and_the_state_moves_for_every_visible_pair_of_tiles(n_q, n_k, causal, monkeypatch):
    loads, stores = [], []
    load, store = version1.load_tile, version1.store_tile

    def number(x):
        return int(x.handle.data.item()) if hasattr(x, "handle") else int(x)

    def load_tile(ptr, start, n, *rest):
        loads.append((number(start), number(n)))
        return load(ptr, start, n, *rest)

    def store_tile(ptr, start, n, *rest):
        stores.append(number(start))
        return store(ptr, start, n, *rest)

    monkeypatch.setattr(version1, "load_tile", load_tile)
    monkeypatch.setattr(version1, "store_tile", store_tile)
    q, k, v, _ = Problem((1, 1, 1, n_q, n_k, 16)).tensors(DEVICE)
    version1_forward(q, k, v, causal)
    full, diagonal, _ = tile_counts(n_q, n_k, SMALL.block_q, SMALL.block_k, causal)
    assert len(stores) == full + diagonal
    assert len(loads) == 2 * -(-n_k // SMALL.block_k) + 2 * (full + diagonal)  # k and v once, q and o for every pair
    key_tiles = stores.count(max(stores))  # the last tile of queries sees all keys
    assert key_tiles == -(-n_k // SMALL.block_k)
    assert sum(later <= earlier for earlier, later in itertools.pairwise(stores)) == key_tiles - 1  # rows go up for one tile of keys, then again


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what):
    refused(version1_forward, what)


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU multiplies bfloat16")
def test_the_interpreter_is_not_asked_for_bfloat16():
    q, k, v, _ = Problem((1, 1, 1, 1, 5, 8), "bfloat16").tensors(DEVICE)
    with pytest.raises(TypeError, match=r"^Triton's interpreter cannot multiply bfloat16.*\.$"):
        version1_forward(q, k, v)


CHOSEN = [(80, "bfloat16", 128, True), (90, "bfloat16", 128, True), (90, "bfloat16", 256, False), (90, "float16", 64, False), (100, "bfloat16", 64, True)]
MATRIX = {80: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma"}


@pytest.mark.parametrize("capability, dtype, head_dim, causal", CHOSEN)
def test_compiled(capability, dtype, head_dim, causal):
    q, kv = (torch.empty((1, heads, 4096, head_dim), dtype=getattr(torch, dtype), device="meta") for heads in (32, 8))
    source = Path(version1.__file__).read_text(encoding="utf-8")
    (kernel,) = compiled.compile_source(source, "version1_forward", [q, kv, kv, causal], capability)
    print(kernel)
    assert kernel.fits and kernel.matrix_instruction == MATRIX[capability] and kernel.warnings == ()
    assert kernel.counts["cp.async"] == 0  # no load runs ahead of a store
    assert kernel.stack_bytes <= (256 if head_dim == 256 else 64 if capability >= 90 else 0), f"{kernel.spill_bytes} bytes spilled"
