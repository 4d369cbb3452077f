# %% [markdown]
# # Exercises 3. Now tile it
#
# Three functions: attention by tiles, the paper's block sizes, and attention by tiles on a machine that
# counts what it moves. Each has a cell with a small example, a cell to fill in, and a check.

# %%
import numpy as np

from flashedu import check, demos, hint, progress
from flashedu.machine import Machine, SramOverflow

# %% [markdown]
# ## 1. By tiles: `tiled_attention`
#
# Queries outside, keys inside. For each tile of at most `block_q` queries keep a state $(m, l, o)$ for its
# rows, walk over the keys in tiles of at most `block_k`, and at the end write the rows of `o` and of `lse`,
# where `lse` is $m + \ln l$. You may not hold an array of shape `(Nq, Nk)`; the check measures it.
#
# With `causal=True` query `i` sees key `j` when `j <= i + Nk - Nq`. Three things follow. Tiles above the
# diagonal can be *skipped*, which is where the time is saved (this check cannot see it; that of the third
# exercise counts them). Tiles that the diagonal crosses need the mask, with row and
# column numbers that count from the beginning of the arrays and not of the tile. And if there are more
# queries than keys, then the first rows see no key at all: their output is 0 and their `lse` is `-inf`,
# without a NaN on the way. Block sizes need not divide the lengths, and may be larger than they are.
#
# In the example all scores are 0, and so the output of a causal row is the mean of the values that it sees,
# and its lse is the logarithm of their number. There are 3 queries and 2 keys. So the first query sees
# nothing, the second one key, the third two. When your function is written, compare
# `tiled_attention(q, k, v, 2, 1, causal=True)` with these before you run the check.

# %%
q, k, v = np.ones((3, 2)), np.zeros((2, 2)), np.array([[4.0], [8.0]])
expected_o = np.array([[0.0], [4.0], [6.0]])
expected_lse = np.array([-np.inf, 0.0, np.log(2)])  # for any block sizes, with causal=True

# %%
# exercise: flashedu.reference.tiled:tiled_attention

# %%
check(tiled_attention).score

# %% [markdown]
# Then look at it from outside. The next cell runs your function whenever you move a slider. The error and the memory
# are measured; the bytes are those of a kernel with such tiles, computed. Before you run it: which of the two block
# sizes changes the memory, and which the bytes? What does `causal` do to the bytes?

# %%
demos.your_kernel(tiled_attention)

# %% [markdown]
# If the function is right, the error hardly cares about the tiles. The memory grows with both sizes, since you hold a
# tile of scores, and stays far below naive attention's while the tile is small. The bytes depend on `block_q` alone
# (but for a causal mask, where `block_k` decides how closely the tiles follow the diagonal): each tile of queries
# reads the keys that it sees anew. With `causal` about half of these reads are skipped. Whether *your* loops skip
# them, the third exercise will tell.
#
# ## 2. The paper's tiles: `block_sizes`
#
# $B_c = \lceil M / 4D \rceil$ keys and $B_r = \min(B_c, D)$ queries, where $M$ is the capacity of the SRAM
# **in elements**. You are given bytes and the size of an element. Return `(block_q, block_k)`, in that order,
# which is not the order in which the paper names them. They are whole numbers, not floats, and so is $M$; the
# division by $4D$ is rounded up, and Python's `//` rounds down.
#
# For example, 1,024 bytes hold 512 elements of 2 bytes. With `D = 8`, $B_c = 512/32 = 16$ and
# $B_r = \min(16, 8) = 8$.

# %%
expected = (8, 16)  # block_sizes(1024, 8, 2)

# %%
# exercise: flashedu.cost:block_sizes

# %%
check(block_sizes).score

# %% [markdown]
# ## 3. With every byte counted: `tiled_on_machine`
#
# The same algorithm once more, but now `q`, `k` and `v` lie in the HBM of a `Machine`, and you may not touch
# them there. What you want to compute with has to be loaded. What you compute needs room in SRAM. How the
# machine works:
#
# - `machine.shape("q")` is the shape of an array in HBM; there are `q`, `k`, `v`, `o` and `lse`.
# - `tile = machine.load("q", start, stop)` copies rows `start:stop` into SRAM and returns the tile, a NumPy
#   array. These bytes count as read.
# - `tile = machine.alloc(shape, fill=0.0)` takes SRAM for a tile of your own. It moves no bytes.
# - `machine.store("o", start, stop, tile)` copies a tile to rows of HBM. These bytes count as written. It takes
#   only what lies in SRAM, so write a result into a tile first. The tile stays.
# - `machine.free(tile)` gives a tile's SRAM back. Its contents become NaN, so that a later use shows.
#
# Arithmetic is plain NumPy. One thing has to be understood: `s[:] = q @ k.T` writes numbers *into* the tile
# `s`, which has its place in SRAM. `s = q @ k.T` makes a new array and calls it `s`; the tile that you
# allocated is still resident, but you have no name for it any more, and `free` will not know the new one. So
# assign with `[:]` into what you keep. Temporary values inside one expression are not counted, and a few
# numbers for each row in passing (a new maximum, a factor) do no harm; but the scores, and whatever lives from
# one tile of keys to the next, belong in SRAM.
#
# A small tour, in which nothing is attention: double the rows of q into o, two at a time.

# %%
x = np.arange(8, dtype=np.float32).reshape(4, 2)
machine = Machine.for_attention(x, x, x, sram_bytes=64)
for i in range(0, 4, 2):
    q = machine.load("q", i, i + 2)
    twice = machine.alloc((2, 2))
    twice[:] = 2 * q
    machine.store("o", i, i + 2, twice)
    machine.free(q)
    machine.free(twice)
print(machine.hbm["o"].tolist())
print(f"read {machine.read_bytes} B, written {machine.written_bytes} B, at most {machine.sram_peak} B in SRAM")

# %% [markdown]
# And what happens if something is too large, or was never given back:

# %%
try:
    for i in range(0, 4):
        machine.load("k", i, i + 1)
        machine.alloc((2, 2))
except SramOverflow as overflow:
    print(overflow)

# %% [markdown]
# The grade has three parts. The output and lse must be exact, to within rounding. SRAM must not overflow:
# there is room for one tile each of q, k, v, the scores and the output, for the statistics of the rows, and
# for one more tile of scores. (It must also be *used*: a check knows how much q, k, the scores and the output
# need at the least.) And the traffic must be *exactly* that of the closed form: q read once, for
# each tile of queries the tiles of k and v that it can see, read once; o and lse written once. More bytes
# mean that something is loaded again that was there, or that skipped tiles are loaded. Fewer bytes are not a
# triumph: they mean that something was kept outside SRAM, or that HBM was read behind the machine's back, and
# the check says so.
#
# The order of `alloc` and `free` decides whether you stay below the limit. Ask yourself which tiles have to
# be resident at the same time.

# %%
# exercise: flashedu.reference.tiled:tiled_on_machine

# %%
check(tiled_on_machine).score

# %% [markdown]
# If you are stuck: `hint("tiled_on_machine", 1)`.

# %%
hint("tiled_on_machine", 1)

# %% [markdown]
# ## Where you are

# %%
progress()
