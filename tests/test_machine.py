"""What the machine counts is what the closed forms say, to the byte; what does not fit is refused."""
import itertools
import re

import numpy as np
import pytest

from flashedu import cost
from flashedu.exactness import attention_bounds
from flashedu.machine import Event, Machine, SramOverflow
from flashedu.reference import naive_on_machine, tiled_on_machine


def head(n_q, n_k, d, d_v=None):
    rng = np.random.default_rng([n_q, n_k, d])
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in ((n_q, d), (n_k, d), (n_k, d_v or d)))


def machine_for(n_q, n_k, d, sram_bytes=10**6, itemsize=None):
    return Machine.for_attention(*head(n_q, n_k, d), sram_bytes, itemsize)


SHAPES = [(1, 1, 1), (8, 8, 4), (7, 7, 3), (5, 13, 4), (13, 5, 4), (1, 9, 2), (9, 1, 2), (16, 12, 5)]
BLOCKS = [(1, 1), (2, 3), (4, 4), (5, 2), (3, 16), (16, 3), (20, 20)]
GRID = list(itertools.product(SHAPES, BLOCKS, (False, True), (1, 2, 4)))


@pytest.mark.parametrize("shape, blocks, causal, itemsize", GRID)
def test_tiled_moves_exactly_what_cost_says(shape, blocks, causal, itemsize):
    (n_q, n_k, d), (block_q, block_k) = shape, blocks
    machine = machine_for(*shape, itemsize=itemsize)
    tiled_on_machine(machine, block_q, block_k, causal)
    assert (machine.read_bytes, machine.written_bytes) == \
        cost.tiled_traffic(n_q, n_k, d, block_q, block_k, itemsize, causal)
    assert machine.sram_used == 0
    rows, keys = min(block_q, n_q), min(block_k, n_k)  # a tile is never larger than the array
    assert machine.sram_peak <= cost.tiled_sram(rows, keys, d, itemsize)
    if not causal or n_q <= n_k:  # otherwise the only tiles that see a key may be ragged ones
        assert machine.sram_peak == cost.tiled_sram(rows, keys, d, itemsize)


@pytest.mark.parametrize("n, d, itemsize", list(itertools.product((1, 2, 7, 16), (1, 3, 8), (1, 2, 4))))
def test_three_kernels_move_exactly_what_cost_says(n, d, itemsize):
    s = np.zeros((n, n), np.float32)
    machine = Machine.for_attention(*head(n, n, d), 10**6, itemsize, s=s, p=s)
    naive_on_machine(machine)
    io_bytes, intermediate_bytes = cost.naive_traffic(n, d, 1, 1, itemsize)
    assert machine.read_bytes + machine.written_bytes == io_bytes + intermediate_bytes
    assert machine.read_bytes == (3 * n * d + 2 * n * n) * itemsize  # q, k, v, S and P
    assert machine.written_bytes == (n * d + 2 * n * n) * itemsize  # o, S and P


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("blocks", [(4, 4), (4, 8), (3, 5)])
def test_tiles_fit_to_the_byte(blocks, causal):
    needed = cost.tiled_sram(*blocks, 4, 2)
    machine = machine_for(16, 16, 4, needed, itemsize=2)
    tiled_on_machine(machine, *blocks, causal)
    bounds = attention_bounds(*head(16, 16, 4), causal=causal, block_k=blocks[1])
    assert bounds[0].ratio(machine.hbm["o"]) <= 1 and bounds[1].ratio(machine.hbm["lse"]) <= 1
    with pytest.raises(SramOverflow):
        tiled_on_machine(machine_for(16, 16, 4, needed - 1, itemsize=2), *blocks, causal)


def test_events_are_in_order():
    machine = machine_for(4, 6, 2, itemsize=1)
    q = machine.load("q", 1, 3)
    s = machine.alloc((2, 5))
    machine.store("o", 0, 2, q)
    machine.free(q)
    machine.free(s)
    assert machine.events == [
        Event("load", "q", 1, 3, 4, 4),
        Event("alloc", "tile 2x5", 0, 2, 10, 14),
        Event("store", "o", 0, 2, 4, 14),
        Event("free", "q", 1, 3, 4, 10),
        Event("free", "tile 2x5", 0, 2, 10, 0),
    ]


@pytest.mark.parametrize("run", [lambda m: tiled_on_machine(m, 4, 3, True), naive_on_machine])
def test_events_add_up_to_the_counters(run):
    s = np.zeros((9, 7), np.float32)
    machine = Machine.for_attention(*head(9, 7, 3), 10**6, 2, s=s, p=s)
    run(machine)
    used, levels = 0, []
    for event in machine.events:
        used += {"load": event.size_bytes, "alloc": event.size_bytes, "free": -event.size_bytes, "store": 0}[event.kind]
        levels.append(used)
    assert levels == [event.sram_used for event in machine.events]
    assert max(levels) == machine.sram_peak and levels[-1] == machine.sram_used == 0
    total = {kind: sum(e.size_bytes for e in machine.events if e.kind == kind) for kind in ("load", "store")}
    assert total == {"load": machine.read_bytes, "store": machine.written_bytes}


def test_load_copies_and_store_writes_back():
    q, k, v = head(4, 6, 2)
    machine = Machine.for_attention(q, k, v, 1000)
    tile = machine.load("q", 1, 3)
    assert np.array_equal(tile, q[1:3])
    tile[:] = 7
    assert np.array_equal(machine.hbm["q"], q)
    machine.store("q", 0, 2, tile)
    assert (machine.hbm["q"][:2] == 7).all() and np.array_equal(machine.hbm["q"][2:], q[2:])
    assert np.array_equal(q, head(4, 6, 2)[0])  # the caller's array is its own


