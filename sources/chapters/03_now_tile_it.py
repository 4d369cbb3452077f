# %% [markdown]
# # 3. Now tile it
#
# Chapter 2 computes attention without ever holding a whole row of scores. **What is gained if one never holds
# the matrix of scores at all, although the arithmetic stays the same, and where do the bytes go?**
#
# Begin with something that ought not to be true, the race of chapter 0. Every course on NumPy teaches that loops
# are slow and that whole-array operations are fast. `naive_attention` is three whole-array operations.
# `tiled_attention` computes the same output with two nested Python loops that cut the work into 256 small pieces,
# and it does a little *more* arithmetic. One head, 4,096 tokens, head dimension 64, on one core of the machine in
# front of you. You have seen the result once; this time, derive the memory first. Chapter 1 counted naive
# attention's bytes for each pair of tokens. What does each of the two need beyond its inputs, which are 1 MB
# each? And what could make the one that does more the faster one?

# %%
import os

# One core and its cache against one core and its cache. NumPy reads this when it is loaded.
os.environ.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", VECLIB_MAXIMUM_THREADS="1")

# %%
import numpy as np

from flashedu import cost, demos
from flashedu.bench import measure
from flashedu.exactness import attention_bounds
from flashedu.hardware import KIB, gpu
from flashedu.machine import Machine, SramOverflow
from flashedu.reference import naive_attention, naive_on_machine, tiled_attention, tiled_on_machine
from flashedu.results import load
from flashedu.viz import levels, race, tiles
from flashedu.viz.curves import duration, size
from flashedu.viz.table import table

# %%
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((4096, 64), dtype=np.float32) for _ in range(3))
naive = measure(naive_attention, q, k, v, repeats=5)
tiled = measure(tiled_attention, q, k, v, 256, 256, repeats=5)
for name, m in (("naive", naive), ("tiled", tiled)):
    print(f"{name}: {m.seconds * 1e3:6.0f} ms, {m.peak_bytes / 1e6:6.1f} MB at its peak")
faster, smaller = naive.seconds / tiled.seconds, naive.peak_bytes / tiled.peak_bytes
print(f"tiled is {faster:.1f} times as fast, and needs {smaller:.0f} times less memory")

# %%
bound, _ = attention_bounds(q, k, v, block_k=256)
print(f"error in units of what rounding allows: naive {bound.ratio(naive_attention(q, k, v)):.3f}, "
      f"tiled {bound.ratio(tiled_attention(q, k, v, 256, 256)[0]):.3f}")

# %% [markdown]
# On the machine on which this page was made, the loops win. (If they did not on yours, another program may be
# using it, or its caches may be large enough for these matrices; try 8,192 tokens.) The memory is explained by
# what you know: nobody stored the scores. The time needs more. Your CPU, like a GPU, has a
# small fast memory close to the arithmetic and a large slow one further away, and the two versions differ in
# which of them they work in. This chapter builds the tiled version, runs it on a machine that counts every
# byte, and finds out where its bytes go on a real GPU, which is not where the formula says.
#
# ## The square and the two loops
#
# Cut the queries into tiles of `block_q` rows, and the keys, with their values, into tiles of `block_k` rows.
# That cuts the square of scores into tiles of `block_q` x `block_k`, and each of them can be computed from
# one tile of queries and one tile of keys. For a matrix product this would be the end of the story. For
# attention it was impossible until chapter 2, because a row of the square runs through many tiles and softmax
# wanted the whole of it. Now a row needs a state $(m, l, o)$, and a tile is a block of keys that updates it.
# Tiling is a corollary.
#
# What remains to be chosen is the order of the loops. In the picture (nothing is masked, so every tile is full)
# the numbers give the order with the queries outside and the keys inside: a tile of queries stays where it is,
# and the keys come past.

# %%
tiles.tile_map(32, 48, 8, 8)

# %% [markdown]
# Why this order? Think about what each row drags along. Its state has `D + 2` numbers and changes with every
# tile. With queries outside, the state of `block_q` rows is born when the row of tiles begins, stays close to the
# arithmetic, and is finished when it ends. It then leaves once, as an output row and one number. With keys
# outside, every step would meet all queries, and their states would have to be fetched and put back for every
# tile of keys. The first FlashAttention had the loops that way round; the order of this chapter is that of
# version 2.
#
# It is not an absurd choice. With the keys outside, K and V are read once; with the queries outside, they come
# past again for every tile of queries. The next picture runs both orders side by side on the same square tiles
# and counts what crosses between HBM and SRAM. Before you run it: in either order, how often is a row of the
# output written? Which order reads more, and which moves more in all?

