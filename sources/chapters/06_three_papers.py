# %% [markdown]
# # 6. Three papers, three different things
#
# The first three papers called FlashAttention are of 2022, 2023 and 2024. All three compute the same function, exactly,
# with the arithmetic of chapter 2. **If the algorithm is the same, what is it that each of them changed?**

# %%
import functools
import heapq
import math
import os

# Small products, and one core is fastest. NumPy reads this when it is loaded.
os.environ.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", VECLIB_MAXIMUM_THREADS="1")

import numpy as np
import torch

# %%
from flashedu import cost, demos
from flashedu.arguments import float_array
from flashedu.data import load_minilm
from flashedu.exactness import attention_bounds
from flashedu.hardware import KIB, gpu
from flashedu.kernels import DEVICE, compiled, flash_attention
from flashedu.machine import Machine

# %%
from flashedu.reference import fa1_on_machine, lazy_attention, naive_attention, naive_on_machine
from flashedu.reference.quantize import E4M3_MAX, fp8_attention, outlier_inputs, quantize_e4m3, rotate
from flashedu.results import load
from flashedu.viz import ladder as rungs
from flashedu.viz import schedule as timeline
from flashedu.viz import three_versions
from flashedu.viz.overlap import exp_share
from flashedu.viz.table import table

# %%
if DEVICE is None:
    print("Triton is not installed here (it exists for Linux): a cell that defines or starts a kernel ends in a NameError, the others run.")

# %%
if DEVICE is not None:  # after flashedu.kernels, which decides where kernels run; None: Triton is not installed
    import triton
    import triton.language as tl
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

    from flashedu.kernels.hopper_launch import L2_BYTES, TILES
    from flashedu.kernels.hopper_shared import Work, aggregate, async_load, new_ring
    from flashedu.kernels.memory import load_tile, store_tile
    from flashedu.kernels.tiles import FORWARD, padded, pick, precision

# %% [markdown]
# The first has its answer in the title, "with IO-Awareness": it moves fewer bytes. Let us count them, on the machine
# of chapter 3. One head of 2,048 tokens, head dimension 128, two bytes an element, and tiles chosen by the paper's
# own formula for the SRAM that it takes as its example, 100 KB. Naive attention writes two matrices of
# $2048 \times 2048$ and reads them back. Version 1 never stores them. **How many times fewer bytes will it move?**

# %%
rng = np.random.default_rng(0)
n, d = 2048, 128
q, k, v = (rng.standard_normal((n, d), dtype=np.float32) for _ in range(3))
rows, square = np.zeros(n, np.float32), np.zeros((n, n), np.float32)
hbm = {"q": q, "k": k, "v": v, "o": np.zeros_like(q), "m": rows - np.inf, "l": rows, "lse": rows}
block_q, block_k = cost.block_sizes(100 * KIB, d, itemsize=2)
naive = Machine({**hbm, "s": square, "p": square}, sram_bytes=10**7, itemsize=2)
version_1 = Machine(hbm, cost.tiled_sram(block_q, block_k, d, itemsize=2), itemsize=2)
naive_on_machine(naive)
fa1_on_machine(version_1, block_q, block_k)

# %%
bound, _ = attention_bounds(q, k, v, block_k=block_k)
moved = {}
for name, machine in (("naive", naive), ("version 1", version_1)):
    moved[name] = machine.read_bytes + machine.written_bytes
    print(f"{name:9}: {moved[name] / 1e6:.1f} MB moved, error {bound.ratio(machine.hbm['o']):.3f} of what rounding allows")
print(f"tiles of {block_q} queries and {block_k} keys: {moved['naive'] / moved['version 1']:.2f} times fewer bytes")

# %% [markdown]
# Both are exact, and the bytes are the same within a few per cent. At this head dimension, and with this SRAM, the
# algorithm that is about moving fewer bytes moves as many as what it replaces. (The formula for the tiles forgets the
# tile of scores, as chapter 3 found; the machine was given the SRAM that they need, which is more than 100 KB.)
#
# There is no trick, and the paper's theorem is right. This chapter finds out where the theorem bites, and why the
# second version is a different loop and the third a different kernel. The last one you will read line by line. (No
# cell but one needs a GPU. The kernels need Triton, which exists for Linux only.)
#
# ## Version 1: keys outside
#
# Version 1 loads a tile of keys and values once, and lets all queries pass by. A row that has met these keys is not
# finished. Its state $(m, l, o)$ goes back to HBM and is fetched again when the next tile of keys comes. So with $T$
# tiles of keys, each row of queries costs, $T$ times, the reading of $q$ and $o$, the writing of $o$, and four
# numbers for $m$ and $l$:
#
# $$\text{bytes} \approx \underbrace{2 N D}_{k,\, v} + T \cdot N (3 D + 4), \qquad T = \lceil N / B_c \rceil .$$
#
# (In elements; at the end each row adds one number, lse.) `cost.fa1_traffic` is this form. Does it agree with what
# the machine counts? And what does the height of a tile of queries do to it?

# %%
small = {name: x[:300] for name, x in hbm.items()}
agree = []
for bq, bk in [(bq, bk) for bq in (1, 17, 64, 300) for bk in (7, 50, 100, 300)]:
    machine = Machine(small, sram_bytes=10**7, itemsize=2)
    fa1_on_machine(machine, bq, bk)
    agree.append((machine.read_bytes, machine.written_bytes) == cost.fa1_traffic(300, 300, d, bq, bk, itemsize=2))
print(f"{sum(agree)} of {len(agree)} counts equal the closed form exactly")

# %% [markdown]
# `block_q` is not in it, just as `block_k` is not in the traffic of chapter 3's loop. Now look at the first screen
# again. With $B_c = M/4D$, the traffic is $N^2 (3D + 4) / B_c \approx 12 D^2/M$ times $N^2$, and naive attention's is
# 4 times $N^2$. They are equal at $M = 3 D^2$. What is that in bytes?

# %%
for head_dim in (64, 128, 256):
    print(f"D = {head_dim:3}: version 1 gains when SRAM is larger than 3 D^2 = {2 * 3 * head_dim**2 / KIB:4.0f} KiB (2 bytes an element)")

# %% [markdown]
# There is the coincidence: for $D = 128$ the break-even is at 96 KiB. The theorem says $\Theta(N^2 D^2/M)$ for
# $D \le M \le N D$, and it is right; it does not name the constant. It is $D^2/M$ that has to be small, and a head
# dimension twice as large needs four times the SRAM. The paper measured its gain for GPT-2 with $D = 64$, where the
# same SRAM gives:

# %%
block_q, block_k = cost.block_sizes(100 * KIB, 64, itemsize=2)
ratio = sum(cost.naive_traffic(8192, 64, 1, 1, 2)) / sum(cost.fa1_traffic(8192, 8192, 64, block_q, block_k, 2))
print(f"D = 64, N = 8,192, tiles of {block_q} x {block_k}: {ratio:.1f} times fewer bytes than naive attention")

# %% [markdown]
# (Figure 2 of the paper reports more: forward and backward, with 1,024 tokens, 16 heads of 64 and a batch of 64,
# moved 4.4 GB instead of 40.3 on an A100. But that is another count. The backward pass is in it, and PyTorch's
# attention of that time presumably passed over its matrices more often than our naive attention, which does the
# least.)
#
# The formula's tiles are not the best that can be had. In this loop `block_q` is free of charge, so make it small and
# give the room to the keys. The next picture runs both loops on tiles of 64 queries and 256 keys. **Chapter 3 said
# that version 1's order loses by its writing. Which order moves more here?**

# %%
demos.loop_order(n=1024, head_dim=128, block_q=64, block_k=256, step=9)

# %% [markdown]
# Version 1 wins, by far. In each order the height of the tile that is outside decides, and here version 1 has the
# taller one. Turn the tiles round, 256 queries and 64 keys, and the other order wins, by more. A fair comparison lets
# each choose. With the same SRAM both can have about the same number $B$ of rows in their outer tile, and then
# version 1 moves $3D/B$ elements for each score (q and o in, o out), and version 2 moves $2D/B$ (k and v in).

# %%
SHORT = 16  # rows of the inner tile: few, since they cost no bytes


