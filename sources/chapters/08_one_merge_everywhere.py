# %% [markdown]
# # 8. One merge, everywhere
#
# A model writes one token. In each layer every head has one query, which wants to see all the keys of the past: a
# cache of 32,768 tokens, say, on an H200 with 132 multiprocessors. The kernel of chapter 4 gives a tile of queries of
# one head to a program, and the program walks over the keys. There is one tile now, with one query in it.
# **How much of the GPU works?**

# %%
import os

# Small products, and one core is fastest. NumPy reads this when it is loaded.
os.environ.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", VECLIB_MAXIMUM_THREADS="1")

import functools
import math
import time

import numpy as np
import torch

# %%
from flashedu import cost, demos
from flashedu.arguments import attention_inputs, boolean, positive_int, short
from flashedu.data import load_minilm
from flashedu.exactness import attention_bounds
from flashedu.gradient_bounds import gradient_bounds
from flashedu.hardware import gpu
from flashedu.kernels import DEVICE
from flashedu.processes import run
from flashedu.reference import attention_state, chunked_prefill, merge_states, split_kv_attention
from flashedu.reference.caches import paged_attention, shared_prefix_attention
from flashedu.results import load
from flashedu.ring import EMPTY, merge, ring_attention, shard, unshard

# %%
from flashedu.splits import MERGE, PROGRAMS, START, bandwidth_share
from flashedu.viz.curves import duration, size
from flashedu.viz.decode import bandwidth
from flashedu.viz.ring import ring_drawing
from flashedu.viz.table import table

# %%
if DEVICE is None:
    print("Triton is not installed here (it exists for Linux): a cell that defines or starts a kernel ends in a NameError, the others run.")
else:  # after flashedu.kernels, which decides where kernels run
    import triton
    import triton.language as tl

    from flashedu.kernels.decode import MERGED
    from flashedu.kernels.forward import LN2, attend
    from flashedu.kernels.memory import store_tile
    from flashedu.kernels.tiles import DECODE, padded, pick, precision

# %% [markdown]
# Chapter 2 found a way out before there was a problem. The keys may be cut anywhere and given to anyone, and the states
# $(m, l, o)$ of the pieces are merged in any order. So cut the keys of each key head into parts, with a program for
# each, which serves all query heads that share those keys. The table cuts one layer of Llama-3-8B (8 key heads, each
# asked by 4 query heads) into 1 to 1,024 parts. Time comes from a model that is explained below; the error is real, of
# the cut attention in NumPy. **With how many parts is it fastest, and what does the error do if nobody sees more than
# 32 keys?**

