"""What the Hopper kernel's warps share: rings of tiles in shared memory, and the list of what there is to do."""
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

aggregate = getattr(gluon, "aggregate", None) or triton.language.core._aggregate  # since Triton 3.8; before
async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared


@aggregate
class Ring:
    """Slots of shared memory that the producer fills and the consumers empty, each with two barriers that say so.

    The uses of a ring are counted: use 0, 1, 2, ... takes slot 0, 1, ..., 0 again, and a barrier's phase changes each time.
    """

    tiles: gl.shared_memory_descriptor
    ready: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    SLOTS: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, tiles, ready, empty, SLOTS):
        self.tiles, self.ready, self.empty, self.SLOTS = tiles, ready, empty, gl.constexpr(SLOTS)

    @gluon.jit
    def fill(self, use, source, b, h, row, column=0):
        """By the producer: load the tile of head (b, h) that begins there, once the slot is empty."""
        slot = use % self.SLOTS
        mbarrier.wait(self.empty.index(slot), use // self.SLOTS & 1 ^ 1)
        mbarrier.expect(self.ready.index(slot), source.block_type.nbytes)
        async_load(source, [b, h, row, column], self.ready.index(slot), self.tiles.index(slot))

    @gluon.jit
    def wait(self, use):
        """By a consumer: the tile (rows, D), once it is there."""
        mbarrier.wait(self.ready.index(use % self.SLOTS), use // self.SLOTS & 1)
        return self.tiles.index(use % self.SLOTS).reshape([self.tiles.shape[3], self.tiles.shape[4]])

    @gluon.jit
    def free(self, use):
        """By a consumer: it has read the tile."""
        mbarrier.arrive(self.empty.index(use % self.SLOTS), count=1)


@gluon.jit
def new_ring(source, SLOTS: gl.constexpr, READERS: gl.constexpr):
    tiles = gl.allocate_shared_memory(source.dtype, [SLOTS] + source.block_type.shape, source.layout)  # noqa: RUF005  Gluon has no star
    ready = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SLOTS):
        mbarrier.init(ready.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=READERS)
    return Ring(tiles, ready, empty, SLOTS)


@aggregate
class Work:
    """What there is to do: `schedule` has a column for each program, their number on top, then its tiles of queries."""

    schedule: gl.tensor
    tiles: gl.tensor  # of queries in a head
    heads: gl.tensor
    n_q: gl.tensor
    n_k: gl.tensor
    CAUSAL: gl.constexpr
    BLOCK_Q: gl.constexpr
    BLOCK_K: gl.constexpr
    RAGGED: gl.constexpr  # the last tile of keys is not full

    @gluon.constexpr_function
    def __init__(self, schedule, tiles, heads, n_q, n_k, CAUSAL, BLOCK_Q, BLOCK_K, RAGGED):
        self.schedule, self.tiles, self.heads, self.n_q, self.n_k = schedule, tiles, heads, n_q, n_k
        self.CAUSAL, self.RAGGED = gl.constexpr(CAUSAL), gl.constexpr(RAGGED)
        self.BLOCK_Q, self.BLOCK_K = gl.constexpr(BLOCK_Q), gl.constexpr(BLOCK_K)

    @gluon.jit
    def count(self):
        return gl.load(self.schedule + gl.program_id(0))

    @gluon.jit
    def item(self, r):
        """Batch, head, first query and number of key tiles, at least one, of this program's r-th item."""
        number = gl.load(self.schedule + (r + 1) * gl.num_programs(0) + gl.program_id(0))
        head, i0 = number // self.tiles, number % self.tiles * self.BLOCK_Q
        return head // self.heads, head % self.heads, i0, self.key_tiles(i0 + self.BLOCK_Q)

    @gluon.jit
    def key_tiles(self, i):
        """How many tiles of keys the queries before i see together, at least one."""
        stop = self.n_k
        if self.CAUSAL:
            stop = min(self.n_k, i + self.n_k - self.n_q)
        return max(1, gl.cdiv(stop, self.BLOCK_K))
