"""Split-KV attention: exact for every length, group, mask and number of parts, and its parts fill a GPU."""
import importlib.util
from pathlib import Path

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("there is no Triton on this system", allow_module_level=True)

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import HUGE, REFUSED, Problem, arrays, far_apart, forward_ratio, refused

from flashedu.exactness import attention_bounds
from flashedu.hardware import GPUS
from flashedu.kernels import DEVICE, compiled, decode
from flashedu.kernels.decode import decode_attention
from flashedu.kernels.tiles import DECODE, INTERPRETED, SHARED_BYTES, Tile
from flashedu.reference import split_kv_attention
from flashedu.splits import PROGRAMS, splits_for

SMALL = Tile(16, 16, 4, 1)  # so that few keys are several tiles


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(decode, "pick", lambda table, x: SMALL)


def worst(problem, splits=None):
    def forward(q, k, v, causal, scale):
        return decode_attention(q, k, v, causal, scale, splits)

    return forward_ratio(forward, problem, DEVICE, decode.pick(DECODE, torch.empty(problem.shape[-1])).block_k)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_q, n_k", [(1, 1), (1, 15), (1, 16), (1, 17), (1, 129), (2, 65), (3, 1), (4, 33), (5, 32), (16, 70), (16, 16), (17, 15), (20, 40)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_any_length(dtype, n_q, n_k, causal):
    assert worst(Problem((1, 2, 1, n_q, n_k, 16), dtype, causal)) <= 1


@pytest.mark.parametrize("splits", [1, 2, 3, 5, 7, 8, 63, 64, 65, 130])
@pytest.mark.parametrize("causal", [False, True])
def test_any_number_of_parts(splits, causal):
    """Five tiles: parts of unequal size, of one tile, and without a key; more of them than are merged at a time."""
    assert worst(Problem((1, 2, 1, 3, 70, 8), causal=causal), splits) <= 1


@pytest.mark.parametrize("drift", [0, 3, -3])
@pytest.mark.parametrize("merged", [1, 2, 4, 8])
def test_parts_are_merged_some_at_a_time(merged, drift, monkeypatch):
    """Also where the later parts have the larger maxima, or the smaller ones."""
    monkeypatch.setattr(decode, "MERGED", merged)
    q, k, v, _ = Problem((1, 2, 1, 2, 100, 8)).tensors(DEVICE)
    q[..., 0], k[..., 0] = 8**0.5, drift * torch.arange(100.0, device=DEVICE) / 16
    found = decode_attention(q, k, v, splits=7)
    assert max(bound.ratio(arrays(x)[0]) for bound, x in zip(attention_bounds(*arrays(q, k, v), block_k=SMALL.block_k), found, strict=True)) <= 1