def best_outer(sram_bytes, d):
    """The most rows of the outer tile, in 2 bytes, with SHORT rows in the inner one."""
    elements = sram_bytes // 2 - 2 * SHORT * d
    return max(1, elements // (2 * d + SHORT + 2))


# %%
def gains_of(d, sram_sizes, n=8192):
    """Bytes of naive attention over those of the three ways, for each size of SRAM."""
    naive_bytes = sum(cost.naive_traffic(n, d, 1, 1, 2))
    ways = {name: [] for name in three_versions.WAYS}
    for sram in sram_sizes:
        outer = best_outer(sram, d)
        counts = [cost.fa1_traffic(n, n, d, *cost.block_sizes(sram, d, 2), 2), cost.fa1_traffic(n, n, d, SHORT, outer, 2),
                  cost.tiled_traffic(n, n, d, outer, SHORT, 2)]
        for way, count in zip(ways.values(), counts):
            way.append(naive_bytes / sum(count))
    return ways


# %%
sizes = [KIB * s for s in range(24, 257, 8)]
blocks = {g.name: g.block_shared_bytes for g in map(gpu, ("RTX 4090", "A100 80GB", "H100 SXM"))}
three_versions.gain_against_sram(sizes, {d: gains_of(d, sizes) for d in (64, 128, 256)}, blocks)

# %% [markdown]
# Every curve grows with $M$, as the theorem says, and its height is what the theorem does not say. At $D = 64$ every
# way gains on each of the three GPUs. At $D = 256$ the first version loses on all of them with the formula's tiles,
# and with the best ones it breaks even on the largest. Between the two versions with their best tiles lies the factor
# of 3 to 2 everywhere. So in bytes version 2 is *one and a half times* better, no more.
#
# As in chapter 3, this counts what crosses the border of SRAM. Between SRAM and HBM there is L2, which caught the
# re-reads there, and may catch a state that goes out and comes in again. So bytes cannot be the whole story of why
# the loops were exchanged. To see the rest, make a kernel of version 1.
#
# ## Version 1 as a kernel
#
# It uses the tools of chapter 4. Read it beside `forward_kernel`: which lines would be wrong if there were more than
# one program for a head?

# %%
# include: flashedu.kernels.version1:version1_kernel


# %%
# include: flashedu.kernels.version1:version1_forward


# %% [markdown]
# The answer is the pair of a load from `o_ptr`, `m_ptr` and `l_ptr` and the stores to the same addresses, some lines
# below. Two programs with different tiles of keys would both read a row's state, both add their keys, and both write
# it; one of the updates would be lost. So the loop over the keys is a sequence, a program owns a whole head, and the
# grid is `(batch * heads,)`. (One could divide the *queries* of a head among programs. Each would then walk over all
# keys for its own queries, the state would have no reason to leave, and that is version 2.)
#
# Even within one program the state is dangerous. A program is many threads, and the thread that stores an element
# need not be the one that loads it for the next tile of keys. `tl.debug_barrier()` makes them wait for each other,
# and `num_stages=1` forbids the compiler to start loads ahead of the stores. In `forward_kernel` there was nothing of
# the kind, because nothing was read that the kernel itself had written.
#
# Is it right? Ragged lengths, grouped queries, and rows that see no key:

# %%
def inputs(n_q, n_k, d, heads=2, kv_heads=1, dtype=torch.float32):
    random = torch.Generator().manual_seed(0)
    shapes = (1, heads, n_q, d), (1, kv_heads, n_k, d), (1, kv_heads, n_k, d)
    return [torch.randn(shape, generator=random).to(DEVICE, dtype) for shape in shapes]


# %%
def used(o, q, k, v, causal=False):
    """The largest error of o, as a part of what rounding allows."""
    bound, _ = attention_bounds(*(x.float().cpu().numpy() for x in (q, k, v)), causal=causal, dtype=q.dtype)
    return bound.ratio(o.float().cpu().numpy())


# %%
rows = []
for name, (n_q, n_k, head_dim), causal in (
    ("square", (192, 192, 64), False), ("ragged, causal", (150, 200, 64), True),
    ("rows that see no key", (100, 40, 64), True), ("head dimension 80", (70, 70, 80), False),
):
    q, k, v = inputs(n_q, n_k, head_dim)
    o, lse = version1_forward(q, k, v, causal)
    rows.append((name, n_q, n_k, head_dim, f"{used(o, q, k, v, causal):.3f}", int((lse == -math.inf).sum())))
table(["case", "queries", "keys", "D", "error / bound", "rows with lse = -inf"], rows)

# %% [markdown]
# It is exact. And it has `batch * heads` programs, no more.
#
# ## Version 2: queries outside, and many more programs
#
# An H100 SXM has 132 multiprocessors (SMs), each of which runs a program or a few at a time. How many programs are there?
# Version 1 has one for each head of each sequence. Version 2 has one for each *tile of queries* of each head. The
# next table takes tiles of 128 queries and, to keep it simple, one program on an SM at a time. If there are more
# programs than SMs they come in waves, and the last wave is rarely full. **At which of these sizes is version 1 as
# good as version 2?**

# %%
sms = gpu("H100 SXM").sms


def busy(programs):
    """The share of SMs that have work, over all waves."""
    return programs / (math.ceil(programs / sms) * sms)


# %%
cases = [("GPT-2 medium, batch of 64", 64, 16, 1024), ("Llama-3-8B, batch of 4", 4, 32, 8192), ("Llama-3-8B, one sequence", 1, 32, 8192),
         ("the same, heads divided among 8 GPUs", 1, 4, 8192), ("the same, a short prompt", 1, 4, 1024)]
rows = []
for name, batch, heads, n in cases:
    first, second = batch * heads, batch * heads * -(-n // 128)
    rows.append((name, batch, heads, f"{n:,}", f"{first:,}", f"{busy(first):.0%}", f"{second:,}", f"{busy(second):.0%}"))
table(["", "batch", "heads", "N", "programs, version 1", "SMs busy", "version 2", "SMs busy"], rows)

# %% [markdown]
# At the sizes of 2022 the two are equals: training with short sequences and a large batch gives programs enough. Then
# sequences became long, batches small, and models were divided among GPUs, and version 1 leaves three quarters of the
# GPU idle, or nearly all of it. Version 2 is parallel over the sequence. It runs short, too, in the end; the way out
# of that, dividing the keys, is chapter 8.
#
# So the loops were exchanged for two reasons, and both follow from one: **the loop that carries a state should be the
# inner one.** Then the state has nowhere to go but registers, and the outer loop can be cut into independent pieces.
# (The exchange was not new. The paper credits Phil Tillet's kernel in Triton with both the order and the
# parallelism.)
#
# ## Version 2: less of everything but products
#
# The second change concerns operations that are not matrix products. There are few of them, and each is expensive: at
# the data sheets' rates an A100 does 312 TFLOP/s on its tensor cores and 19.5 elsewhere, 16 times less. Version 1
# keeps $o$ divided: for each tile of keys it multiplies $o$ by $l\,e^{m - m'}$, and then divides by $l'$. Version 2
# keeps it undivided, multiplies by $e^{m - m'}$, and divides once, at the end. That saves one operation for each
# element of $o$ and each tile of keys. The next table has one query and 128 keys, and counts in operations outside
# the tensor cores. **What share of the whole is it?**

# %%
SLOWER = 312 / 19.5  # A100: tensor cores against all else
rows = []
for head_dim in (64, 128):
    products = 4 * 128 * head_dim / SLOWER  # of one query with 128 keys, in units of one other operation
    scores = 4 * 128  # for each score: scale and subtract, exp, maximum, sum
    first, second = (products + scores + uses * head_dim for uses in (2, 1))
    rows.append((head_dim, f"{products:.0f}", scores, 2 * head_dim, head_dim, f"{1 - second / first:.1%}"))
table(["D", "products", "softmax", "o in version 1", "o in version 2", "saved"], rows)

# %% [markdown]
# A few per cent. It is a model, in which every operation counts as one and nothing overlaps, but the order of
# magnitude is clear: this alone would not have made a second paper. The bytes, the programs, and how a program's
# warps share its work (each gets rows of queries, so that none waits for another's part of a sum) do the rest. What
# the table does show is that softmax costs a time that can be compared with the products', which is where version 3
# will begin.
#
# ## How many rescalings are needed?
#
# What is left for $o$ is the multiplication by $e^{m - m'}$. Chapter 2 counted that it is a multiplication by 1 most
# of the time. Can it be left out then? On a GPU a thread cannot skip an instruction that its neighbours execute: 32
# threads, a *warp*, go through the code together. With one row a thread, 32 rows must agree. So first count how often
# a single row needs it, and then how often some row of 32 does. Scores are random, 256 rows, 64 blocks of 128 keys.
# By chapter 2's sum a row should rescale in $\frac12 + \frac13 + \dots + \frac1{64}$ of its 63 later blocks, which is
# 6 of 100. **Guess the share for 32 rows together.**

# %%
def rescaled(tops, threshold, group=32):
    """Shares of (row, block) pairs, and of (group of rows, block) pairs, that are rescaled; tops (blocks, rows)."""
    m, moves = tops[0], []
    for top in tops[1:]:
        moves.append(top > m + threshold)
        m = np.where(moves[-1], top, m)
    together = np.logical_or.reduceat(moves, range(0, tops.shape[1], group), axis=1)
    return np.mean(moves), together.mean()


# %%
rng = np.random.default_rng(0)
q, k = (rng.standard_normal((n, 64), dtype=np.float32) for n in (256, 8192))
tops = (q @ k.T * 64**-0.5).reshape(256, 64, 128).max(axis=2).T  # (blocks, rows)
rows = [(f"{t:.2f}", f"{np.exp(t):.1f}", *(f"{share:.1%}" for share in rescaled(tops, t))) for t in (0, 0.5, 1, 2, 4, math.log(256))]
table(["threshold", "e^threshold", "rows rescaled", "groups of 32 rows rescaled"], rows)

# %% [markdown]
# In two blocks of three *somebody* has a new maximum, and everybody multiplies. But look down the last column. A new
# maximum is mostly larger by very little, and nobody said that $m$ must be the maximum. The output is a quotient of
# two sums of $e^{s - m}$, the same for any $m$, and what the maximum is for is to keep them from overflowing. So let
# $m$ lag behind, and move it only when the true maximum has gone ahead by more than a threshold. No exponential then
# exceeds $e^{\text{threshold}}$, and 256 does not overflow anything.
#
# This is `lazy_attention`, and you will write it. It is neither in the second paper nor in the third: it comes from
# FlashAttention-4, the kernel for Blackwell (Zadouri et al. 2026). Does it hold for a real model, whose scores are
# not random? The heads of chapter 2's model: head 1 looks everywhere, head 8 at the next token, head 10 at the first.
# Which of them will rescale most, and what does the threshold do to the error?

# %%
real = load_minilm()
rows = []
for head in (1, 8, 10):
    q, k, v = (x[head] for x in (real.q, real.k, real.v))
    bound, _ = attention_bounds(q, k, v, block_k=32)
    for threshold in (0, 2, math.log(256)):
        o, rescalings = lazy_attention(q, k, v, 32, threshold)
        share = rescalings / (len(q) * 8)  # a row has eight later blocks
        rows.append((head, f"{threshold:.2f}", rescalings, f"{share:.1%}", f"{bound.ratio(o):.3f}"))
table(["head", "threshold", "rescalings", "of all rows and blocks", "error / bound"], rows)

# %% [markdown]
# Head 8 needs it most: in each row the one key that it looks for comes at its own time, and the maximum jumps. The
# others could do without. The error does not care, since floating-point numbers are as precise near 256 as they are
# near 1. It is exact attention, with fewer operations.
#
# ## Version 3: what Hopper has
#
# Version 2 was written for the A100, and on an H100 it reached 35 % of what the tensor cores can do (Shah et al.
# 2024, abstract). The end of chapter 4 has a reason. At $D = 64$ the exponentials alone take as long as both
# products, and in a loop where each needs the other's result, one of the two units always waits. Hopper, compute
# capability 9.0, brought three things that version 3 is made of.
#
# - **TMA**, the *tensor memory accelerator*: one thread names a tile of a tensor, and a unit of its own brings it into
#   shared memory, with all addresses, strides and edges. It tells a *barrier* in shared memory when the bytes have
#   landed. No registers and no other threads are involved.
# - **wgmma**, a matrix product that is started by four warps together (a *warpgroup*) and goes on in the background.
#   The second operand lies in shared memory, the first there or in registers, the sum in registers. Whoever wants the
#   result waits for it. Until then the warps can do something else.
# - **Registers that change hands**: with `setmaxnreg` one warpgroup gives up registers and another takes them, so that
#   warps of one program can do quite different work.
#
# Together they make a division of labour possible. A *producer*, one warp, does nothing but load. *Consumers*
# multiply and do softmax. While the exponentials of one consumer are computed, the tensor core works on the products
# of another, or on the other product of the same one.
#
# Predict before you touch the sliders. At $D = 128$ the exponentials take half as long as the products. What share of
# the time is the tensor core busy in version 2, where the two take turns? And what is the most that version 3 can do
# at $D = 32$, however cleverly it is arranged?

# %%
demos.overlap(head_dim=128)

# %% [markdown]
# In turns, the products get 1 part of $1 + \tfrac12$, two thirds. At $D = 32$ the exponentials are the longer job,
# twice as long, and the tensor core cannot be busier than half of the time in any order. The table has the same model
# over 128 tiles. There are two ways to overlap, and they can be combined: two consumers that take turns
# ("ping-pong"), or one consumer whose second product runs under its next softmax. The kernel below has two consumers,
# and does the second.

# %%
rows = []
for head_dim in (256, 128, 64, 32):
    e = exp_share(head_dim)  # and loading a tile takes 0.75 of the time of its products
    ways = [timeline.version_2(128, e, 0.75)]
    ways += [timeline.version_3(128, e, 0.75, 2, *how) for how in ((True, False), (False, True), (True, True))]
    rows.append((head_dim, f"{e:.2f}", *(f"{timeline.utilisation(jobs):.0%}" for jobs in ways)))
table(["D", "exp / products", "version 2", "ping-pong", "inside one consumer", "both"], rows)

# %% [markdown]
# At $D = 128$ either way would do. At $D = 64$ one consumer alone cannot hide its exponentials, since only one of its
# two products is there to hide them under. It is a model of three units at their full rates, and a real kernel stays
# below it. Now that kernel. It is written in *Gluon*, the lower level of Triton: still Python, still tiles and no
# threads, but you decide which warps do what, where a tile lies, and who waits for what. Gluon does not run in the
# interpreter, and TMA and wgmma are Hopper's. So without such a GPU you can read it and compile it, which is what we
# do.
#
# ## Barriers, and the ring
#
# A barrier (in Gluon *mbarrier*, since it lives in memory) counts arrivals. When as many have arrived as it was made
# for, it starts again, and its *phase* turns from 0 to 1 or back. `wait(phase)` returns when the phase of that name
# is over. Fresh, a barrier is in phase 0. So `wait(0)` waits for the first round of arrivals, and `wait(1)` returns
# at once, as if a round had just ended.
#
# That is all one needs for a *ring*: a few slots of shared memory, each with two barriers, `ready` (the tile is
# there) and `empty` (all have read it). The uses of the ring are counted through. Use number `use` takes slot
# `use % SLOTS` for the `use // SLOTS`-th time, and the parity of that is the phase.

# %%
# include: flashedu.kernels.hopper_shared:Ring


# %% [markdown]
# `fill` runs in the producer, `wait` and `free` in the consumers. (`aggregate` makes a class of which kernels can
# have objects.) In `fill` the last lines are one order to TMA: bring the tile that begins at that row of head
# `(b, h)`. `source` is a *descriptor*, what TMA is told about a tensor: address, shape, strides, and the shape of a
# tile. `expect` is the one arrival that `ready` counts, and it keeps the phase open until `nbytes` have landed. The
# call returns at once. Rows beyond the end of the tensor arrive as zeros, and since the descriptor has an axis of its
# own for the head, a ragged last tile cannot read the next head's rows. (`reshape` drops the two axes of length 1
# again. Nothing moves.)
#
# Look at the phases. The consumers wait for the phase with the parity of their round. The producer's `^ 1` turns it
# round. In its first round it waits for phase 1, which passes at once, since all slots are empty in the beginning.
# Afterwards it waits for the consumers' previous round.
#
# It is easy to get wrong, and then a kernel does not give a wrong number but never ends, or worse. Here is a barrier
# in plain Python, and a producer and two consumers that are woken in random order. `flip` is the `^ 1`, `readers` is
# how many arrivals make a slot empty.

# %%
class Barrier:
    def __init__(self, count):
        self.count, self.missing, self.phase = count, count, 0

    def arrive(self):
        self.missing -= 1
        if self.missing == 0:
            self.missing, self.phase = self.count, self.phase ^ 1

    def passes(self, phase):
        return self.phase != phase


# %%
def loads(slots, ready, empty, tiles, flip):
    """A producer: use after use, it waits, fills the slot and says so. It yields whether it could go on."""
    for use in range(tiles):
        while not empty[use % len(slots)].passes(use // len(slots) & 1 ^ flip):
            yield False
        slots[use % len(slots)] = use
        ready[use % len(slots)].arrive()
        yield True


# %%
def reads(slots, ready, empty, tiles, seen):
    """A consumer: use after use, it waits, works on the slot for a while, and gives it back."""
    for use in range(tiles):
        while not ready[use % len(slots)].passes(use // len(slots) & 1):
            yield False
        yield True  # others run while it works
        seen.append(slots[use % len(slots)])
        empty[use % len(slots)].arrive()
        yield True


# %%
def play(slots=2, readers=2, flip=1, tiles=8, seed=0):
    ready, empty = [Barrier(1) for _ in range(slots)], [Barrier(readers) for _ in range(slots)]
    ring, seen, random = ([None] * slots, ready, empty, tiles), ([], []), np.random.default_rng(seed)
    warps, idle = [loads(*ring, flip), *(reads(*ring, own) for own in seen)], 0
    while warps and idle < 1000:
        warp = warps[random.integers(len(warps))]
        moved = next(warp, None)
        warps = [w for w in warps if w is not warp or moved is not None]
        idle = 0 if moved or moved is None else idle + 1
    right = all(own == list(range(len(own))) for own in seen)
    return ("ends" if not warps else "waits for ever"), ("every tile right" if right else "reads tiles that were overwritten")


# %% [markdown]
# Four rings, each played a hundred times in different random orders: as it should be; with one slot only; with `^ 1`
# forgotten; and with an `empty` that turns after *one* of the two consumers has read. **Which hang, which read wrong
# tiles, which are only slower?**

# %%
rings = {"2 slots": {}, "1 slot": {"slots": 1}, "without ^ 1": {"flip": 0}, "empty counts 1 reader": {"readers": 1}}
rows = []
for name, changes in rings.items():
    played = [play(**changes, seed=seed) for seed in range(100)]
    rows.append((name, *(sum(word in game for game in played) for word in ("ends", "waits for ever", "reads tiles that were overwritten"))))
table(["100 random orders", "ends", "waits for ever", "reads overwritten tiles"], rows)

# %% [markdown]
# One slot is enough to be right, and then a tile can only be loaded when nobody computes with the last one. Without
# the `^ 1` the producer waits for consumers who wait for the producer: nobody starts. A barrier that counts too few
# readers does what it likes: the slower reader finds a tile that was meant for later, or its own arrival turns the
# phase once more and everybody waits, or neither. (A game can be in two of the columns.) Which of these happens
# depends on the order in which warps happen to run, and on a GPU that may be the good one a million times. The kernel
# makes `empty` with the number of consumers, and the ring of Q, whose tiles have one reader each, with 1.
#
# ## The producer
#
# A program's work is a list of *items*, one tile of queries of one head each. For every item the producer asks for
# the keys, the queries (a tile for each consumer, of `ROWS`, 64 rows), and the values.

# %%
# include: flashedu.kernels.hopper:producer


# %% [markdown]
# There is no arithmetic, and no tile in its registers: 24 registers a thread will do. It runs ahead of the consumers
# until the rings are full, across the border between two items, so that the first keys of the next item are on their
# way while the consumers finish the last one.
#
# **From the last tile to the first.** `j` counts down. Masks are needed where the mask's diagonal passes, and where
# the last tile reaches past the end. Both are at the end of a row's keys. Begun there, the tiles with a mask come
# first, and from then on there is none. The order is free: chapter 2's state takes blocks in any order.
#
# **Two rings.** Why are K and V of a tile not loaded together into one slot? They are not used at the same time. You
# will see below that the consumers multiply by $K_j$ while they still multiply by $V_{j-1}$, so K is free one round
# earlier than V. With two slots for pairs, both would be held at that moment, and no load could be under way. With
# two slots each for K and V, $K_{j+1}$ and $V_j$ come in meanwhile.
#
# **The order of the first loads.** K before Q before V is the order in which consumers need them: the first product
# wants both K and Q, then comes softmax, then V.
#
# ## Softmax, and the mask
#
# These two are chapter 4's, with layouts. In Gluon one says which thread holds which element, and for a wgmma there
# is no choice: the sum lies in the registers as the instruction leaves it.

# %%
# include: flashedu.kernels.hopper:masked


# %%
# include: flashedu.kernels.hopper:softmax


# %% [markdown]
# `SliceLayout(0, layout)` is the layout of one row of the tile, `SliceLayout(1, layout)` that of one column: they say
# that `keys` and `m` are spread over threads in such a way that adding them to a tile of scores needs no
# communication. In the other direction, a row of the scores lies in four threads of a warp, so `gl.max` and `gl.sum`
# exchange numbers between those four and no others.
#
# The last line of `softmax` is the most important one. $P$ is the *first operand* of the next product, and a wgmma
# takes its first operand from registers, in a layout called `DotOperandLayout`. For 16-bit numbers that is the layout
# which the sum of the last product has already. So $S$ comes out of one wgmma and goes into the next as $P$ without
# leaving the thread. That is why `S` and `P` never touch shared memory.
#
# `GUARD` is chapter 2's NaN trap once more. A row that has seen no key so far can exist only under a causal mask, so
# only that kernel pays for it.
#
# ## The loop
#
# This is the heart. `warpgroup_mma(..., is_async=True)` starts a product. `warpgroup_mma_wait(n, ...)` returns when
# at most `n` products are still running, and they finish in the order in which they were started. **For each of the
# two waits, say which product is done and which is in flight after it, before you read on.**

# %%
# include: flashedu.kernels.hopper:attend


# %% [markdown]
# Round `t` starts with the weights `p` of the tile *before*, still waiting for their product with V.
#
# 1. $S_t = Q K_t^\top$ is started, and then $O \mathrel{+}= P_{t-1} V_{t-1}$. Both are in flight. The tensor core does
#    them one after the other.
# 2. `wait(1)`: one may still be running. So the first, $S_t$, is done, and the product with V may go on.
# 3. `softmax` of $S_t$, on other units of the SM, while the product with V may still run.
# 4. `wait(0)`: now $O$ is complete up to tile $t - 1$, under the maximum that was valid then. `alpha` is how this tile's
#    softmax changed the maximum, and `scaled` repairs $O$ by it.
#
# Step 3 is the overlap inside one consumer, as written. The assembler may move a wait, and it does: in the machine
# code for $D = 128$ (Triton 3.6 and 3.7.1, read with `cuobjdump -sass`) `wait(0)` stands after the row maximum and
# before the first exponential. So one consumer hides its maxima under its own product, and its exponentials under
# the products of the *other* consumer. An order of the lines by which the exponentials did stand between the products
# in the machine code was slower on an H200. Listings are for finding out what runs; how fast it is, only a clock says.
#
# `l` was repaired by `alpha` earlier than `O`, inside of `softmax`, since `l` contains tile $t$ already and `O` does
# not. There is nothing wrong with that as long as both have been multiplied by the same factors in the end.
#
# **Who waits for whom.** The consumer waits for the producer twice, in `k_ring.wait(use)` and `v_ring.wait(use - 1)`,
# and if the loads are ahead these waits are over before they begin. The producer waits for *all* consumers at each
# slot. The consumers never wait for each other: nothing in the loop mentions the other one. They do share a tensor
# core, and when one is in its softmax, the other's products have it to themselves. (Version 3's paper makes them take
# turns by force, with barriers of their own, the "ping-pong". When we tried it on an H200, in a kernel of this shape,
# it cost speed.)
#
# `k_ring.free(use)` could stand right after `wait(1)`, when the keys have been read. It stands behind `softmax`,
# because giving back a slot makes the threads of the warpgroup meet, and there they would meet just when they should
# begin with the exponentials. The ring has a second slot, so the producer does not miss it.
#
# **Why the mask is asked for twice.** `work.CAUSAL` is a constant: without a causal mask the compiler never sees the
# two lines below. `t < unmasked` is a number at run time, which takes one comparison a tile, not one a score. A
# ragged end is not asked for here at all. It is in the last tile of keys, so it is over before the loop begins.
#
# `permute` turns K round without moving it; the instruction can read it either way. `use_acc=False` says that $S$ is
# not added to anything, so the `zeros` are never looked at; the function wants a tensor in that place.
#
# ## The consumer
#
# Around the loop: set up the layouts, take the first tile apart, finish.

# %%
# include: flashedu.kernels.hopper:consumer


# %% [markdown]
# `c` is a constant: each consumer is compiled by itself. `S`, `O` and `P` are layouts, not tensors.
# `instr_shape=[16, n, 16]` is the piece that one wgmma computes for each warp, 16 rows by `n` columns, summed over
# 16.
#
# **Tiles that pass by.** With a causal mask the item's last tiles of keys may be visible to the lower rows only. The
# upper consumer does not compute with them, but it must not leave the ring's accounting either. `empty` counts every
# consumer. So it waits for such a tile and gives it back unread. (A consumer that simply began later would leave the
# producer waiting for ever. Try it with `play`, if you like.)
#
# **The first tile apart.** In the loop a product with the *previous* V is under way. The first tile has no previous
# one, so it is peeled off: product, wait, mask, softmax. This is the only tile that can be ragged, and the condition
# is `CAUSAL or RAGGED`, both constants. A kernel for full tiles without a causal mask contains no mask at all.
#
# **Behind the loop** one product with V is still owed. Before it is started, `q_ring.free` tells the producer that
# the next item's queries may come. Then the division, once, as version 2 taught, and lse in natural logarithms. o
# goes through `convert_layout`, into a layout in which neighbouring threads have neighbouring addresses, so that each
# row is written in whole pieces.
#
# What is left is to start them. `warp_specialize` takes a list of functions and runs all of them at the same time, in
# different warps.

# %%
# include: flashedu.kernels.hopper:hopper_kernel


# %% [markdown]
# The first function gets the program's own 4 warps, the others the numbers in the list behind: 4 warps for each
# further consumer, 1 for the producer. (The hardware hands over registers by warpgroups, so three idle warps keep the
# producer company.) The last list has their registers. An SM has 65,536. How are they divided?

# %%
rows = []
for head_dim, tile in TILES.items():
    threads = 128 * (tile.consumers + 1)
    alike = 65536 // threads // 8 * 8
    wanted = tile.consumers * 128 * tile.registers + 128 * 24
    tiles_of_a_thread = 64 * head_dim // 128 + 64 * tile.block_k // 128 + 64 * tile.block_k // 128 // 2
    rows.append((head_dim, tile.consumers, tile.block_k, threads, alike, tile.registers, f"{wanted:,}", tiles_of_a_thread))
table(["D", "consumers", "rows of K", "threads", "registers, divided evenly", "of a consumer", "of all threads", "O, S and P take"], rows)

# %% [markdown]
# Compare the even division with the last column: at $D = 128$ it would leave a handful for everything but the tiles,
# at $D = 64$ nothing, and at $D = 256$ less than that. It is the producer's poverty that makes room. At $D = 256$ the
# output takes so much that the tile of keys is halved. At $D = 64$ a third consumer fits, and helps to hide the
# exponentials.
#
# ## What it becomes
#
# The compiler needs no GPU. Before you run it, count: a wgmma sums over 16 elements. The first product and that of
# the loop sum over $D$, the two products with V over the rows of K, and every consumer has its own code. **How many
# wgmma stand in the code for $D = 128$?**

# %%
kernels = {head_dim: compiled.hopper(head_dim) for head_dim in TILES}
rows = []
for head_dim, found in kernels.items():
    tile, count = TILES[head_dim], found.counts
    expected = tile.consumers * (2 * head_dim // 16 + 2 * tile.block_k // 16)
    in_rings = 2 * head_dim * (64 * tile.consumers + 2 * tile.slots * tile.block_k)  # bytes of Q, K and V
    rows.append((head_dim, f"{in_rings:,}", f"{found.shared_bytes:,}", f"{found.registers}", f"{found.spill_bytes}", expected,
                 count["wgmma.mma_async"], count["cp.async.bulk.tensor"], count["setmaxnreg"]))
table(["D", "bytes of Q, K, V", "shared bytes", "registers", "spilled", "wgmma, expected", "wgmma", "TMA", "setmaxnreg"], rows)

# %%
print(f"a block may have {kernels[128].shared_limit_bytes:,} bytes of shared memory")
print("warnings of the assembler:", [warning for found in kernels.values() for warning in found.warnings] or "none")
print(kernels[128])

# %% [markdown]
# No spills; nearly all of the shared memory is tiles in flight, and most of the rest is scratch space, presumably for
# o's change of layout. The registers in the table are those before `setmaxnreg`, the even division. That there is no
# warning is not to be taken for granted. If the assembler finds that a register of a running product is touched, it
# makes every wgmma wait for the one before, says so in a warning, and the overlap is gone, in a kernel whose results
# are right.
#
# On a Hopper GPU the next cell runs the kernel. Elsewhere it says what is missing.

# %%
if DEVICE == "cuda" and torch.cuda.get_device_capability() == (9, 0):
    for head_dim in TILES:
        for n_q, n_k, causal in ((2048, 2048, False), (2048, 2048, True), (1000, 1999, True), (1, 777, False)):
            q, k, v = inputs(n_q, n_k, head_dim, heads=8, kv_heads=2, dtype=torch.bfloat16)
            o = flash_attention(q, k, v, causal=causal, backend="hopper")
            print(f"D = {head_dim}, {n_q} x {n_k}, causal={causal}: {used(o, q, k, v, causal):.3f} of what rounding allows")
else:
    print("This needs a GPU of compute capability 9.0: H100, H200 or GH200.")

# %% [markdown]
# ## Who works on what
#
# One thing is missing, and it decides about causal attention. The kernel is *persistent*: as many programs as SMs are
# started, and each works through a list of items. With a causal mask items differ: the first tile of queries of a
# head sees one or two tiles of keys, the last one sees all. The kernel ends when the last program does. Who should
# get what?

# %%
# include: flashedu.kernels.hopper_launch:schedule


# %% [markdown]
# Think of people at tills. `free` is a heap of (time, program), and each item goes to the program that is free first,
# the longest items first, so that the short ones fill the gaps at the end. It is done in advance, in Python, and once
# for each shape (`lru_cache`); the kernel reads its column of the table. (`section` keeps the programs on a few heads
# at a time, so that their keys and values stay in L2.)
#
# Compare it with two simple ways, for 16 heads of 16,384 tokens, $D = 128$, causal, 132 programs: equal runs of items
# (program 0 takes the first 16, and so on), and every 132nd item. **How far is the busiest program above the mean in
# each?**

# %%
n, heads, tile = 16384, 16, TILES[128]
block_q, tiles_of_head = 64 * tile.consumers, n // (64 * tile.consumers)
given = schedule(heads, 4 * n * 128, n, n, block_q, tile.block_k, True, sms, "cpu").numpy()


def key_tiles(item):
    return -(-(item % tiles_of_head + 1) * block_q // tile.block_k)


# %%
items = np.arange(heads * tiles_of_head)
ways = {
    "equal runs": np.array_split(items, sms),
    "every 132nd": [items[p::sms] for p in range(sms)],
    "free first, longest first": [column[1 : 1 + column[0]] for column in given.T],
}
three_versions.program_loads({name: [sum(map(key_tiles, own)) for own in programs] for name, programs in ways.items()})

# %% [markdown]
# Equal *numbers* of items are far from equal work: whoever gets the end of a head works nearly twice as long as the
# mean, and everybody waits. Every 132nd looks fairer than it is. A head has 128 tiles, so that from one item to the
# next a program moves on by only four tiles within a head: who begins with short rows gets short rows for long. Given
# out by the clock, the work is level to about a per cent. Nothing of this is about attention. It is an old rule of
# scheduling, longest job first, and without it a causal kernel's pipeline would be busy on some SMs while others have
# gone home.
#
# ## fp8: numbers with three bits of fraction
#
# Hopper's tensor cores multiply 8-bit numbers twice as fast as 16-bit ones. The format, e4m3, has a sign, four bits
# of exponent and three of fraction. Here is the whole of its rounding:

# %%
# include: flashedu.reference.quantize:round_e4m3


# %%
every = np.unique(round_e4m3(np.geomspace(2**-11, 500, 200001)))
print(f"{len(every)} numbers from 0 to {every[-1]:.0f}, the smallest above 0 is {every[1]:.2g}, the next below {every[-1]:.0f} is {every[-2]:.0f}")
x = rng.standard_normal(100000, dtype=np.float32) * 30
theirs = torch.tensor(x).to(torch.float8_e4m3fn).float().numpy()
print("100,000 random numbers rounded as by torch:", np.array_equal(round_e4m3(x), theirs))
normal = x[np.abs(x) >= 2**-6]
print(f"largest relative error of those from 2^-6 on: {np.abs(round_e4m3(normal) / normal - 1).max():.4f}")

# %%
three_versions.number_lines({"e4m3": every, "bfloat16": [m * 2.0**e / 128 for e in range(-9, 4) for m in range(128, 256)]}, (0, 4))

# %% [markdown]
# Eight numbers to each power of two, where bfloat16 has 128. An error of nearly a sixteenth is possible in each
# element. A *scale* for each tensor, or for each block of rows, brings the largest element to 448, the largest number
# there is, so that none overflows and few fall below the smallest.
#
# Models have *outliers*, a few elements that are ten or a hundred times as large as the others. The paper tests with
# an artificial kind: each element is $N(0, 1)$, and one in a thousand has $N(0, 100)$ added to it, a standard
# deviation of 10. A first guess is that outliers spoil the scale, as the largest one decides it and the others get
# what is left. Is it so? For one head, compare elements and scores, with the inputs as they are and after `rotate`,
# which is explained below.

# %%
q, k, v = outlier_inputs(256, 16384, 128, seed=0)
exact_scores = q.astype(np.float64) @ k.T.astype(np.float64) * 128**-0.5
rows = []
for name, (a, b) in {"as they are": (q, k), "rotated": rotate(q, k, seed=1)}.items():
    (a8, a_scale), (b8, b_scale) = quantize_e4m3(a, len(a)), quantize_e4m3(b, len(b))
    elements = np.linalg.norm(a8 * a_scale - a) / np.linalg.norm(a)
    off = np.abs(a8 * a_scale @ (b8 * b_scale).T * 128**-0.5 - exact_scores)
    rows.append((name, f"{np.abs(a).max():.1f}", f"{elements:.2%}", f"{np.median(off):.3f}", f"{off.max():.2f}"))
table(["", "largest element of q", "relative error of q", "error of a score: median", "largest"], rows)

# %%
a8, b8 = (numbers * scales for numbers, scales in (quantize_e4m3(q, len(q)), quantize_e4m3(k, len(k))))
off = np.abs(a8 @ b8.T * 128**-0.5 - exact_scores)
i, j = np.unravel_index(off.argmax(), off.shape)
parts = q[i] * k[j] * 128**-0.5
c = np.abs(parts).argmax()
print(f"the worst score is {exact_scores[i, j]:.1f}; one of its {len(parts)} products, {q[i, c]:.1f} times {k[j, c]:.1f}, makes {parts[c]:.1f} of it")
print(f"its error is {off[i, j] / abs(exact_scores[i, j]):.1%} of it; the median of all scores' sizes is {np.median(np.abs(exact_scores)):.1f}")

# %% [markdown]
# The elements are no worse with outliers than without: this is a *floating-point* format, and an element that is ten
# times smaller has a step that is ten times smaller. (With 8-bit integers the first guess would be right.) The
# typical score is no worse either. What differs is the *largest* error of a score. Where a query and a key have an
# outlier in the same place, the product of the two outweighs all others, and its error of a few per cent is a few per
# cent of something large. Such scores are rare, but they are large, and softmax listens to the large ones.
#
# ## A rotation that changes nothing
#
# The product $q k^\top$ is the same in every orthonormal basis: $(qR)(kR)^\top = q R R^\top k^\top = q k^\top$. So
# choose a basis in which no element sticks out. `rotate` multiplies each row by random signs, and then by a *Hadamard
# matrix* over $\sqrt D$, all of whose elements have the same size. One large element becomes $D$ elements of moderate
# size. The paper calls it *incoherent processing*. With a fast transform it costs $D \log_2 D$ additions a row. **In
# exact arithmetic nothing changes. How can that be checked with floating-point numbers, to the last bit?**

# %%
whole_q, whole_k = (rng.integers(-8, 9, (n_, 64)).astype(np.float64) for n_ in (50, 70))
turned_q, turned_k = rotate(whole_q, whole_k, seed=3)
print("integers, D = 64: the same products to the bit:", np.array_equal(turned_q @ turned_k.T, whole_q @ whole_k.T))
one = np.zeros((1, 64))
one[0, 5] = 8.0
print("one element of 8 becomes 64 of size", np.unique(np.abs(rotate(one, one, seed=3)[0])))
a, b = rotate(q.astype(np.float64), k.astype(np.float64), seed=1)
print(f"outliers, D = 128: largest difference of a score in float64 {np.abs(a @ b.T * 128**-0.5 - exact_scores).max():.0e}")

# %% [markdown]
# With integers and $\sqrt D = 8$ every sum and every product is exact, so that equality can be asked for. Now the
# output. q, k, v and $P$ are rounded to e4m3, sums are float32, 256 queries and 16,384 keys, four seeds. The truth is
# naive attention in float64.

# %%
errors = {}
for seed in range(4):
    q, k, v = outlier_inputs(256, 16384, 128, seed)
    exact = naive_attention(*(x.astype(np.float64) for x in (q, k, v)))
    for rotation, pair in (("", (q, k)), (", rotated", rotate(q, k, seed=1))):
        for scales, sizes in (("one scale", (256, 16384)), ("block scales", (128, 128))):
            o = fp8_attention(*pair, v, *sizes)
            errors.setdefault(scales + rotation, []).append(np.sqrt(np.mean((o - exact) ** 2, axis=1)))

# %%
paper = {"one scale": "2.4e-2", "block scales": "2.4e-2", "one scale, rotated": "9.3e-3", "block scales, rotated": "9.1e-3"}
rows = []
for name, published in paper.items():
    of_rows = np.array(errors[name])  # (seeds, rows)
    rows.append((name, *(f"{np.sqrt(np.mean(own**2)):.1e}" for own in of_rows), f"{np.median(of_rows):.1e}", published))
table(["RMS error", *(f"seed {seed}" for seed in range(4)), "median row", "paper"], rows)

# %%
three_versions.sorted_errors({"one scale": np.concatenate(errors["one scale"]), "one scale, rotated": np.concatenate(errors["one scale, rotated"])})

# %% [markdown]
# The last column is table 3 of the paper (Shah et al. 2024), whose lengths are not given there; ours are similar. The
# rotation makes the error two to four times smaller, and block scales by themselves do not, for these inputs. The
# picture says where it comes from: a typical row gains less than a factor of two, and the worst rows gain most. The
# root of a mean square is dominated by these few.
#
# Do not take fp8 for exact attention. In 16 bits flash attention has 1.9e-4 in the same table. fp8 attention is the
# same algorithm on numbers that were rounded before it began, and the rounding is what one sees.
#
# ## What changes in the kernel
#
# `flashedu/kernels/hopper_fp8.py` is the kernel above, for $D = 128$, with four changes. The first is in `softmax`.
# `factor` is the product of the scales of this tile of q and this tile of k and of $\log_2 e / \sqrt D$, a number for
# each tile where it was a constant. And the weights: $P$ is at most 1, and what falls below $2^{-10}$ would become 0,
# so it is made $2^8$ times as large, by subtracting 8 less in the exponent. `l` is as much larger, and the division
# takes it out again.

# %%
# include: flashedu.kernels.hopper_fp8:softmax


# %% [markdown]
# The second change is the layout of V. A wgmma on 8-bit numbers reads both operands along the axis that it sums over,
# and can not turn them round. For $Q K^\top$ this is the head dimension, in which rows lie in memory. For $P V$ it is
# the *keys*, so V must be in memory as $V^\top$. The producer loads columns of it, and the consumer calls `permute`
# on V, too.
#
# The third is about P. Of each row of $S$, four threads have 16 keys between them, and what a product leaves with a
# thread is not what the next product wants from it. In 16 bits the two agree: thread $t$ gets keys $2t$, $2t + 1$,
# $2t + 8$ and $2t + 9$, and has to deliver the very same. In 8 bits it gets the same four, but has to deliver $4t$ to
# $4t + 3$. **Three of four weights are in the wrong thread. Sending them round costs instructions that the loop has no
# time for. What could one do instead?**

# %%
# include: flashedu.kernels.fp8:transposed


# %% [markdown]
# A sum does not depend on the order of its terms. If the *values* of each 16 keys lie in the order in which the
# weights are, every thread delivers what it has. That order is made where V is transposed, outside the kernel, once.
# In the kernel four weights only have to become the four bytes of a register: `packed` rounds two at a time, and
# `operand` tells Triton that the bytes are a tile of fp8 numbers. (`inline_asm_elementwise` puts an instruction of the
# GPU's own language between the lines. Triton's `.to(gl.float8e4nv)` gives the same numbers, but keeps each in a
# register of its own from one tile to the next: 64 registers for 64 bytes, taken apart and put together again.)

# %%
# include: flashedu.kernels.hopper_fp8_weights:packed


# %%
# include: flashedu.kernels.hopper_fp8_weights:operand


# %%
print(compiled.hopper_fp8())

# %% [markdown]
# The fourth is the scales: one for every 64 queries, one for each tile of keys, and one for all values of a head,
# which is multiplied in at the end. They come from outside. The rotation is outside as well: it is done once for each
# row of q and k, before they are rounded, and the kernel does not know of it. What the kernel gets is this:

# %%
# include: flashedu.kernels.fp8:quantized


# %% [markdown]
# Does it pay? The matrix unit is twice as fast. The exponentials are not, and at $D = 128$ they took half as long as the
# products did. **What is left of the factor of two?** On an H200 each kernel was timed twice in one run: *in turn*, a few
# milliseconds of one and then of the next, and *alone*, after the same kernel had been running for as long as it was
# then timed.

# %%
fp8 = load("h200_fp8")
times = {(row["experiment"], row["n"], row["causal"], row["contender"]): row for row in fp8["rows"] if "time_ms" in row}
rows = []
for n in (4096, 8192, 16_384):
    for causal in (False, True):
        row = [f"{n:,}", "causal" if causal else "full"]
        for how in ("speed", "steady"):
            bf16, e4m3 = (times[how, n, causal, name] for name in ("version3", "fp8"))
            row += [f"{x['flops_per_s'] / 1e12:.0f}" for x in (bf16, e4m3)] + [f"{bf16['time_ms'] / e4m3['time_ms']:.2f}"]
        rows.append(row)
table(["N", "mask", "in turn: bfloat16", "fp8", "ratio", "alone: bfloat16", "fp8", "ratio"], rows)

# %%
for how, name in (("speed", "in turn"), ("steady", "alone")):
    rates = [row["flops_per_s"] / 1e12 for (found, *_, contender), row in times.items() if (found, contender) == (how, "matmul")]
    print(f"a bfloat16 matrix product, {name}: {min(rates):.0f} to {max(rates):.0f} TFLOP/s")

# %% [markdown]
# Two answers, and both are right. A GPU that works this hard comes to the limit of its power and lowers its clock until it
# keeps to it. In turn, all kernels run at the clock that the hungriest of them leave; alone, each has its own. Alone
# the 16-bit kernel and the matrix product are slower than in turn, and fp8 is faster: it needs less power for the same
# answer, and spends what it saves on clock. Who compares two kernels has to say which of the two was measured. And
# neither is a factor of two; the counters below say why. Now the errors.

# %%
names = {"one": "one scale", "blocks": "block scales"}
rows = [(f"{names[row['scales']]}{', rotated' * row['rotated']}" if row["scales"] else row["contender"], f"{row['rms_error']:.1e}")
        for row in fp8["rows"] if row["experiment"] == "errors"]
table(["on the GPU, RMS error on inputs with outliers", ""], rows)

# %% [markdown]
# They are those of the experiment in NumPy. One scale for each block is worth nothing here, and the rotation is what
# helps, on the GPU too.

# %% [markdown]
# ## The ladder, measured
#
# Bytes were counted, instructions compiled, and time was drawn. Now the clock. `python -m flashedu bench --ladder` runs
# six ways to compute the same function in turn, in the same rounds, beside a large matrix product: naive attention, the
# three versions as they stand in this chapter, and what torch has, FlashAttention-2 and cuDNN. There are 16,384 tokens,
# bfloat16, and as many heads as make $H D = 2048$. **Before you look: by which factor does each version beat the one
# before it, at $D = 128$ and without a mask? Is version 1 faster than naive attention?**

# %%
ladder = load("h200_ladder")
rungs.steps(ladder, head_dim=128)

# %% [markdown]
# Version 1 is the slowest, and by far: it loses to the naive kernels that it was written to replace. Version 2 is more than
# twenty times as fast as version 1 and beats naive attention, and version 3 adds half as much again, ahead of cuDNN. The
# figure has one length. **With the number of tokens fixed, half the length is twice the number of sequences. Which
# version does that help?**

# %%
rungs.rates(ladder, head_dim=128)

# %% [markdown]
# Version 1 has one program for each head of each sequence, and here 16 heads: with one sequence of 16,384 tokens 16 of 132
# multiprocessors have work, with 8 of 2,048 tokens nearly all. Version 2 has a program for each tile of queries. So a figure for
# version 1 means nothing without its batch. But even with enough programs it stays below the naive kernels at this
# head dimension.
#
# The other head dimensions, at 16,384 tokens, with a mask and without:

# %%
rows, names = [], ("version2", "version3", "fa2", "cudnn")
for head_dim in (64, 128, 256):
    for causal in (False, True):
        found = rungs.timed(ladder, head_dim, causal)
        at = {name: found[name][16_384] for name in names}
        ratios = (at[name]["time_ms"] / at["version3"]["time_ms"] for name in ("version2", "fa2", "cudnn"))
        rows.append((head_dim, "causal" if causal else "full", *(f"{row['flops_per_s'] / 1e12:.0f}" for row in at.values()),
                     f"{at['version3']['of_matmul']:.0%}", *(f"{ratio:.2f}" for ratio in ratios)))
table(["D", "mask", "version 2", "version 3", "FlashAttention-2", "cuDNN", "version 3, of a product", "times version 2", "times FA-2", "times cuDNN"], rows)

# %% [markdown]
# Version 3 is ahead of cuDNN in every row. With more columns a tile does more products for each exponential, and at
# $D = 256$ the kernel comes to the rate of the matrix product itself. (That product is a sustained one; it, too, runs
# at the clock which the power allows.) Torch's FlashAttention-2 is the algorithm of our version 2, and slower. And which
# of them is it that torch takes on an H200, unless it is told otherwise? Not version 3, which it does not bring. In the
# release that was measured it takes cuDNN, about twice as fast as FlashAttention-2 at $D = 128$, and FlashAttention-2
# where cuDNN refuses (chapter 7). An earlier release may take FlashAttention-2 instead. (`sdp_utils.cpp` in torch's
# source has the order.) The table is for the longest sequence. Where is version 3 not ahead of cuDNN?

# %%
for head_dim in (64, 128, 256):
    for causal in (False, True):
        found = rungs.timed(ladder, head_dim, causal)
        ratios = {n: found["cudnn"][n]["time_ms"] / row["time_ms"] for n, row in sorted(found["version3"].items())}
        behind = [f"{ratio:.2f} at N = {n:,}" for n, ratio in ratios.items() if ratio <= 1]
        print(f"D = {head_dim}, {'causal' if causal else 'full'}: cuDNN's time over version 3's is", ", ".join(behind) if behind else "above 1 at all lengths")

# %% [markdown]
# In short sequences of small head dimensions, above all with a mask, where programs end soon after they began. There a kernel
# is judged by its first and its last tile, and ours was not made for them.
#
# Why? The hardware counts. A profiler (Nsight Compute) has read, for each rung at 8,192 tokens and $D = 128$, the bytes
# that went through HBM and through L2, in units of the least that a 16-bit kernel could move (q, k, v and o once), and the
# share of time in which the tensor cores were at work, and the unit that computes exponentials. **Which column explains
# version 1? Which one explains the step from 2 to 3?**

# %%
rows = []
for row in load("h200_counters")["rows"]:
    hbm = (row["hbm_read_bytes"] + row["hbm_written_bytes"]) / row["least_bytes"]
    label, *_ = rungs.RUNGS.get(row["contender"], ("version 3 on fp8",))
    rows.append((label, len(row["kernels"]), f"{row['profiled_ms']:.2f}", f"{hbm:.1f}", f"{row['l2_bytes'] / row['least_bytes']:.0f}",
                 f"{row['tensor_busy']:.0%}", f"{row['exp_unit_busy']:.0%}"))
table(["", "kernels", "ms", "HBM bytes / least", "L2 bytes / least", "tensor cores at work", "exp unit"], rows)

# %% [markdown]
# Version 1: the bytes. O, m and l go out and come back for every tile of keys, and it moves more through HBM than
# naive attention does; its units are idle nearly all of the time. (The other kernels of version 1 are small ones that
# fill, convert and add.) From version 2 on HBM sees hardly more than the least, and L2 the same from all of them but
# FlashAttention-2. So the step from 2 to 3 has nothing to do with bytes. It is in the column of the tensor cores,
# which wait less for softmax. Multiply that column by the time. Versions 2 and 3 and cuDNN come to about the same,
# since they have the same products to do on the same unit; FlashAttention-2 comes to half as much again, because it
# was written for the GPU before and uses its instructions, `mma.sync`, with which this unit needs more cycles for the
# same product.
#
# And fp8? Half the time of the tensor cores, as it should be; the exponentials are as many as before. Now neither
# unit is busy for more than half of the time. A tile's maximum, its exponentials, their sum and the
# rounding follow from one another, and there are only two warpgroups to fill the gaps. (A profiler fixes the clock, so these
# times are neither those in turn nor those alone.)
#
# ## The headline figures, and their fine print
#
# Each claim of a paper has a setting. All figures here are the papers' own.
#
# | | claimed | for what |
# |:--|:--|:--|
# | version 1 (Dao et al. 2022) | 41.7 → 7.3 ms, 40.3 → 4.4 GB | A100; forward and backward of one layer of GPT-2 medium against PyTorch: N = 1,024, D = 64, 16 heads, batch of 64 (figure 2) |
# | | 25 to 40 % of the GPU's peak | A100; forward 30 to 50 %, backward 25 to 35 % (as told by Dao 2023, section 1) |
# | version 2 (Dao 2023) | 230 TFLOP/s, 73 % of the peak | A100; the best forward. Backward: up to 63 % |
# | | 1.7 to 3.0 times version 1 | A100; forward and backward, 512 to 16k tokens |
# | | 335 TFLOP/s | H100, the same code; forward and backward: a third of that GPU's peak |
# | version 3 (Shah et al. 2024) | 740 TFLOP/s, 75 % of the peak | H100 SXM5; fp16, forward, **D = 256 and no mask** |
# | | close to 1.2 PFLOP/s | H100 SXM5; fp8, forward, D = 256, no mask |
#
# The last line but one is for one head dimension. The figure behind it has others, and Llama-3-8B has D = 128.
# Forward, fp16, 16k tokens, H100 SXM5, CUDA 12.3, in TFLOP/s, read off the figure in the repository of version 3
# (`assets/flash3_fp16_fwd.png`), which has a little more at $D = 256$ than the paper's abstract claims:

# %%
published = {  # (D, mask): (version 2, cuDNN 9.1, version 3)
    (64, "full"): (324, 413, 497), (64, "causal"): (299, 388, 473), (128, "full"): (370, 595, 648),
    (128, "causal"): (335, 539, 616), (256, "full"): (326, 581, 756), (256, "causal"): (298, 509, 642),
}
peak = gpu("H100 SXM").matmul_flops / 1e12
rows = [(head_dim, mask, *values, f"{values[2] / peak:.0%}", f"{values[2] / values[0]:.2f}", f"{values[2] / values[1]:.2f}")
        for (head_dim, mask), values in published.items()]
table(["D", "mask", "version 2", "cuDNN", "version 3", "of the peak", "times version 2", "times cuDNN"], rows)

# %% [markdown]
# So it is half of the peak at $D = 64$, where the exponentials are, two thirds at $D = 128$, and three quarters only
# at $D = 256$. The same holds for fp8, in the same repository: 1,171 TFLOP/s is $D = 256$; at $D = 128$ it is 1,008,
# which cuDNN matched (1,005), and at $D = 64$ 613. With a causal mask cuDNN was ahead in fp8 (1,099 against 1,024 at
# $D = 256$). And what buys what? In the paper's table 2 ($D = 128$, no mask, fp16, 8,448 tokens, 16 heads, batch of
# 4) the kernel has 661 TFLOP/s, without the overlap of softmax and products 582, and without the division into
# producer and consumers 570.
#
# Two habits protect you from such tables. Ask for the head dimension and the mask, and believe ratios only if they
# come from one run on one machine.
#
# ## What you can now explain
#
# What each of three papers changed: which loop is outside and why that matters for bytes and more for programs; what
# was saved besides; what is loaded, multiplied and exponentiated at the same time. Why version 1 at $D = 128$ can
# move as many bytes as naive attention, and at which SRAM it does not. Why it has no more programs than heads. Why a
# running maximum need not be one. What a barrier's phase is, and what happens if it is wrong. Which product is in
# flight behind which wait. Why the tiles come from the last to the first, and K and V in rings of their own. What a
# rotation does for 8-bit numbers, and where their error sits. What to ask when somebody says 740.
#
# ## Now you
#
# Open [exercises/06_three_papers](../exercises/06_three_papers.ipynb). You write `fa1_on_machine`,
# `lazy_attention` and `rotate`.
#
# ## Where to read more
#
# - Dao, Fu, Ermon, Rudra, Ré, *FlashAttention*, 2022 (arXiv 2205.14135): algorithm 1, and theorem 2 with its proof in
#   appendix C.
# - Dao, *FlashAttention-2*, 2023 (arXiv 2307.08691): section 3.1 on operations that are not products, 3.2 on parallelism, 3.3 on warps.
# - Shah, Bikshandi, Zhang, Thakkar, Ramani, Dao, *FlashAttention-3*, 2024 (arXiv 2407.08608): section 3.1 on producers, consumers
#   and turns, 3.2 with algorithm 2, 3.3 on fp8; section 4.3 for the errors.
# - Zadouri, Hoehnerbach, Shah, Liu, Thakkar, Dao, *FlashAttention-4*, 2026 (arXiv 2603.05451): a rescaling that is mostly
#   skipped, for Blackwell.
# - NVIDIA, *PTX ISA*: *mbarrier*, *cp.async.bulk.tensor*, *wgmma* and *setmaxnreg*.
# - The Triton repository, `python/tutorials/gluon`: 01 to 08, from layouts to warp specialisation.