# %%
h200, n, heads, kv_heads, d, block_k = gpu("H200"), 32_768, 32, 8, 128, 64
least_s = cost.kv_cache_bytes(n, 1, kv_heads, d, itemsize=2) / h200.hbm_bytes_per_s
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((rows, d), dtype=np.float32) for rows in (heads // kv_heads, n, n))
bound, _ = attention_bounds(q, k, v, block_k=block_k)
rows = []
for splits in (1, 2, 8, 16, 33, 34, 128, 1024):
    predicted_s = least_s / bandwidth_share(kv_heads, n // block_k, splits, h200.sms)
    ratio = bound.ratio(split_kv_attention(q, k, v, splits)[0])
    rows.append((f"{splits:,}", f"{kv_heads * splits:,}", f"{n // splits:,}", duration(predicted_s), f"{least_s / predicted_s:.0%}", f"{ratio:.4f}"))
table(["parts", "programs", "keys of a part", "predicted time", "of the bandwidth", "error / bound"], rows)

# %% [markdown]
# Uncut, says the model, the GPU reads at a small fraction of its bandwidth: it has eight programs, one for each key
# head, and nothing else to do. Cut into 16 parts it is many times faster, and 33 parts gain hardly more. A 34th part
# costs time, and with a thousand it is slow again; that will have to be explained. And look at the last column. The
# answer of a thousand strangers who have seen 32 keys each is as good as the answer of one who has seen them all.
# Neither uses more than a trace of what rounding allows.
#
# This chapter cuts attention over programs, over devices, and over whatever else holds keys in several places, and
# there is nothing new to be learnt for it. The merge is that of chapter 2 each time. What differs is what decides
# where to cut.
#
# ## One token, eight programs
#
# First the bytes. A step of decoding reads the whole cache for one new token, and chapter 7 computed that each byte is
# used for a handful of operations. So the time is the bytes over the bandwidth, at best. But the bandwidth belongs to
# the GPU and not to a program. A load takes its time to come back, and a program can only have as many under way as it
# has room for: the tiles that its shared memory holds. Whoever wants the full stream must have loads under way from
# *all* multiprocessors, at all times.
#
# So count programs. Which of these workloads fill an H200? Take tiles of 128 queries, as in chapter 4, and, for now, one
# program on a multiprocessor at a time.

# %%
rows = []
for name, batch, n_q in (("a prompt of 8,192 tokens", 1, 8192), ("one token", 1, 1), ("one token each for 16 sequences", 16, 1)):
    by_query_head, by_key_head = (batch * h * -(-n_q * g // 128) for h, g in ((heads, 1), (kv_heads, heads // kv_heads)))
    rows.append((name, f"{by_query_head:,}", f"{by_key_head:,}", f"{min(1, by_key_head / h200.sms):.0%}"))
table(["", "programs, one for each query head's tile", "the same, one for each key head's", "multiprocessors with work"], rows)

# %% [markdown]
# The second column is chapter 4's kernel, one program for each query head. For decoding this is a waste of another kind,
# since the four query heads that share a key head would each read its keys for themselves. (L2 may catch some of it.)
# The third column stacks the queries of a group into one tile. Every key is then read once, and there are a quarter as
# many programs. It is the right way to save bytes, and it makes the idleness worse. Nothing is left to be parallel over
# but the keys.
#
# ## How many parts?
#
# The model of the first table takes as its unit of time that in which the memory can bring one tile to each
# multiprocessor. A program has room for only so many loads under way. So it needs that time for each of its tiles, we
# assume, alone or not, and `START` more to begin, when no tile is there yet, and to end, when none is on its way. A
# multiprocessor has *places* for `PROGRAMS` programs at a time, whose tiles its shared memory holds. If there are more
# programs than places, they come in waves. All together cannot be faster than the memory is. And if there are parts,
# the second kernel, which merges them, takes `MERGE`.
#
# `START` and `MERGE` were read off times on an H200: there a program takes about as long as its tiles and `START` more,
# and a cut costs about `MERGE`. How good the model is will be seen in the section *Measured*.

# %%
print(f"PROGRAMS = {PROGRAMS}: {PROGRAMS * h200.sms} places; START = {START}, MERGE = {MERGE} units of time")

# %%
# include: flashedu.splits:waves_time


# %%
# include: flashedu.splits:step_time


# %% [markdown]
# Move the sliders. **From which number of parts on does the curve rise no more, and why there? With 8,192 tokens in the
# cache, where does it break? How many parts are best for a batch of 16 such sequences? And with 1,024 tokens, is any
# number of parts good?**

# %%
demos.splits()

# %% [markdown]
# With 16 parts, 8 heads make 128 programs, nearly one for each multiprocessor, and that nearly keeps the memory at work.
# With 17 it is at work from the first tile to the last, and no cut can do better.
#
# With 33 parts there are 264 programs, one for every place. With 34 there are eight more, and everybody waits for those
# eight to read their part in a second wave. It is the last wave of chapter 6 again. With a long cache this is hardly
# seen: all places together could read `PROGRAMS` times as fast as the memory brings, so a wave that is nearly empty
# fits into the memory's time, or almost. With 8,192 tokens it does not, since a part is read in no more time than it
# takes to begin and to end.
#
# With 16 sequences the heads alone make a program for nearly each multiprocessor. Up to 8,192 tokens a cut gains less
# than the merge costs, and one part is best. With 1,024 tokens and one sequence each head has so few tiles that even at
# the best number of parts nearly all of the time is beginning, ending and merging.
#
# `splits_for` is this model, minimised. `decode_attention`, below, asks it before each launch, so its answers are kept.

# %%
# include: flashedu.splits:splits_for


# %%
lengths = [2**e for e in range(10, 18)]
chosen = [splits_for(kv_heads, m // block_k, h200.sms) for m in lengths]
shares = {
    f"{name}, predicted": (lengths, [bandwidth_share(kv_heads, m // block_k, parts, h200.sms) for m, parts in zip(lengths, own)])
    for name, own in (("keys split", chosen), ("one part", [1] * len(lengths)))
}
caption = "What the model predicts for one layer of Llama-3-8B, one sequence, on an H200."
bandwidth(shares, "tokens in the cache", "share of the bandwidth", caption)

# %% [markdown]
# Uncut, a longer cache does not help: eight programs stay eight programs. Cut, a long cache is the easy case. In short
# ones beginning, ending and merging are most of it, but there the whole step takes microseconds.
#
# Is the cut free of charge? A part's state is written to HBM by one kernel and read by the next, in float32, so that
# nothing is rounded on the way. **How many bytes is that, beside the cache?**

# %%
rows = []
for m, splits in zip(lengths[::2] + lengths[-1:], chosen[::2] + chosen[-1:]):
    cache_bytes = cost.kv_cache_bytes(m, 1, kv_heads, d, itemsize=2)
    state_bytes = 2 * splits * heads * (d + 1) * 4 if splits > 1 else 0  # o and one number, written and read
    rows.append((f"{m:,}", splits, size(cache_bytes), size(state_bytes), f"{state_bytes / cache_bytes:.1%}"))
table(["tokens", "parts", "cache", "states, written and read", "of the cache"], rows)

# %% [markdown]
# Next to nothing where the cache is long. Where it is short the share is larger, but there bytes are not what takes the
# time.
#
# ## Two kernels
#
# Now read the kernel. (To run it needs Triton, as in chapter 4.) Its loop is `attend` of chapter 4, unchanged. Look for
# the lines that are about parts, and for those that are about grouped queries. What is stored by a part that has no key
# at all?

# %%
# include: flashedu.kernels.decode:decode_kernel


# %% [markdown]
# `part` comes from the program's number, `first` and `stop` are its run of tiles, and `before` is where its result
# lies among those of the other parts. A row of the tile is a pair of a head of the group and a query: `rows // n_q` and
# `rows % n_q`.
#
# What is stored is not quite $(m, l, o)$. The kernel divides $o$ by $l$ and stores the row's $\text{lse} = m + \ln l$,
# just as if its part were all there is. (In the code $m$ counts powers of two, as in chapter 4.) Nothing is lost. The
# state $(\text{lse}, 1, o / l)$ stands for the same sums as $(m, l, o)$: in the scientific notation of chapter 2 it is
# the same number with another exponent. So the output of *any* attention kernel that returns its lse is a state that
# can be merged. A part without a key has $o = 0$ and lse $-\infty$, the empty state.
#
# The second kernel merges the parts of one row, up to 64 at a time. It is online softmax once more, and its "keys" are
# parts: `lse` are the scores, and `o` are the values.

# %%
# include: flashedu.kernels.decode:merge_kernel


# %% [markdown]
# Programs could also merge into one state as they finish, each when it is its turn. But they finish in another order
# each time, and the last bits would change from run to run. Here the order is fixed. The launcher:

# %%
# include: flashedu.kernels.decode:decode_attention


# %%
def inputs(batch, heads, kv_heads, n_q, n_k, d, seed=0):
    random = torch.Generator().manual_seed(seed)
    shapes = (batch, heads, n_q, d), (batch, kv_heads, n_k, d), (batch, kv_heads, n_k, d)
    return [torch.randn(shape, generator=random).to(DEVICE) for shape in shapes]


def used(o, q, k, v, causal=False):
    """The largest error of o, as a part of what rounding allows."""
    bound, _ = attention_bounds(*(x.cpu().numpy() for x in (q, k, v)), causal=causal, block_k=32)
    return bound.ratio(o.cpu().numpy())


# %%
rows = []
for name, shape, splits, causal in (
    ("a group of 4", (1, 8, 2, 1, 1000, 64), 5, False), ("two sequences, no groups", (2, 3, 3, 1, 300, 64), 2, False),
    ("more parts than tiles", (1, 4, 1, 1, 130, 64), 40, False), ("100 parts, merged in two rounds", (1, 4, 1, 1, 1000, 32), 100, False),
    ("five queries, causal", (1, 4, 2, 5, 333, 80), 4, True), ("one key", (1, 2, 1, 1, 1, 64), 3, False),
):
    q, k, v = inputs(*shape)
    (o, lse), again = (decode_attention(q, k, v, causal, splits=splits) for _ in range(2))
    rows.append((name, *shape, splits, f"{used(o, q, k, v, causal):.3f}", torch.equal(o, again[0])))
table(["", "batch", "heads", "kv_heads", "queries", "keys", "D", "parts", "error / bound", "same bits again"], rows)

# %% [markdown]
# It is exact, also where most parts are empty, and repeats its bits. (Five queries are what *speculative decoding*
# asks: a small model has guessed some tokens, and the large one looks at all of them in one step.) The rows of
# a tile are not many in decoding, and the matrix unit works mostly on padding. That costs nothing, as it has nothing
# else to do.
#
# ## Measured
#
# `h200_decode.json` has the time of such a step on an H200, at each cache length, by several kernels in the same rounds,
# beside a copy within HBM. The copy's rate is the yardstick, in the place of the data sheet's. It is no limit: a copy
# writes as much as it reads, and attention hardly writes. **Where will the model be wrong? Do torch's kernels cut the
# keys, too? And where is naive attention, before or behind the uncut kernel?**

# %%
decode = load("h200_decode")
found = {(row["experiment"], row["batch"], row["n"], row["contender"], row.get("splits")): row for row in decode["rows"]}
copies = [row["bytes_per_s"] for key, row in found.items() if key[3] == "copy"]
print(f"the copies: {min(copies) / 1e12:.2f} to {max(copies) / 1e12:.2f} TB/s, {np.median(copies) / h200.hbm_bytes_per_s:.0%} of the data sheet's bandwidth")
timed = {}
for (experiment, batch, m, contender, _), row in found.items():
    if experiment == "lengths" and batch == 1 and "of_copy" in row:
        timed.setdefault(contender, []).append((m, row["of_copy"]))
named = {"keys split": "decode", "one part": "one_part", "FlashAttention-2": "fa2", "cuDNN": "cudnn"}
measured = {name: tuple(zip(*timed[contender])) for name, contender in named.items()}

# %%
caption = f"A decoding step, one layer of Llama-3-8B, one sequence, on an {decode['environment']['device']}. Lines without marks are the model."
bandwidth({**shares, **measured}, "tokens in the cache", "share of a copy's rate", caption)

# %%
rows = []
for batch, m in ((1, 1024), (1, 4096), (1, 16_384), (1, 65_536), (1, 131_072), (16, 1024), (16, 4096), (16, 16_384)):
    own = {key[3]: row for key, row in found.items() if key[:3] == ("lengths", batch, m)}
    times = [duration(own[name]["time_ms"] / 1e3) for name in ("decode", "one_part", "fa2", "cudnn", "torch", "naive")]
    parts = own["decode"]["splits"]
    model = bandwidth_share(batch * kv_heads, m // block_k, parts, h200.sms)
    rows.append((f"{batch} x {m:,}", parts, *times, f"{own['decode']['of_copy']:.1%}", f"{model:.1%}", f"{own['cudnn']['of_copy']:.1%}"))
table(["batch x tokens", "parts", "keys split", "one part", "FlashAttention-2", "cuDNN", "torch's choice", "naive",
       "keys split, of a copy", "model", "cuDNN, of a copy"], rows)

# %%
largest = {key[3]: row for key, row in found.items() if key[:3] == ("lengths", 1, 131_072)}
for name in ("decode", "one_part", "torch", "cudnn", "fa2", "naive"):
    for kernel in largest[name]["kernels"]:
        short_name = kernel["name"].removeprefix("void ").split("<")[0]
        print(f"{name:8} {short_name[:50]:50} {' x '.join(map(str, kernel['grid'])):>10} = {math.prod(kernel['grid']):3} programs")

# %% [markdown]
# One part lies on its line, at a few per cent of a copy's rate whatever the length. Split keys follow theirs. In short
# caches, where `START` and `MERGE` count most, the model is too hopeful, most of all around 4,096 tokens, and at the
# longest it is too careful. With 16 sequences it is too hopeful about one part. Whether cutting helps there in spite of
# the model was not measured; cuDNN shows that there was something to gain at 4,096 tokens.
#
# Torch's kernels do not leave the keys in one piece either. FlashAttention-2's kernel has *splitkv* in its name and is
# followed by one that combines, and cuDNN's, with nearly as many programs as ours, by one that reduces. Left to itself
# torch takes cuDNN here. Our kernel is behind it by a few per cent with one sequence, and by more with 16; both are
# ahead of FlashAttention-2 in every row.
#
# And with one sequence naive attention beats the uncut kernel at every length. S and P, which make it slow elsewhere,
# have one row for each query head here. Its first product has as many programs as there are multiprocessors, so the
# library cuts the keys, too. Saving memory traffic is of no use to a GPU that idles.
#
# Now the number of parts, at the longest cache. **The model says that from 17 parts on it hardly matters. Does it?**

# %%
tried = sorted((key[4], row) for key, row in found.items() if key[0] == "splits" and key[3] == "decode")
every = list(range(1, 257))
lines = {
    "keys split, predicted": (every, [bandwidth_share(kv_heads, 131_072 // block_k, parts, h200.sms) for parts in every]),
    "keys split": ([parts for parts, _ in tried], [row["of_copy"] for _, row in tried]),
}
caption = f"131,072 tokens in the cache, one sequence, on an {decode['environment']['device']}, and what the model says."
bandwidth(lines, "parts", "share of a copy's rate", caption)

# %%
rows = []
for parts, row in tried:
    waves, last = (f(kv_heads * parts - 1, PROGRAMS * h200.sms) + 1 for f in (int.__floordiv__, int.__mod__))
    model = bandwidth_share(kv_heads, 131_072 // block_k, parts, h200.sms)
    spread = (row["time_ms_max"] - row["time_ms_min"]) / row["time_ms"]
    rows.append((parts, kv_heads * parts, waves, last, duration(row["time_ms"] / 1e3), f"{spread:.1%}", f"{row['of_copy']:.1%}", f"{model:.1%}"))
table(["parts", "programs", "waves", "in the last wave", "time", "spread of the rounds", "of a copy", "model"], rows)

# %% [markdown]
# Up to 16 parts the model is right within a few per cent, also where it surprises: 128 programs, fewer than there are
# multiprocessors, read at more than nine tenths of a copy's rate. Beyond, the number does matter. With 64 parts the step
# takes nearly a fifth longer than with 32, and the rounds differ by far less. Waves are not the reason: 48 parts leave
# half of their last wave empty and do well, and 64 nearly fill it. What the reason is, these times do not tell.
#
# So the model is good for choosing, as its choice, in the table before, comes close to the best that was tried. It is
# not good for saying what another choice would cost.
#
# ## Wrong merges
#
# Every merge is a weighted mean of the parts' outputs, and the question is which weights. The right ones are
# $e^{\text{lse}} = l\,e^m$. Here are three wrong ones, each of which forgets something: equal weights (a mean of the
# outputs), $l$ (without the maxima), and $e^m$ (without the sums). There are four parts. Queries, keys and values are
# random in the first row, and those of three heads of chapter 2's model in the others. **On which data would a test
# with a tolerance of one per cent let a wrong merge pass?**

# %%
def merges(states):
    """{which weights: the output}, from a list of states (m, l, o)."""
    m, l, o = (np.stack(x) for x in zip(*states))  # (parts, rows), (parts, rows), (parts, rows, Dv)
    largest = np.exp(m - m.max(axis=0))
    weights = {"equal": np.ones_like(l), "l": l, "e^m": largest, "l e^m": l * largest}
    return {name: (w[..., None] * o / l[..., None]).sum(axis=0) / w.sum(axis=0)[:, None] for name, w in weights.items()}


# %%
real = load_minilm()
cases = {f"head {head}": [x[head] for x in (real.q, real.k, real.v)] for head in (1, 8, 10)}
cases = {"random": [0.2 * rng.standard_normal((256, 32), dtype=np.float32) for _ in range(3)], **cases}
rows = []
for name, (q, k, v) in cases.items():
    bound, _ = attention_bounds(q, k, v, block_k=64)
    found = merges([attention_state(q, k[keys], v[keys]) for keys in np.array_split(np.arange(len(k)), 4)])
    off = {w: np.linalg.norm(o - bound.exact) / np.linalg.norm(bound.exact) for w, o in found.items()}
    ratios = {w: bound.ratio(o) for w, o in found.items()}
    rows.append((name, *(f"{off[w]:.1e} ({f'{ratio:,.0f}' if ratio > 1 else f'{ratio:.3f}'})" for w, ratio in ratios.items())))
table(["relative error (error / bound)", *(f"weights {w}" for w in found)], rows)

# %% [markdown]
# On random data with small scores all parts are alike: equal weights pass, and the other two miss by little. A real
# head does not spread its attention so evenly. Where one part holds the key that matters, the mean gives it a quarter
# of the weight that it should have, and the answer is about something else. In units of what rounding allows there is
# no doubt in any row: the wrong merges are off by hundreds at least, the right one by a fraction.
#
# ## A sequence that no GPU holds
#
# The next cut is between devices. Take the model of above, with its 32 layers, and a million tokens:

# %%
for layers in (1, 32):
    kept = cost.kept_for_backward(2**20, d, layers * heads, layers * kv_heads, itemsize=2)  # q, k and v; P; o; lse
    seconds = layers * (1 + 2.5) * cost.attention_flops(2**20, 2**20, d, heads) / 2 / h200.matmul_flops
    print(f"{layers:2} of 32 layers: {size(kept[0] + kept[2] + kept[3])} of an H200's {size(h200.hbm_bytes)};",
          f"forward and backward, causal, at its peak rate: {seconds:,.0f} s")

# %% [markdown]
# One GPU has neither the memory nor the time for it. So there is a group of processes, each with a device and a number,
# its *rank*, and every process keeps a run of the sequence, its *shard*, from the first layer to the last. All layers
# but attention work on tokens one by one and need nobody else. For attention each query must meet all keys, and those
# are everywhere.
#
# *Ring attention* (Liu et al. 2023) lets the queries stay and the keys travel. In each step a process computes attention
# of its queries over the keys that are visiting, merges the result with what it has, and sends the keys on to its
# neighbour meanwhile. After as many steps as there are processes everybody has seen everything, and nobody has held
# more than two shards of keys besides its own: one that it works on and passes on, and one that arrives. The merge, in
# torch, for pairs (o, lse):

# %%
# include: flashedu.ring:merge


# %% [markdown]
# With a causal mask there is a catch, in how the sequence is cut. Queries at its end see all keys, and those at its
# beginning hardly any. The picture has four processes and eight *chunks* of the sequence. On the left each process gets
# two chunks that are neighbours. On the right the process of rank $r$ gets chunks $r$ and $7 - r$. **Before you look at
# the bold numbers: in every step all wait for the busiest. How long do the four steps last in each way, in units of a
# full square of chunk by chunk?**

# %%
ring_drawing({"equal runs": [(2 * r, 2 * r + 1) for r in range(4)], "zigzag": [(r, 7 - r) for r in range(4)]})

# %% [markdown]
# In equal runs rank 0 is done after the first step, and the last rank works at full load to the end: the mask saves work
# and hardly any time. In the zigzag every process has half of its square in every step, whichever keys visit. In code,
# `shard` cuts the sequence, and `visible` says which half of the square is needed:

# %%
# include: flashedu.ring:shard


# %%
# include: flashedu.ring:visible


# %% [markdown]
# Count it for more processes, from the mask itself: the work of the busiest process over a fair share, and the time of
# all steps, each as long as its longest, over the same.

# %%
def work(shards):
    """(query, key) pairs that a causal mask leaves, by step and process; shards are positions in the sequence."""
    world = len(shards)
    return np.array([[np.sum(shards[(r - s) % world] <= shards[r][:, None]) for r in range(world)] for s in range(world)])


# %%
rows = []
for world in (2, 4, 8, 16, 32):
    positions = torch.arange(64 * world)[None, None]
    for name, causal in (("equal runs", False), ("zigzag", True)):
        pairs = work([shard(positions, r, world, causal).flatten().numpy() for r in range(world)])
        fair = pairs.sum() / world
        rows.append((name, world, f"{pairs.sum(axis=0).max() / fair:.3f}", f"{pairs.max(axis=1).sum() / fair:.3f}"))
table(["", "processes", "busiest / fair", "time / fair"], sorted(rows, key=lambda row: row[0]))

# %% [markdown]
# With equal runs the time goes towards twice of what is fair, so that a causal mask gains nothing. The zigzag is fair to
# the last pair.
#
# ## The ring
#
# Both passes are one class. `ring.around` yields the shards of keys, one after the other, and lets them travel while
# the body of the loop computes. `passes` are attention on one device, forward and backward, by the functions of the
# earlier chapters, and `_zeros` holds sums, in float32. Read the forward pass first, whose loop has three lines. In the
# backward pass keys come round a second time, and their gradients travel with them: at each stop a process adds its
# part, and after the last step they are home.

# %%
# include: flashedu.ring:RingAttention


# %% [markdown]
# Nothing in the backward pass merges anything. Chapter 5 rebuilt $P$ from q, k and lse, and `lse` is that of all keys by
# now. So the part of $P$ that belongs to the visiting keys is right as it stands, and gradients are plain sums.
#
# Now run it, in processes of your own machine. `run` starts them and lets them find each other (with *gloo*, which
# sends through the network interface, here the one of the machine to itself; on GPUs the same functions work with NCCL,
# NVIDIA's library for messages between GPUs). Each calls the function with its rank, and what it returns comes back. It
# is tried with two, three and four processes, with the mask and without. The answers are put together and judged as one
# device's would be.

# %%
def ring_job(rank, world, q, k, v, do, causal):
    """o, dq, dk and dv of this process's shards."""
    own = [shard(x, rank, world, causal).requires_grad_() for x in (q, k, v)]
    o = ring_attention(*own, causal=causal)
    return [x.detach() for x in (o, *torch.autograd.grad(o, own, shard(do, rank, world, causal)))]


# %%
def judged(outcomes, arrays, world, causal):
    """For o, dq, dk and dv of the whole sequence: the largest error over what rounding allows."""
    whole = [unshard(parts, causal) for parts in zip(*(outcome.value for outcome in outcomes))]
    block = arrays[0].shape[2] // (2 * world)  # no chunk is smaller
    bounds = attention_bounds(*arrays[:3], causal=causal, block_k=block)[0], *gradient_bounds(*arrays, causal=causal, block_q=block, block_k=block)
    return [bound.ratio(x.numpy()) for bound, x in zip(bounds, whole)]


# %%
arrays = [rng.standard_normal((1, h, 384, 64), dtype=np.float32) for h in (4, 2, 2, 4)]  # q, k, v, do
tensors, rows = [torch.tensor(x) for x in arrays], []
for world, causal in [(2, False), (2, True), (3, True), (4, False), (4, True)]:
    outcomes = run(ring_job, world, *tensors, causal)
    ratios = judged(outcomes, arrays, world, causal)
    rows.append((world, "causal" if causal else "none", f"{384 // world} of 384", *(f"{ratio:.3f}" for ratio in ratios)))
table(["processes", "mask", "rows of each", *(f"{x}: error / bound" for x in ("o", "dq", "dk", "dv"))], rows)

# %% [markdown]
# The same bound, the same small fractions of it. (To be short, each process was given the whole sequence and cut out its
# shard. `ring_attention` itself has never more than the shards that visit.)
#
# ## What travels, and what hides it
#
# A step sends the keys and values of one shard, $n = N/G$ tokens of $G$ GPUs (`world` in code), and computes the scores
# of $n$ queries with $n$ keys, half of them under a mask. Bytes grow with $n$ and operations with $n^2$. So if a shard
# is long enough, the message has arrived before the step is over, and costs nothing. **How long is long enough, between
# GPUs of one machine, at 450 GB/s, and between machines, at 50?** Take matrix products at the data sheet's rate: real
# ones are slower, which is easier for the message. The links' rates are from data sheets as well, for one direction.

# %%
links = {"NVLink, in an H200 machine": 450e9, "PCIe 5.0, 16 lanes": 64e9, "InfiniBand NDR, 400 Gbit/s": 50e9}  # bytes/s
rows = []
for name, rate in links.items():
    message_s = cost.kv_cache_bytes(1, 1, kv_heads, d, itemsize=2) / rate  # for each token of a shard
    step_s = cost.attention_flops(1, 1, d, heads) / 2 / h200.matmul_flops  # for each pair of tokens, causal
    hidden = math.ceil(message_s / step_s)
    more = math.ceil(3 * message_s / (2.5 * step_s))  # float32 gradients travel, too: 3 times the bytes for 2.5 times the work
    rows.append((name, f"{rate / 1e9:.0f} GB/s", f"{hidden:,}", f"{more:,}", f"{131_072 // hidden:,}", f"{2**20 // hidden:,}"))
table(["", "one direction", "tokens that hide it, forward", "backward", "GPUs at N = 131,072, at most", "at N = 1,048,576"], rows)

# %% [markdown]
# Grouped queries help here as they do in the cache: what travels are key heads, what is computed are query heads. The
# condition is a ridge, like chapter 1's, with the link in the place of HBM,
# $n \ge 2\,\frac{H_{kv}}{H}\,\frac{\text{FLOP/s}}{\text{link's bytes/s}}$, and the head dimension is not in it.
#
# Adding GPUs makes shards shorter. The operations of each go down with $G$, and the bytes do not: nearly all keys pass
# through every process, whatever $G$ is. So at a given $N$ there is a number of GPUs beyond which the ring waits for its
# messages, and the last two columns are that number. (An H200 machine has at most eight GPUs. Between them the messages
# are hidden at both lengths; it is the links between machines that set the limit.)
#
# What do two H200s of one host make of it, with eighteen links of NVLink between them (NV18)? `h200_ring.json` has
# causal attention of a long sequence on one GPU, and in a ring of two. Two more rings tell what the messages cost: one
# that waits for each message before it computes, and one that sends none, and whose answer is wrong. **How many times
# as fast are two GPUs? And what is missing to twice as fast, is that the messages?**

# %%
measured = load("h200_ring")
*timed, message = measured["rows"]
where, first = measured["environment"], timed[0]
print(f"{where['gpus']} x {where['device']}, {where['link']}: N = {first['n']:,}, {first['heads']} heads, {first['kv_heads']} key heads, D = {first['head_dim']}")
rows = [(row["phase"], row["contender"].replace("_", " "), f"{row['time_ms']:.1f} ms", f"{row['time_ms_min']:.1f} to {row['time_ms_max']:.1f}",
         f"{row['flops_per_s'] / 1e12:,.0f}", f"{row['speedup']:.2f}") for row in timed]
table(["phase", "", "time", "of all rounds", "TFLOP/s, all GPUs together", "times as fast as one GPU"], rows)

# %%
for row in timed:
    if "error_over_bound" in row:
        print(f"{row['contender']:8}: error / bound", *(f"{name} {ratio:.3f};" for name, ratio in row["error_over_bound"].items()))
step_ms = next(row["time_ms"] for row in timed if (row["phase"], row["contender"]) == ("forward", "ring_without_messages")) / where["gpus"]
rate = message["bytes_per_s"]
print(f"a message: {size(message['message_bytes'])} in {message['time_ms']:.2f} ms ({rate / 1e9:.0f} GB/s);",
      f"a forward step without messages: {step_ms:.1f} ms, {step_ms / message['time_ms']:.0f} times as long")
lost_ms = {row["contender"]: row["time_ms"] for row in timed if row["phase"] == "backward"}
print(f"gradients of as many keys, in float32, would take {2 * message['time_ms']:.1f} ms;",
      f"backward, messages cost {lost_ms['ring'] - lost_ms['ring_without_messages']:.1f} ms")
hidden = math.ceil(2 * first["kv_heads"] / first["heads"] * h200.matmul_flops / rate)
print(f"at that rate {hidden:,} tokens would hide a message; a shard has {first['n'] // where['gpus']:,}")

# %% [markdown]
# Forward, the messages do not matter: a ring that sends none is hardly faster, one that waits is hardly slower, and the
# rounds of all three overlap. A message is so short beside a step that these times could not show whether it is hidden.
# What is missing to twice as fast is in what else a ring does, such as merges and waiting for the slower process, and
# these times do not take that apart.
#
# Backward, messages cost something, but waiting for each of them is no slower. After the last step gradients have yet
# to come home, and nothing is left to compute meanwhile. That explains only a part of the cost.
#
# A message gets less than half of the data sheet's rate. The shards are so long that it does not matter. The error is
# that of one GPU.
#
# ## A peer that is lost
#
# With many devices one of them will fail, and a ring has the unpleasant property that everybody waits for everybody. A
# program that hangs costs more than one that stops, as nobody notices. So `ring_attention` has a time limit for each
# message, and its error names both neighbours, since it may be either that is lost. In the next cell rank 2 of 4 leaves
# without a word after the first call, and then, in a second group, falls asleep. **What do its neighbours say, and
# what does rank 0 say, which has no dealings with rank 2?**

# %%
def fragile_job(rank, world, x, leave):
    ring_attention(x, x, x, timeout_s=20)
    if rank == 2:
        leave()
    return ring_attention(x, x, x, timeout_s=2)


# %%
for what, leave in (("gone", lambda: os._exit(1)), ("asleep", lambda: time.sleep(5))):
    for rank, outcome in enumerate(run(fragile_job, 4, torch.zeros(1, 1, 64, 16), leave)):
        value = outcome.value
        words = f"{type(value).__name__}: {value}" if isinstance(value, Exception) else f"no answer, exit code {outcome.exitcode}"
        print(f"rank 2 is {what}, rank {rank}: {words}\n")

# %% [markdown]
# Ranks 1 and 3 are its neighbours and lose it directly. Rank 0 loses *them*, since who gives up leaves the group, or
# its own time is up first. So the news goes round the ring, and after seconds all processes that are left have stopped
# with a sentence, also the one that was asleep and comes back to a group that is no more. Whatever runs the job can
# start it again from its last checkpoint.
#
# ## Three more places
#
# Keys lie in several places for other reasons, too. Each of the following is done in servers of language models, each
# has a name and a paper, and each is a few lines now. What they share is the state of some queries over some keys:

# %%
# include: flashedu.reference.caches:attention_state


# %% [markdown]
# ### A prefix that many share
#
# A hundred conversations begin with the same instructions. Their keys are the same and can be kept once. But each
# sequence has its own continuation, so a kernel that walks over one sequence's keys reads the prefix once for each
# sequence. Cut there: queries of *all* sequences meet the prefix, as the rows of one tile, and each meets its own
# continuation.

# %%
# include: flashedu.reference.caches:shared_prefix_attention


# %%
prefix, lengths = 1000, (30, 7, 150, 1)
q, k, v = (rng.standard_normal((rows, 64), dtype=np.float32) for rows in (4 * len(lengths), prefix, prefix))
suffixes = [tuple(rng.standard_normal((2, m, 64), dtype=np.float32)) for m in lengths]
o, ratios = shared_prefix_attention(q, k, v, suffixes), []
for i, (k_i, v_i) in enumerate(suffixes):
    own = slice(4 * i, 4 * i + 4)
    bound, _ = attention_bounds(q[own], np.concatenate((k, k_i)), np.concatenate((v, v_i)), block_k=prefix)
    ratios.append(bound.ratio(o[own]))
print("error / bound of each sequence:", *(f"{ratio:.3f}" for ratio in ratios))

# %%
batch, prefix, own = 32, 4096, 256
each, once = (cost.kv_cache_bytes(m, 1, kv_heads, d, itemsize=2) for m in (batch * (prefix + own), prefix + batch * own))
print(f"{batch} sequences, {prefix:,} shared tokens and {own} of their own, one layer:",
      f"{size(each)} read, or {size(once)}, {each / once:.1f} times less")
intensity = [cost.attention_intensity(rows, prefix, d, heads, kv_heads, 2) for rows in (1, batch)]
print(f"FLOP for each byte of the prefix: {intensity[0]:.1f} for one sequence, {intensity[1]:.0f} for {batch}",
      f"(an H200's ridge: {h200.ridge:.0f})")

# %% [markdown]
# The second line says why more than bytes is gained. With the rows of many sequences in one tile the matrix unit has
# something to do for each key that is read. (*Cascade attention* is another name; prefixes of prefixes make a tree.)
#
# ### A prompt in chunks
#
# A long prompt keeps a GPU busy for seconds, in which nobody else's tokens are written. So servers cut prompts into
# chunks and do one at a time, between the steps of others. A chunk's queries see the cache, all of it, and their own
# chunk under a mask.

# %%
# include: flashedu.reference.caches:chunked_prefill


# %%
q, k, v = (rng.standard_normal((500, 64), dtype=np.float32) for _ in range(3))
bound, _ = attention_bounds(q, k, v, causal=True, block_k=64)
print("chunks of", *(f"{chunk}: error / bound {bound.ratio(chunked_prefill(q, k, v, chunk)):.3f};" for chunk in (500, 128, 64, 1)))

# %% [markdown]
# A chunk of 500 is ordinary causal attention, and a chunk of 1 is decoding. They are the two ends of one algorithm.
#
# ### A cache in pages
#
# Nobody knows in advance how long a conversation will be. If each had room for the longest, most of the memory would be
# empty. So a cache is cut into *pages* of some tokens, which lie anywhere in a pool, and each sequence has a table of its
# pages, as processes have in an operating system. A kernel's only change is where it finds the next tile. Here each page
# gives a state:

# %%
# include: flashedu.reference.caches:paged_attention


# %%
page, pool, n = 16, 16 * 400, 1000
k, v = (rng.standard_normal((pool, 64), dtype=np.float32) for _ in range(2))
table_of = rng.permutation(pool // page)[: -(-n // page)]
slots = (table_of[:, None] * page + np.arange(page)).ravel()[:n]  # where the keys are, for the oracle
bound, _ = attention_bounds(q[:4], k[slots], v[slots], block_k=page)
ratio = bound.ratio(paged_attention(q[:4], k, v, table_of, page, n))
print(f"{len(table_of)} pages, the first ones {table_of[:6].tolist()}: error / bound {ratio:.3f}")
whole = table_of[: n // page]  # pages that are full
one, other = (paged_attention(q[:4], k, v, pages, page, len(whole) * page) for pages in (whole, whole[::-1]))
print(f"full pages from the last to the first: largest difference {np.abs(one - other).max():.0e}")

# %% [markdown]
# The pages need not even come in order: attention without a mask is a sum over a set. (Where positions matter, most
# models have them in the keys already, as rotations, before these reach the cache.)
#
# ## What you can now explain
#
# Why a GPU idles when one token asks, and what fills it. When one part more costs time, and when not. What a part must
# hand over, and why any kernel that returns its lse can hand it over. Which weights a merge needs, and why a test on
# random data may let a wrong merge pass. How a sequence is spread over devices, who computes what when, what a causal
# mask does to equal runs, and how long a shard has to be to hide its messages. Why the gradients need no merge. What
# shared prefixes, chunks and pages have in common.
#
# ## Now you
#
# Open [exercises/08_one_merge_everywhere](../exercises/08_one_merge_everywhere.ipynb). You write `split_kv_attention`.
#
# ## Where to read more
#
# - Dao, Haziza, Massa, Sizov, *Flash-Decoding for long-context inference*, 2023 (a page of the PyTorch blog): the split over the keys.
# - Liu, Zaharia, Abbeel, *Ring Attention with Blockwise Transformers for Near-Infinite Context*, 2023 (arXiv 2310.01889): section 3.
# - Brandon et al., *Striped Attention*, 2023 (arXiv 2311.09431): the imbalance under a causal mask. Llama team, *The Llama 3
#   Herd of Models*, 2024 (arXiv 2407.21783): section 3.3.2, for the two chunks.
# - Juravsky et al., *Hydragen*, 2024 (arXiv 2402.05099): section 3, shared prefixes. Agrawal et al., *Sarathi-Serve*, 2024
#   (arXiv 2403.02310): section 4, chunked prefill. Kwon et al., *PagedAttention*, 2023 (arXiv 2309.06180): section 4.