# %%
demos.loop_order()

# %% [markdown]
# Reading is nearly a draw: one order fetches K and V again and again, the other Q and the unfinished output,
# two arrays of $N \times D$ each, and as often if the tiles are square. (The row statistics are a little extra.)
# The difference is in the writing. With the keys outside, each output row is put back for every tile of keys;
# with the queries outside, it is written once, when it is finished. Step through both to see it happen.
#
# The draw is broken by tiles that are not square. The height of a tile of queries decides how often K and V come
# past, and the width of a tile of keys how often the states do; so with low and wide tiles even version 1 can
# win. Chapter 6 comes back to the first version.
#
# In this chapter's order, what leaves is the output $o$ and, for each row, the natural logarithm of the sum of
# the exponentials of its scores,
#
# $$\mathrm{lse} = m + \ln l .$$
#
# It is the row's denominator in one number, no longer split into significand and exponent. The backward pass
# (chapter 5) needs it, and so does anybody who wants to merge this result with that of other keys (chapter 8). So
# what is stored is $O(N D)$ for the output and $O(N)$ for the statistics. Nothing is ever $O(N^2)$.
#
# ## A memory that counts
#
# To talk about traffic we need a machine with two memories. `Machine` is one: HBM, which is large and holds
# the arrays, and SRAM, which is small and holds tiles. `load` copies rows into SRAM, `alloc` takes room in
# SRAM for a tile of your own, `free` gives room back, `store` writes rows to HBM. Arithmetic on tiles is
# plain NumPy. The machine counts the bytes of every transfer and refuses when SRAM is full. It counts each
# element as `itemsize` bytes, so that we can count as in bfloat16 (2 bytes) while NumPy computes in float32.

# %%
rows = np.arange(24, dtype=np.float32).reshape(6, 4)
machine = Machine({"x": rows, "y": np.zeros_like(rows)}, sram_bytes=64, itemsize=2)
x = machine.load("x", 0, 3)  # 3 rows of 4 elements of 2 bytes
twice = machine.alloc(x.shape)
twice[:] = 2 * x  # written into the tile: takes no more SRAM
machine.store("y", 0, 3, twice)
print(f"read {machine.read_bytes} B, written {machine.written_bytes} B, in SRAM {machine.sram_used} B")

# %%
try:
    machine.load("x", 3, 6)
except SramOverflow as overflow:
    print(f"SramOverflow: {overflow}")

# %% [markdown]
# Two tiles were still resident, so the third did not fit; the message lists them. A real GPU is less polite: a
# kernel that asks for too much SRAM does not start.
#
# Everything that happened is in `machine.events`. Here is tiled attention for 48 queries and keys in tiles of
# 16, drawn from its events. Before you look: which tiles come and go, which stay, and how many stores will
# there be?

# %%
q, k, v = (rng.standard_normal((48, 8), dtype=np.float32) for _ in range(3))
machine = Machine.for_attention(q, k, v, sram_bytes=2048, itemsize=2)
tiled_on_machine(machine, block_q=16, block_k=16)
tiles.residency(machine)

# %% [markdown]
# Three tiles of queries, three times the same pattern. At the bottom the tile of queries stays, and on it the
# accumulated output with the row statistics. On top of that, three times, a tile of keys, a tile of values
# and a tile of scores come and go. Two stores end each pattern, the output and lse, six in all. The peak is
# the same in each, and a longer sequence would add repetitions but no height. **The SRAM that is needed does
# not depend on N.**
#
# How high is the peak? Add up what is resident when the scores have been allocated: tiles of q and of the
# output, tiles of k and v, one tile of scores, and two numbers a row,
#
# $$2 B_r D + 2 B_c D + B_r B_c + 2 B_r \quad\text{elements},$$
#
# with $B_r$ and $B_c$ for `block_q` and `block_k`, as the papers write them (r for rows, c for columns).

# %%
print(f"formula: {cost.tiled_sram(16, 16, 8, 2)} bytes, counted: {machine.sram_peak} bytes")

# %% [markdown]
# ## How much SRAM is there?
#
# Here is the first place where published numbers mislead. An *SM* is a multiprocessor. The part of its SRAM that
# a program fills and empties itself is called *shared memory*; the rest works as a cache, L1. And a *block* is
# here the group of threads that works on one tile of queries: an SM can run several. Look for the row of the A100
# and decide which of its numbers is "the SRAM" for a tile.