@pytest.mark.parametrize("d", [1, 8, 16, 40, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_any_head_dimension(dtype, d):
    assert worst(Problem((1, 2, 1, 2, 35, d), dtype, causal=True, layout="padded"), 2) <= 1


@pytest.mark.parametrize("n_q", [1, 3])
@pytest.mark.parametrize("heads, kv_heads", [(1, 1), (2, 2), (4, 2), (4, 1), (6, 2), (9, 3)])
def test_batches_and_groups(heads, kv_heads, n_q):
    assert worst(Problem((2, heads, kv_heads, n_q, 33, 8), causal=True), 2) <= 1


@pytest.mark.parametrize("heads, n_q", [(1, 40), (5, 7), (20, 1), (33, 1)])
@pytest.mark.parametrize("causal", [False, True])
def test_more_rows_than_a_tile_has(causal, heads, n_q):
    assert worst(Problem((1, heads, 1, n_q, 50, 8), causal=causal), 3) <= 1


@pytest.mark.parametrize("layout", ["plain", "bnhd", "packed", "padded", "transposed", "expanded"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_any_strides(dtype, layout):
    assert worst(Problem((2, 4, 2, 3, 37, 8), dtype, True, layout), 2) <= 1


@pytest.mark.parametrize("magnitude, offset, scale", [(8, 0, None), (1, 30, None), (100, 0, None), (1, 0, 0.05), (1, 0, 2)])
def test_any_magnitude(magnitude, offset, scale):
    assert worst(Problem((1, 2, 1, 2, 70, 16), magnitude=magnitude, offset=offset, scale=scale), 4) <= 1


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    n_q=st.integers(1, 20), n_k=st.integers(1, 90), d=st.integers(1, 33), kv_heads=st.integers(1, 2), group=st.integers(1, 5), causal=st.booleans(),
    dtype=st.sampled_from(["float32", "float16"]), splits=st.integers(1, 9), magnitude=st.sampled_from([0.1, 1, 8]), seed=st.integers(0, 99),
)
def test_random_problems(n_q, n_k, d, kv_heads, group, causal, dtype, splits, magnitude, seed):
    assert worst(Problem((1, group * kv_heads, kv_heads, n_q, n_k, d), dtype, causal, magnitude=magnitude, seed=seed), splits) <= 1


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("n_q, n_k", [(9, 5), (20, 1), (16, 15)])
def test_rows_that_see_no_key(n_q, n_k, splits):
    q, k, v, _ = Problem((1, 2, 1, n_q, n_k, 8)).tensors(DEVICE)
    o, lse = decode_attention(q, k, v, causal=True, splits=splits)
    blind = n_q - n_k
    assert (o[:, :, :blind] == 0).all() and (lse[:, :, :blind] == -torch.inf).all()
    assert o.isfinite().all() and lse[:, :, blind:].isfinite().all()
    torch.testing.assert_close(o[:, :, blind], v[:, :, 0].expand(1, 2, 8), rtol=0, atol=0)  # the first row that sees a key sees one alone


@pytest.mark.parametrize("splits", [1, 2, 4, 9])
def test_equal_scores_give_the_mean(splits):
    """Whole numbers, and 1/64 of their sum. The parts' weights are exp of their lse, and are rounded."""
    v = torch.arange(64.0, device=DEVICE).reshape(1, 1, 64, 1).expand(1, 1, 64, 16)[:, :, [*range(0, 64, 2), *range(1, 64, 2)]]
    q, k = torch.ones_like(v[:, :, :2]), torch.zeros_like(v)
    o, lse = decode_attention(q, k, v, splits=splits)
    assert splits > 1 or (o == 31.5).all()
    assert max(bound.ratio(arrays(x)[0]) for bound, x in zip(attention_bounds(*arrays(q, k, v)), (o, lse), strict=True)) <= 1


def test_it_is_the_reference_s_algorithm():
    """The same parts, merged: what is left of the difference is rounding."""
    q, k, v, _ = Problem((1, 1, 1, 2, 64, 8)).tensors(DEVICE)
    kernel, numpy = decode_attention(q, k, v, splits=4), split_kv_attention(*(x[0, 0] for x in arrays(q, k, v)), 4)
    for bound, x, y in zip(attention_bounds(*arrays(q, k, v)), kernel, numpy, strict=True):
        assert bound.ratio(arrays(x)[0]) <= 1 and bound.ratio(y[None, None]) <= 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["k", "v"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, in the interpreter, about NaN and inf
def test_nan_stays_in_its_head(name, value):
    """Also one key's, which is in one part: every query of its head sees it, and no other's."""
    q, k, v, _ = Problem((2, 4, 2, 3, 50, 8)).tensors(DEVICE)
    clean = decode_attention(q, k, v, splits=3)
    dict(k=k, v=v)[name][1, 0, 20] = value
    touched = decode_attention(q, k, v, splits=3)
    elsewhere = torch.ones(2, 4, dtype=torch.bool)
    elsewhere[1, :2] = False
    assert all(torch.equal(x[elsewhere], y[elsewhere]) for x, y in zip(clean, touched, strict=True))
    assert not touched[0][1, :2].isfinite().any()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nan_stays_in_its_row_of_queries():
    q, k, v, _ = Problem((1, 4, 2, 3, 50, 8)).tensors(DEVICE)
    clean = decode_attention(q, k, v, splits=3)
    q[0, 1, 2] = float("nan")
    touched = decode_attention(q, k, v, splits=3)
    elsewhere = torch.ones(1, 4, 3, dtype=torch.bool)
    elsewhere[0, 1, 2] = False
    assert all(torch.equal(x[elsewhere], y[elsewhere]) for x, y in zip(clean, touched, strict=True))
    assert touched[0][0, 1, 2].isnan().all() and touched[1][0, 1, 2].isnan()


def test_keys_behind_the_end_of_the_cache_are_not_read():
    """A cache has room for tokens to come: what lies there is NaN."""
    q, k, v, _ = Problem((1, 2, 1, 1, 37, 8)).tensors(DEVICE)
    cache = [torch.full((1, 1, 100, 8), float("nan"), device=DEVICE) for _ in "kv"]
    for whole, x in zip(cache, (k, v)):
        whole[:, :, :37] = x
    found = decode_attention(q, *(whole[:, :, :37] for whole in cache), splits=2)
    assert all(map(torch.equal, found, decode_attention(q, k, v, splits=2)))


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU tests/gpu/test_decode.py does this")
@pytest.mark.parametrize("axis, apart, shape", [
    (0, 2**30 + 8, (3, 2, 1, 2, 40, 8)), (1, 2**30 + 8, (1, 3, 3, 2, 40, 8)), (2, 2**26 + 8, (1, 2, 1, 3, 40, 8)), (3, 2**28 + 8, (1, 2, 1, 3, 20, 9)),
], ids=["batch", "heads", "rows", "columns"])
def test_offsets_beyond_32_bits(axis, apart, shape, tmp_path):
    """In a file with holes. A wrong offset ends the process."""
    def storage(length):
        return torch.from_numpy(np.memmap(tmp_path / "sparse", np.float16, "w+", shape=(length,)))

    near = Problem(shape, "float16").tensors(DEVICE)
    found = decode_attention(*far_apart(near, axis, apart, storage)[:3], causal=True, splits=2)
    assert (tmp_path / "sparse").stat().st_blocks * 512 < 50e6 < 2 * HUGE
    bounds = attention_bounds(*arrays(*near[:3]), True, block_k=SMALL.block_k, dtype="float16")
    assert max(bound.ratio(arrays(x)[0]) for bound, x in zip(bounds, found, strict=True)) <= 1


# ---- how many parts


def test_one_long_sequence_fills_an_h200_in_one_wave():
    sms = GPUS["H200"].sms
    splits = splits_for(8, 131_072 // DECODE[2, 128][0].block_k, sms)
    assert 0.95 * PROGRAMS * sms <= 8 * splits <= PROGRAMS * sms
    assert splits_for(8 * 16, 16, sms) == splits_for(8 * 64, 2048, sms) == 1  # many sequences fill it without


@pytest.mark.skipif(DEVICE != "cpu", reason="only in the interpreter is the multiprocessor one")
def test_the_default_number_of_parts_is_used(monkeypatch):
    asked = []
    monkeypatch.setattr(decode, "splits_for", lambda *arguments: asked.append(arguments) or 3)
    q, k, v, _ = Problem((2, 6, 3, 2, 50, 8)).tensors(DEVICE)
    found = decode_attention(q, k, v)
    assert asked == [(6, 4, 1)]
    assert all(map(torch.equal, found, decode_attention(q, k, v, splits=3)))
    assert not torch.equal(found[0], decode_attention(q, k, v, splits=2)[0])  # other parts, other roundings


@pytest.mark.parametrize("splits, error", [(0, ValueError), (-1, ValueError), (2.0, TypeError), (True, TypeError), ("2", TypeError), (2**16 + 1, ValueError), (10**12, ValueError), (10**400, ValueError)])
def test_splits_refused(splits, error):
    q, k, v, _ = Problem((1, 1, 1, 1, 5, 8)).tensors(DEVICE)
    with pytest.raises(error, match=r"^splits must be .*\.$"):
        decode_attention(q, k, v, splits=splits)


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU multiplies bfloat16")
def test_the_interpreter_is_not_asked_for_bfloat16():
    q, k, v, _ = Problem((1, 1, 1, 1, 5, 8), "bfloat16").tensors(DEVICE)
    with pytest.raises(TypeError, match=r"^Triton's interpreter cannot multiply bfloat16.*\.$"):
        decode_attention(q, k, v)


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what):
    refused(decode_attention, what)


# ---- tiles


def test_the_table_is_complete():
    assert set(DECODE) == {(itemsize, d) for itemsize in (2, 4) for d in (64, 128, 256)}
    for row in DECODE.values():
        assert len(row) == len(SHARED_BYTES)
        assert all(size >= 16 and size & (size - 1) == 0 for tile in row for size in tile[:2])


@pytest.mark.parametrize("tile", [*sorted({tile[:2] for row in DECODE.values() for tile in row}), INTERPRETED[:2]])
def test_every_tile(tile, monkeypatch):
    monkeypatch.setattr(decode, "pick", lambda table, x: Tile(*tile, 4, 1))
    assert max(worst(Problem((1, 4, 1, n_q, n_k, 8), causal=True), 2) for n_q, n_k in ((1, 3 * tile[1] + 5), (9, 2 * tile[1]), (3, tile[1] - 1))) <= 1


SOURCE = Path(decode.__file__).read_text(encoding="utf-8")
MULTIPROCESSOR_BYTES = {80: 167_936, 90: 233_472, 100: 233_472}  # of shared memory; a block needs 1,024 beside its own
CHOSEN = [  # capability, dtype, head_dim, queries, causal
    (80, "bfloat16", 128, 1, False), (80, "float16", 64, 4, True), (90, "bfloat16", 128, 1, False), (90, "bfloat16", 128, 16, True),
    (90, "float16", 64, 1, False), (90, "bfloat16", 256, 1, False), (90, "float32", 128, 1, False), (100, "bfloat16", 128, 1, False), (100, "bfloat16", 64, 4, True),
]


@pytest.mark.parametrize("capability, dtype, head_dim, n_q, causal", CHOSEN)
def test_compiled(capability, dtype, head_dim, n_q, causal):
    q, kv = (torch.empty((1, heads, n, head_dim), dtype=getattr(torch, dtype), device="meta") for heads, n in ((32, n_q), (8, 131_072)))
    kernel, merge = compiled.compile_source(SOURCE, "decode_attention", [q, kv, kv, causal], capability)
    print(kernel, merge, sep="\n")
    assert (kernel.kernel, merge.kernel) == ("decode_kernel", "merge_kernel")
    rows = kernel.constants["BLOCK_Q"]
    assert rows == min(max(16, 4 * n_q), DECODE[2 if "16" in dtype else 4, head_dim][0].block_q)
    assert PROGRAMS * (kernel.shared_bytes + 1024) <= MULTIPROCESSOR_BYTES[capability]
    assert PROGRAMS * kernel.num_warps * 32 * kernel.registers <= 65_536
    assert kernel.matrix_instruction == ("fma" if dtype == "float32" else "mma.sync" if rows < 64 or capability == 80 else "wgmma.mma_async")
    assert kernel.warnings == merge.warnings == () and merge.stack_bytes <= 16
    assert kernel.stack_bytes <= (64 if dtype == "float32" else 0), f"{kernel.spill_bytes} bytes spilled"
    if dtype != "float32":
        assert kernel.counts["cp.async"] >= 32  # tiles of keys and values are on their way while one is computed with


@pytest.mark.parametrize("n_q, n_k, splits", [(1, 1, 1), (1, 1, 2), (1, 17, 1), (3, 1000, 1), (3, 2**31 - 1, 16)])
def test_lengths_that_are_compiled_as_constants(n_q, n_k, splits):
    """Triton makes another program for a 1."""
    q, kv = (torch.empty((1, heads, n, 64), dtype=torch.float16, device="meta") for heads, n in ((2, n_q), (2, n_k)))
    assert len(compiled.compile_source(SOURCE, "decode_attention", [q, kv, kv, True, None, splits], 90)) == (2 if splits > 1 else 1)