def test_what_nobody_stored_is_nan():
    machine = machine_for(3, 3, 2)
    assert np.isnan(machine.hbm["o"]).all() and np.isnan(machine.hbm["lse"]).all()
    assert (machine.shape("o"), machine.shape("lse")) == ((3, 2), (3,))


def test_alloc_fills():
    machine = machine_for(3, 3, 2)
    assert np.array_equal(machine.alloc((2, 3)), np.zeros((2, 3), np.float32))
    m = machine.alloc((2,), fill=-np.inf)
    assert (m == -np.inf).all() and m.dtype == np.float32
    assert machine.read_bytes == machine.written_bytes == 0


def counters(machine):
    return (machine.sram_used, machine.sram_peak, machine.read_bytes, machine.written_bytes, list(machine.events), machine.resident)


@pytest.mark.parametrize("overflow", [
    lambda m: m.load("k", 0, 6),
    lambda m: m.alloc((4, 3)),
    lambda m: m.alloc((10**7, 10**7)),  # asked of the machine, not of the computer
])
def test_overflow_names_what_is_resident_and_changes_nothing(overflow):
    machine = machine_for(4, 6, 2, 60)
    machine.load("q", 1, 3)
    machine.alloc((8,))
    before = counters(machine)
    with pytest.raises(SramOverflow, match=re.escape("of 60 only 12 are free; resident: q 1:3 (16 B), tile 8 (32 B).")):
        overflow(machine)
    assert counters(machine) == before
    assert machine.alloc((3,)).shape == (3,)  # what does fit still fits


def test_overflow_in_the_middle_of_a_run_leaves_the_counters_consistent():
    machine = machine_for(8, 8, 4, cost.tiled_sram(4, 4, 4, 4) - 1)
    with pytest.raises(SramOverflow, match=r"alloc of tile 4x4 needs 64 bytes, .* resident: q 0:4 \(64 B\), .*, k 0:4 \(64 B\), v 0:4 \(64 B\)\."):
        tiled_on_machine(machine, 4, 4)
    assert machine.sram_used == sum(size for *_, size in machine.resident) == machine.events[-1].sram_used
    assert machine.read_bytes == sum(e.size_bytes for e in machine.events if e.kind == "load") == 3 * 64


def test_an_empty_sram_says_that_nothing_is_resident():
    with pytest.raises(SramOverflow, match="resident: nothing"):
        machine_for(4, 4, 4, 8).load("q", 0, 4)


def test_a_freed_tile_is_poisoned_and_cannot_be_freed_again():
    machine = machine_for(4, 6, 2)
    tile = machine.load("q", 0, 2)
    machine.free(tile)
    assert np.isnan(tile).all() and machine.resident == []
    before = counters(machine)
    with pytest.raises(ValueError, match="still resident"):
        machine.free(tile)
    assert counters(machine) == before


@pytest.mark.parametrize("impostor", [lambda t: t[:], lambda t: t.copy(), lambda t: t + 0, lambda t: None])
def test_only_the_tile_itself_can_be_freed(impostor):
    machine = machine_for(4, 6, 2)
    tile = machine.load("q", 0, 2)
    with pytest.raises(ValueError, match=re.escape("tile[:] = ...")):
        machine.free(impostor(tile))
    assert machine.resident == [("q", 0, 2, 16)] and np.isfinite(tile).all()


@pytest.mark.parametrize("shape", [(2, 3), (1, 2), (2,), (2, 2, 1)])
def test_store_refuses_another_shape(shape):
    machine = machine_for(4, 6, 2)
    before = counters(machine)
    with pytest.raises(ValueError, match=re.escape(str(shape))):  # no broadcasting
        machine.store("o", 0, 2, np.zeros(shape))
    assert counters(machine) == before and np.isnan(machine.hbm["o"]).all()


@pytest.mark.parametrize("use", [lambda m: m.load("scores", 0, 1), lambda m: m.shape("scores"),
                                 lambda m: m.store("scores", 0, 1, np.zeros((1, 2)))])
def test_an_unknown_name_is_refused_with_the_names_that_exist(use):
    with pytest.raises(ValueError, match="q, k, v, o, lse, but it is 'scores'"):
        use(machine_for(3, 3, 2))


@pytest.mark.parametrize("start, stop", [(0, 4), (-1, 2), (2, 2), (2, 1), (3, 4)])
def test_rows_that_do_not_exist(start, stop):
    machine = machine_for(3, 3, 2)
    before = counters(machine)
    for use in (lambda: machine.load("q", start, stop), lambda: machine.store("q", start, stop, np.zeros((max(0, stop - start), 2)))):
        with pytest.raises(IndexError, match=f"3 rows of q, start before stop, but they are {start} and {stop}"):
            use()
    assert counters(machine) == before


def test_itemsize_is_the_arrays_own_unless_given():
    q, k, v = (x.astype(np.float64) for x in head(3, 3, 2))
    assert (machine_for(3, 3, 2).itemsize, Machine.for_attention(q, k, v, 999).itemsize) == (4, 8)
    assert Machine.for_attention(q, k, v, 999, itemsize=1).load("q", 0, 3).dtype == np.float64


def test_tile_identities_are_not_reused():
    """A tile that the program forgot is still resident: its room must not come back, nor its id be mistaken."""
    machine = machine_for(4, 4, 2)
    for _ in range(50):
        machine.load("q", 0, 1)
    assert machine.sram_used == 50 * 8 and len(machine.resident) == 50