# %%
gpus = [gpu(name) for name in ("T4", "A100 80GB", "RTX 4090", "H100 SXM", "H200")]
rows = []
for g in gpus:
    on_one_sm = g.l1_bytes // KIB, g.shared_bytes // KIB, f"**{g.block_shared_bytes // KIB}**"
    rows.append((g.name, *on_one_sm, g.sms, g.l2_bytes // KIB))
table(["KiB", "L1 and shared together", "shared, at most", "for one block", "SMs", "L2, for all SMs"], rows)

# %%
print(gpu("A100 80GB").source)

# %% [markdown]
# The first three columns are for one SM, of which these GPUs have from 40 to 132. The number that is quoted most,
# 192 KiB for the A100, is L1 and shared memory together. At most 164 KiB of it can be shared memory; and since
# the system keeps 1 KiB for each block of threads, one block can use 163 KiB. For the H100 the three numbers are
# 256, 228 and 227. The tiles that a block works with have to fit into the bold one. L2, on the right, is a second
# cache, which all multiprocessors share; it will matter later.
#
# ## Block sizes, from the paper
#
# FlashAttention's first algorithm begins with a line that chooses block sizes from the size $M$ of the SRAM:
#
# $$B_c = \left\lceil \frac{M}{4D} \right\rceil, \qquad B_r = \min(B_c, D).$$
#
# The idea is to give a quarter of SRAM to each of four tiles, q, k, v and o, of $D$ columns. In what unit is
# $M$? The paper does not say. It counts accesses in elements and gives each tile $M/4$ of them, so $M$ must be
# in elements too; yet its example (section 3.2), "around 100KB", is in bytes, as a data sheet is, and it is easy
# to put the one in the place of the other. Let us try both on the machine, with the H100's 227 KiB, in bfloat16.
# What do you expect of the version with elements, the correct one?

# %%
def try_blocks(head_dim, block_q, block_k, sram_bytes):
    q, k, v = (np.zeros((1024, head_dim), np.float32) for _ in range(3))
    machine = Machine.for_attention(q, k, v, sram_bytes, itemsize=2)
    try:
        tiled_on_machine(machine, block_q, block_k)
        return f"fits: at most {machine.sram_peak:,} of {sram_bytes:,} bytes"
    except SramOverflow as overflow:
        return f"SramOverflow: {str(overflow).split(';')[0]}"


# %%
sram = gpu("H100 SXM").block_shared_bytes
for head_dim in (64, 128):
    for unit, itemsize in (("bytes", 1), ("elements", 2)):
        blocks = cost.block_sizes(sram, head_dim, itemsize)
        print(f"D = {head_dim:3}, M in {unit:8}: block_q, block_k = {blocks}")
        print("    " + try_blocks(head_dim, *blocks, sram))

# %% [markdown]
# With M in bytes the tile of keys has twice the rows that it should have, and nothing fits. With M in
# elements $D = 64$ fits; but $D = 128$, the head dimension of many large models, does not, though the formula
# is right as printed. Look at what it gives away: a quarter to each of four tiles is everything, and the
# fifth, the tile of scores, has no room. At $D = 64$ there is slack, because $B_r$ is cut down to $D$, and so
# q and o take less than their quarters. At $D = 128$ there is not enough of it.
#
# That is no blunder of the paper, which states sizes up to a constant factor. It is a reminder that this
# formula is for the proof. It also belongs to the first version's loops, with the keys outside: there the tile
# that stays is the tile of keys, and that is the one that it makes large. With the queries outside it is the
# wrong one, as we are about to count. Kernels choose their blocks by trying. Which ones can they choose from?

# %%
candidates = ((64, 64), (128, 64), (128, 128), (192, 64), (256, 64), (64, 256))
targets = [gpu(name) for name in ("T4", "A100 80GB", "H100 SXM")]
rows = []
for bq, bk in candidates:
    need = cost.tiled_sram(bq, bk, 128, 2)
    fits = ["fits" if need <= g.block_shared_bytes else "no" for g in targets]
    rows.append((f"{bq} x {bk}", f"{need / KIB:.0f} KiB", *fits, f"N/{bq} times"))
table(["tile, D = 128", "needs", *(g.name for g in targets), "k and v are read"], rows)

# %% [markdown]
# Two reservations. Our machine keeps everything in one memory and counts 2 bytes for each element. A real kernel
# keeps scores and output in *registers*, in float32, and an SM's register file, 256 KiB on all of these GPUs, is
# as scarce as its shared memory (NVIDIA, *CUDA C++ Programming Guide*, the table of compute capabilities). And it
# loads the next tile of keys while it works on the present one, which needs room for two. So the table shows what
# is out of the question, not what is fast.
#
# ## Count the traffic, and find the formula
#
# The last column of the table says something that deserves a test. Run the algorithm on the machine, with
# SRAM large enough for anything, for several block sizes. Before you run it: which of the two block sizes
# matters more for the bytes read from HBM?

# %%
n, d = 512, 64
q, k, v = (rng.standard_normal((n, d), dtype=np.float32) for _ in range(3))


# %%
def count(block_q, block_k, causal=False):
    machine = Machine.for_attention(q, k, v, sram_bytes=10**7, itemsize=2)
    tiled_on_machine(machine, block_q, block_k, causal)
    return machine.read_bytes, machine.written_bytes


# %%
print("bytes read       " + "".join(f"block_k = {bk:<8}" for bk in (32, 64, 128)))
for bq in (32, 64, 128, 256):
    print(f"block_q = {bq:<7}" + "".join(f"{count(bq, bk)[0]:>12,}      " for bk in (32, 64, 128)))
print(f"bytes written, always: {count(64, 64)[1]:,}")

# %% [markdown]
# `block_k` does not matter at all. Each tile of queries sees every key once, whether in large spoonfuls or
# small ones. Only the number of query tiles counts, for each of them reads all of K and V anew.
#
# Now write down the formula before you read on: the elements read, as a function of $N$, $D$ and $B_r$. Three
# arrays of $N D$ elements are involved, one of them is read once.
#
# $$\text{read} = \underbrace{N D}_{q} + \left\lceil \frac{N}{B_r} \right\rceil \cdot \underbrace{2 N D}_{k,\, v},
# \qquad \text{written} = \underbrace{N D}_{o} + \underbrace{N}_{\mathrm{lse}} .$$
#
# The next cell compares it with the machine for every pair, including block sizes that do not divide 512.

# %%
pairs = [(bq, bk) for bq in (3, 7, 32, 100, 128, 512, 1000) for bk in (50, 64, 300)]
agree = []
for bq, bk in pairs:
    query_tiles = -(-n // bq)  # rounded up
    read, written = n * d + query_tiles * 2 * n * d, n * d + n
    agree.append(count(bq, bk) == (2 * read, 2 * written))  # 2 bytes an element
print(f"{sum(agree)} of {len(pairs)} counts equal the formula exactly")

# %% [markdown]
# `flashedu.cost.tiled_traffic` is this formula (it also knows causal masks), and the course's tests hold it
# against the machine on a grid of shapes. How does naive attention compare, with S and P in HBM between its
# three kernels? A fair comparison gives both query tiles of the same height. Kernels of naive attention that
# work on `block_q` queries at a time read K and V as often as the tiled version does: the first reads K for
# each tile, the third reads V. Write down what crosses in addition before you run the cell. The two horizontal
# lines are the least that either can move, with an SRAM that holds all of K and V, so that they are read once.

# %%
whole = np.zeros((n, n), np.float32)
machine = Machine.for_attention(q, k, v, sram_bytes=10**7, itemsize=2, s=whole, p=whole)
naive_on_machine(machine)
naive_bytes = machine.read_bytes + machine.written_bytes
assert naive_bytes == sum(cost.naive_traffic(n, d, 1, 1, itemsize=2))
blocks = [8, 16, 32, 64, 128, 256, 512]
formula = [sum(cost.tiled_traffic(n, n, d, bq, 64, itemsize=2)) for bq in blocks]
counted = {bq: [sum(count(bq, bk)) for bk in (32, 128)] for bq in blocks}
naive_form = [x + 2 * (4 * n * n - n) for x in formula]  # S and P, written and read; no lse
levels.traffic_against_block(blocks, formula, counted, naive_form, naive_bytes, least_bytes=2 * (4 * n * d + n))

# %% [markdown]
# With the same query tiles, naive attention always moves $4 N^2$ elements more (less one lse for each row),
# whatever their height. With tiles of a few rows that is a small part of both: what costs there is reading all of
# K and V for every handful of queries, and keeping the scores in SRAM does not cure it. The taller the tile, the
# more of the traffic is S and P, and the more is gained. The height is limited by SRAM. (Against the
# dashed line alone, the green curve lies *above* it for low tiles; but that compares a kernel with little SRAM to
# kernels with much.)
#
# Now all of it at once: the square, the traffic, and the SRAM. The next picture starts with tiles that fit into
# what one block has on an H100, at the head dimension for which the formula's tiles did not. It counts scores and
# accumulated output in float32, as kernels keep them. You want less traffic, and may double one of the two block
# sizes. Which one? What will become of the bytes, and will the tiles still fit? Decide before you move a slider.

# %%
demos.tiling(n=1024, head_dim=128, block_q=128, block_k=64, itemsize=2, gpu="H100 SXM")

# %% [markdown]
# Doubling `block_k` still fits, just so, and changes not a single byte. Doubling `block_q` nearly halves the
# traffic, and does not fit: q and the tile of scores grow with it, and above all the accumulator. What can be
# had is worth nothing, and what is worth something cannot be had. There is a way out, since `block_k` costs no
# traffic: with a tall tile of queries and a very narrow one of keys it fits again. (It is not free. Each step is
# then a small matrix product, and there are more steps and more rescalings.) Try other elements, head dimensions
# and GPUs, and see on which side of the capacity the triangle, the formula's tiles, comes to lie.
#
# In the language of the paper: naive attention moves $\Theta(ND + N^2)$ elements, the dashed line. Tiles of
# $B_r = \Theta(M/D)$ rows make the tiled version's $2 N^2 D / B_r$ into
#
# $$\Theta\!\left(\frac{N^2 D^2}{M}\right),$$
#
# so that everything hangs on $D^2/M$, the square of the head dimension against the size of the SRAM. How
# small is it? Once more the unit of $M$ decides.

# %%
head_dim, sram_bytes = 128, 200 * 1024
for unit, m in (("elements of 2 bytes", sram_bytes // 2), ("bytes (wrong)", sram_bytes)):
    print(f"M in {unit:20}: D^2/M = {head_dim**2 / m:.3f} = 1/{m / head_dim**2:.1f}")
quarter = sram_bytes // 2 / (4 * head_dim)  # M / 4D rows
for name, block_q in (("B_r = M / 4D", quarter), ("B_r = D", head_dim)):
    tiled_elements = 2 * head_dim / block_q  # in units of N^2
    print(f"{name:12}: tiled moves {tiled_elements:.2f} N^2 elements, naive 4 N^2, {4 / tiled_elements:.1f} times")

# %% [markdown]
# It is about 1/6; whoever divides elements by bytes finds 1/12. And $\Theta$ hides the constants. In this
# chapter's loop order there is an 8 in front of $N^2D^2/M$ when a tile of queries takes a quarter of SRAM,
# against a 4 in front of naive's $N^2$, and the paper's cap $B_r \le D$ makes the tiles lower still. So at
# $D = 128$ the formula promises two or three times fewer bytes than naive attention moves at its best, and not a
# hundred times. (For the first version's loop order the constants are worse; that is for chapter 6.) Keep that in
# mind, for now comes a measurement.
#
# ## The surprise
#
# Take the layer of chapter 1: Llama-3-8B, 8,192 tokens, 32 query heads and 8 heads of keys and values,
# $D = 128$, bfloat16. Let the query tiles have 128 rows. What does the formula say that is read from HBM?

# %%
n, d, heads, kv_heads = 8192, 128, 32, 8
passes = n // 128
kv_bytes = 2 * n * d * 2  # k and v of one head
print(f"k and v of one head: {kv_bytes / 1e6:.1f} MB, read {passes} times for each of {heads} query heads:")
print(f"{heads * passes * kv_bytes / 1e9:.2f} GB")
read, written = (heads * x for x in cost.tiled_traffic(n, n, d, 128, 64, itemsize=2))
naive_bytes = sum(cost.naive_traffic(n, d, heads, kv_heads, itemsize=2))
square_bytes = heads * 4 * n * n * 2  # S and P, written and read
print(f"with q, o and lse {(read + written) / 1e9:.2f} GB")
print(f"naive: {naive_bytes / 1e9:.2f} GB if each array is read once, "
      f"{(read + written + square_bytes) / 1e9:.2f} GB with the same tiles")

# %% [markdown]
# Half of naive's traffic at its best, a third of naive's with the same tiles. On this count, FlashAttention would
# be a modest improvement. Here is what the hardware counters of an H200 saw, for naive attention in three kernels
# and for PyTorch's FlashAttention-2 kernel:

# %%
result = load("h200_attention_traffic")
hbm = {name: t["hbm_read_bytes"] + t["hbm_written_bytes"] for name, t in result["totals"].items()}
flash = next(kernel for kernel in result["kernels"] if kernel["algorithm"] == "flash")
print(f"HBM, counted: naive {hbm['naive'] / 1e9:.2f} GB, flash {hbm['flash'] / 1e9:.3f} GB")
qkv_bytes = 2 * n * d * (heads + 2 * kv_heads)
print(f"flash read {flash['hbm_read_bytes'] / 1e6:.1f} MB; q, k and v are {qkv_bytes / 1e6:.1f} MB")
print(f"the formula says {(read + written) / hbm['flash']:.0f} times what the counters saw")

# %% [markdown]
# For naive attention the count agrees with chapter 1. The flash kernel, however, read little more than q, k
# and v *once*. Our machine and our formula said that K and V are read 64 times. Did the kernel perhaps use
# larger query tiles? Its name gives them away: the template arguments of FlashAttention-2's kernel are the
# head dimension, `block_q` and `block_k`.

# %%
print(flash["kernel"].split("kernel_traits<")[1][:12])

# %% [markdown]
# Query tiles of 128 rows, as we assumed, and so 64 passes over the keys of each head. The bytes must have
# been loaded, and they did not come from HBM. Where did they come from? Look once more at the table of
# memories above before you run the next cell, which asks another counter: how much did the multiprocessors
# *receive*, from wherever?

# %%
received = flash["sm_received_bytes"]
print(f"formula, read:                 {read:,} bytes")
print(f"received by multiprocessors:   {received:,} bytes, {received / read - 1:+.3%}")
print(f"of what they asked of L2, found there: {flash['l2_from_sm_hit_bytes'] / flash['l2_from_sm_bytes']:.1%}")
levels.bytes_by_level([
    ("naive, HBM", hbm["naive"], "naive"),
    ("flash, formula for reads", read, "flash, formula"),
    ("flash, L2 to multiprocessors", received, "flash, above HBM"),
    ("flash, HBM", hbm["flash"], "flash"),
])

# %% [markdown]
# The formula was not wrong at all. It predicts to a fraction of a per cent what the multiprocessors of an
# H200 took in. It is our picture of two memories that was too simple: between HBM and the SRAM of a
# multiprocessor lies the L2 cache, which all multiprocessors share.

# %%
l2_bytes = result["environment"]["l2_capacity_bytes"]
print(f"k and v of one head: {kv_bytes / 1e6:.1f} MB, of all {kv_heads}: {kv_heads * kv_bytes / 1e6:.1f} MB")
print(f"L2 of this GPU: {l2_bytes / 1e6:.1f} MB")
print(f"written to HBM: {flash['hbm_written_bytes'] / 1e6:.1f} MB; o alone has {2 * n * d * heads / 1e6:.1f} MB")
from_hbm = read / result["ceilings"]["copy_bytes_per_s"]
arithmetic = cost.attention_flops(n, n, d, heads) / result["ceilings"]["matmul_flops_per_s"]
print(f"{read / 1e9:.2f} GB at the measured copy rate of HBM:   {from_hbm * 1e3:.2f} ms")
print(f"both products at the measured matmul rate: {arithmetic * 1e3:.2f} ms")

# %% [markdown]
# This much is counted: nearly everything that was asked of L2 was found there. The likely reason is this. The
# tiles that run at the same time belong to a few query heads, which lie next to each other and share K and V,
# a few megabytes. The first tile that needs them brings them into L2, and the others find them there. Even the
# keys and values of the whole layer are less than L2 holds. (The output is smaller in HBM's count than it is,
# presumably because its last part was still in L2 when the kernel ended.) So the sentence "FlashAttention reads K and V only once" is
# right for HBM, here, and wrong for the multiprocessors, which read them once for every tile of queries. On a
# GPU with a large L2 the formula is a statement about the traffic between L2 and SRAM.
#
# That does not make it worthless. Compare the two times at the end, both from rates that the same GPU reached in
# the same run. If the re-reads had to come from HBM, they alone would take longer than the arithmetic. Taller
# query tiles ask less of L2, too. And whether L2 still serves everything when the keys and values outgrow it
# depends on which of them are in use at the same time; our numbers are for this length and do not say.
#
# A last remark: the counters also saw things that no formula here contains. This kernel has too few registers
# for its tiles and parks some of them in memory, and L2 is made of two halves that exchange data. Both appear
# in the result file, and not in the bars above.
#
# ## Causal: skip tiles, mask the diagonal
#
# In a causal model a query sees only the keys up to its own position, which is half of the square. A mask
# alone would not save anything: the scores would be computed and then thrown away. Tiles make it possible to
# save the work. Cut 1,024 queries and keys into tiles of 128 x 128. How many of the 64 tiles have to be computed,
# and how many of those need a mask? And what do smaller tiles change?

# %%
demos.causal_tiles(1024, 1024, 128, 128)

# %% [markdown]
# Tiles above the diagonal are skipped whole, with their loads. Tiles below it are computed as if there were
# no mask. Only those that the diagonal crosses pay for comparing row and column numbers. Smaller tiles follow the
# diagonal more closely and save more, up to the dashed line, which is what the mask removes score by score. A
# longer sequence does the same for tiles of any size. The fraction that remains falls towards one half, from above:

# %%
for tokens in (256, 1024, 8192, 65536):
    full, diagonal, skipped = cost.tile_counts(tokens, tokens, 128, 128, causal=True)
    total = full + diagonal + skipped
    share = (full + diagonal) / total
    print(f"N = {tokens:6,}: {full:7,} full, {diagonal:4,} diagonal, {skipped:7,} skipped: {share:.1%} remain")

# %% [markdown]
# So causal attention is, by the count, *at most* twice as fast, and less for short sequences, because a tile on
# the diagonal costs as much as a full one. There is another reason, which counting does not show: the rows of
# tiles have different lengths, and a GPU whose multiprocessors each got a row waits for the longest. For its
# kernel on an A100, FlashAttention-2 reports 1.7 to 1.8 (Dao 2023, section 3.1).
#
# A detail that causes many bugs: when there are more keys than queries, as in a conversation whose first part
# is already cached, the mask's diagonal ends in the *bottom right* corner, since the last query is the newest
# token and sees everything. Query $i$ sees key $j$ when $j \le i + N_k - N_q$.

# %%
tiles.tile_map(32, 64, 8, 8, causal=True)

# %% [markdown]
# With more queries than keys it is the other way round: the first queries are older than every key and see
# nothing. The sliders of the causal picture go that far.
#
# ## Not fewer operations
#
# A common belief is that FlashAttention is fast because it computes less. Count. Both versions do the same
# two matrix products. The tiled one also multiplies its accumulated outputs by the correction factor, for
# every tile of keys, and takes one more exponential per row and tile. On the other hand, it divides each
# output, where naive attention divides each probability, and there are more of these.

# %%
matmul = cost.attention_flops(n, n, d, heads)
rescale = heads * n * d * (n // 64)  # one multiplication for each output element and key tile of 64
divisions = heads * (n * n - n * d)  # of P, less those of O
print(f"matrix products {matmul / 1e12:.3f} TFLOP, the same in both")
print(f"the rescaling adds {rescale / matmul:.2%}, dividing late saves {divisions / matmul:.2%}")

# %% [markdown]
# Slightly more on balance, then, and next to nothing beside the products. What changes is the ratio of operations
# to bytes, the arithmetic intensity of chapter 1. By the formula it has a pretty form: $4N^2D$ FLOPs over
# $2N^2D/B_r$ elements of 2 bytes is $B_r$ FLOP per byte. The height of the query tile *is* the intensity. Naive
# attention with the same tiles moves S and P on top. The ridges are where a GPU's memory and its matrix units
# take equally long.

# %%
blocks = [16, 32, 64, 128, 256, 512]
traffic = {bq: heads * sum(cost.tiled_traffic(n, n, d, bq, 64, 2)) for bq in blocks}
tiled_intensity = [matmul / traffic[bq] for bq in blocks]
naive_intensity = [matmul / (traffic[bq] + square_bytes) for bq in blocks]
most = cost.naive_intensity(n, d, heads, kv_heads, itemsize=2)
ridges = {name: gpu(name).ridge for name in ("A100 80GB", "H200", "H100 SXM")}
levels.intensity_against_block(blocks, tiled_intensity, ridges, naive_intensity, most, matmul / hbm["flash"])

# %% [markdown]
# Naive attention stays far below every ridge, however tall its tiles. The tiled version climbs with the height
# of its query tile, but at 128 rows it is still below the ridge of all three: if each load came from HBM,
# tiling alone would not be enough to keep the matrix units busy. Counted where it is measured, at HBM, the
# intensity is in the thousands, and HBM is no longer what limits this layer. (It is a little higher than in
# chapter 1's roofline, which counts every array once, since part of the output was not yet in HBM when the
# counters stopped.) It took both: tiles that fit into SRAM, and an L2 that serves their re-reads. What does
# limit it then, matrix products and exponentials, is a subject of chapter 4, and of chapter 6.
#
# ## Your own machine, again
#
# Now back to the race of the first screen. Your CPU has no HBM, but it has the same shape: a few hundred
# kilobytes to a few megabytes of cache beside each core, and main memory behind. Naive attention at
# $N = 4096$ makes three arrays of $4 N^2$ bytes each, which no such cache holds, and passes over them again and
# again. A tile of 256 x 256 in float32 is 256 KiB.
#
# The next cells run both from 1,024 to 8,192 tokens, which takes some seconds and, for naive attention, a gigabyte.
# Predict the two curves on the right: how does the peak memory of each grow when $N$ doubles?

# %%
def compete(n, repeats):
    q, k, v = (rng.standard_normal((n, 64), dtype=np.float32) for _ in range(3))
    naive, tiled = measure(naive_attention, q, k, v, repeats=repeats), measure(tiled_attention, q, k, v, 256, 256, repeats=repeats)
    return n, naive, tiled


# %%
measured = [compete(n, repeats) for n, repeats in ((1024, 7), (2048, 3), (4096, 2), (8192, 1))]

# %%
race.naive_against_tiled(measured)

# %%
lines = [
    (f"{n:,}", duration(a.seconds), duration(b.seconds), f"{a.seconds / b.seconds:.1f}",
     size(a.peak_bytes), size(b.peak_bytes), f"{a.peak_bytes / b.peak_bytes:.0f}")
    for n, a, b in measured
]
table(["N", "naive", "tiled", "times as fast", "naive's peak", "tiled's peak", "times smaller"], lines)

# %% [markdown]
# At 1,024 tokens there may be little to gain: $S$ has 4 MB, and a cache of today may hold it. By and large, the
# longer the sequence, the further the two are apart.
#
# Time grows with about $N^2$ for both, because the arithmetic does. (If naive attention's last step is larger
# than a factor of four: the system has to find a gigabyte of fresh memory for each call, and to clear it.) The
# memory of naive attention grows with $N^2$ too, by four with each doubling. The tiled version's grows with $N$
# only, once its output outweighs its tiles. The ratio in time comes mostly from the memory hierarchy.
#
# If the hierarchy is the reason, then the tile's size must matter: too large, and a tile falls out of the
# cache; too small, and something else takes over. What?

# %%
q, k, v = (rng.standard_normal((4096, 64), dtype=np.float32) for _ in range(3))
sides = [64, 128, 256, 512, 1024, 2048, 4096]
seconds = [measure(tiled_attention, q, k, v, side, side, repeats=2).seconds for side in sides]
race.time_against_block(sides, seconds, measure(naive_attention, q, k, v).seconds, n=4096)

# %% [markdown]
# On the right, a tile of 4096 is the whole matrix: the loop runs once, and most of the advantage should be
# gone. (What may be left is the late division: the tiled version divides each output row by $l$, and naive
# attention divides each row of $P$, which is one more pass over an array of $N^2$.) Towards the left the tiles
# move into the cache and the time falls, until Python's own overhead for each of many thousand tiles takes
# over. On a GPU the left branch has another cause, the one you
# counted: small query tiles read K and V too often. The right branch ends there in `SramOverflow`.
#
# ## What you can now explain
#
# Why the queries are outside and the keys inside. What lives in SRAM, and why its amount does not depend on
# $N$. Which of an A100's three numbers a tile must fit into, and what goes wrong when $M$ is taken in bytes.
# The closed form of the traffic, and why `block_k` is not in it. Why gigabytes of reads are so little HBM
# traffic on an H200, and what served them. Why a causal mask saves at most half of the work. Why all this helps
# although both matrix products are still computed in full.
#
# ## Now you
#
# Open [exercises/03_now_tile_it](../exercises/03_now_tile_it.ipynb). You write `tiled_attention`, `block_sizes` and `tiled_on_machine`.
#
# ## Where to read more
#
# - Dao, Fu, Ermon, Rudra, Ré, *FlashAttention*, 2022 (arXiv 2205.14135): algorithm 1 and, for the traffic,
#   section 3.2 with theorem 2.
# - Dao, *FlashAttention-2*, 2023 (arXiv 2307.08691): section 3.1 with algorithm 1, and section 3.2, where the
#   loop order is credited to Phil Tillet's kernel in Triton.
# - NVIDIA, *Ampere Tuning Guide* and *Hopper Tuning Guide*: section 1.4, the shared memory.
