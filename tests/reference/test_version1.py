"""Version 1's loop order on the machine: exact attention, and the bytes of its closed form."""
import math

import numpy as np
import pytest
from heads import head
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flashedu import cost
from flashedu.exactness import attention_bounds
from flashedu.machine import Machine, SramOverflow
from flashedu.reference import fa1_on_machine

pytestmark = pytest.mark.filterwarnings("error")
random_cases = settings(max_examples=100, deadline=None, derandomize=True, database=None)


def machine_for(q, k, v, sram_bytes=10**6, itemsize=None):
    rows = np.zeros(len(q), q.dtype)
    state = {"o": np.zeros((len(q), v.shape[1]), q.dtype), "m": rows - np.inf, "l": rows}
    return Machine({"q": q, "k": k, "v": v, **state, "lse": rows + np.nan}, sram_bytes, itemsize)


def assert_exact(machine, block_k):
    q, k, v, o, lse = (machine.hbm[name] for name in ("q", "k", "v", "o", "lse"))
    o_bound, lse_bound = attention_bounds(q, k, v, block_k=block_k)
    assert o.dtype == lse.dtype == q.dtype
    assert o_bound.ratio(o) <= 1
    assert lse_bound.ratio(lse) <= 1


@random_cases
@given(st.tuples(st.integers(1, 30), st.integers(1, 40), st.integers(1, 20), st.integers(1, 20)), st.integers(1, 40),
       st.integers(1, 50), st.floats(-3, 1.5), st.sampled_from(["float32", "float64"]), st.integers(0, 10**6))
@example((1, 1, 1, 1), 1, 1, 0.0, "float32", 0)
@example((3, 40, 4, 4), 2, 1, 1.5, "float32", 0)  # forty times normalised
@example((1, 40, 4, 4), 50, 50, 1.5, "float64", 0)  # one query, tiles larger than the lengths
def test_exact_over_shapes_tiles_and_magnitudes(shape, block_q, block_k, log_scale, dtype, seed):
    q, k, v = head(*shape, dtype=dtype, scale=10**log_scale, seed=seed)
    machine = machine_for(q, k, v)
    fa1_on_machine(machine, block_q, block_k)
    assert_exact(machine, block_k)
    for name, x in (("q", q), ("k", k), ("v", v)):
        assert np.array_equal(machine.hbm[name], x)


@pytest.mark.parametrize("drift", [60.0, -60.0])
@pytest.mark.parametrize("block_k", [1, 3, 16, 20])
def test_maxima_that_move(drift, block_k):
    q, k, v = head(16, 16, 4)
    q[:, 0], k[:, 0] = 2, drift * np.arange(16)
    machine = machine_for(q, k, v)
    fa1_on_machine(machine, 5, block_k)
    assert_exact(machine, block_k)


@random_cases
@given(st.integers(1, 24), st.integers(1, 24), st.integers(1, 9), st.integers(1, 30), st.integers(1, 30), st.sampled_from([1, 2, 4]))
def test_bytes_and_sram_are_those_of_the_closed_forms(n_q, n_k, d, block_q, block_k, itemsize):
    machine = machine_for(*head(n_q, n_k, d), itemsize=itemsize)
    fa1_on_machine(machine, block_q, block_k)
    assert (machine.read_bytes, machine.written_bytes) == cost.fa1_traffic(n_q, n_k, d, block_q, block_k, itemsize)
    assert machine.sram_peak == cost.tiled_sram(min(block_q, n_q), min(block_k, n_k), d, itemsize)
    assert machine.sram_used == 0


def test_one_byte_less_than_its_sram_is_too_little():
    needed = cost.tiled_sram(4, 3, 5, 4)
    fa1_on_machine(machine_for(*head(8, 9, 5), needed), 4, 3)
    with pytest.raises(SramOverflow):
        fa1_on_machine(machine_for(*head(8, 9, 5), needed - 1), 4, 3)


def test_the_output_is_normalised_after_every_tile_of_keys():
    """What HBM holds when the first keys have been seen is attention over these keys, and not a sum to be divided later."""
    q, k, v = head(6, 8, 4)
    machine, stored = machine_for(q, k, v), []
    store = machine.store
    machine.store = lambda name, start, stop, tile: (store(name, start, stop, tile), stored.append(machine.hbm["o"].copy()))
    fa1_on_machine(machine, 3, 4)
    bound, _ = attention_bounds(q, k[:4], v[:4], block_k=4)
    assert bound.ratio(stored[5]) <= 1  # two tiles of queries, each with o, m, l
    assert bound.ratio(stored[-1]) > 1


def test_the_statistics_stay_in_hbm_beside_the_lse():
    q, k, v = head(6, 8, 4)
    machine = machine_for(q, k, v)
    fa1_on_machine(machine, 3, 4)
    m, l, lse = (machine.hbm[name] for name in ("m", "l", "lse"))
    assert np.allclose(m, (q @ k.T / math.sqrt(4)).max(axis=1), rtol=1e-6)
    assert np.array_equal(m + np.log(l), lse)
