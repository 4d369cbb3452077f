# %% [markdown]
# # 7. Where it does not help
#
# So far flash attention has won nearly every comparison. This chapter looks for the places where it does not matter,
# where it changes nothing, or where it costs something, and it does so in one way: first a prediction, made from the
# closed forms of `cost` and the rates of `hardware`, then a measurement, where there is one. **Can you say beforehand
# what a better kernel will not do for you?**

# %%
import os

# One core and its memory. NumPy reads this when it is loaded.
os.environ.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", VECLIB_MAXIMUM_THREADS="1")

import importlib.util
import math

import numpy as np

# %%
from flashedu import cost, demos
from flashedu.bench import measure
from flashedu.data import load_minilm
from flashedu.exactness import attention_bounds
from flashedu.hardware import gpu
from flashedu.reference import stable_softmax, tiled_attention
from flashedu.results import load
from flashedu.viz.curves import duration, size
from flashedu.viz.limits import against_head_dim, against_length, error_against_work
from flashedu.viz.roofline import attainable_flops
from flashedu.viz.table import table

# %% [markdown]
# Begin with a model. A block of Llama-3-8B is attention and, around it, seven products of the tokens with matrices of
# weights: for q, k, v and the output, and three in the feed-forward part. Attention alone was measured on an H200,
# naive and with torch's FlashAttention-2 (chapter 0 has the picture). For the seven products we take their FLOPs and the
# rate at which that GPU multiplied matrices. At 8,192 tokens flash attention is more than three times as fast as naive
# attention. **How many times as fast is it at 512 tokens, and how many times as fast does the block become?**

# %%
layer = load("h200_attention_traffic")
rate = layer["ceilings"]["matmul_flops_per_s"]
block = {"hidden": 4096, "ffn": 14_336, "heads": 32, "kv_heads": 8, "head_dim": 128}  # of Llama-3-8B


def rest_ms(n):
    """Time of the products with weights of one block, on n tokens, at the measured rate."""
    attention = cost.attention_flops(n, n, block["head_dim"], block["heads"])
    return attention * (1 / cost.attention_flop_share(n, **block) - 1) / rate * 1e3


# %%
rows = []
for row in layer["sweep"]:
    if "time_ms" in row["naive"]:
        naive, flash, rest = row["naive"]["time_ms"], row["flash"]["time_ms"], rest_ms(row["n"])
        rows.append((f"{row['n']:,}", f"{naive:.2f} ms", f"{flash:.2f} ms", f"{rest:.2f} ms",
                     f"{naive / flash:.2f}", f"{(naive + rest) / (flash + rest):.2f}", f"{flash / (flash + rest):.0%}"))
columns = ["N", "naive", "flash (FlashAttention-2)", "the rest of the block", "attention: times as fast", "block: times as fast", "flash's share"]
table(columns, rows)

# %% [markdown]
# At 512 tokens attention becomes one and a half times as fast, and nobody will notice: the block gains a few per cent.
# Read the last column downwards. At that length flash attention is a small part of the block, and no kernel, however
# good, could give more than that part back. And look at the last rows. The gain of the block does not even grow with
# $N$ all the way, since attention's own gain does not.
#
# This is Amdahl's law: what is made faster is a share of the whole, so the share has to be known first. (The sum is a
# model of the block. Norms and activations are left out, and so is the mask, and products of few tokens are probably
# slower than assumed. Each of these would make attention's share smaller still.)
#
# ## Short sequences: a share of the block
#
# Per token, each of the block's $W$ weights takes part in one multiplication and one addition: $2 W$ FLOPs. The same
# token meets $N$ keys and $N$ values with $H$ heads of $D$ elements: $4 N D H$ FLOPs. So attention's share is
#
# $$\frac{4 N D H}{4 N D H + 2 W} = \frac{N}{N + N_{1/2}}, \qquad N_{1/2} = \frac{W}{2 D H} .$$
#
# One number, $N_{1/2}$, says it all: it is the length at which attention is half of the block. (`attention_flop_share`,
# which you will write, counts the parts one by one.) **For Llama-3-8B: is it a thousand tokens, ten thousand, or a
# hundred thousand? And is it larger or smaller for a model of fifty times the size?**

# %%
blocks = {  # hidden, ffn, heads, kv_heads, head_dim: config.json of meta-llama's models
    "Llama-3-8B": block,
    "Llama-3-70B": {"hidden": 8192, "ffn": 28_672, "heads": 64, "kv_heads": 8, "head_dim": 128},
    "Llama-3.1-405B": {"hidden": 16_384, "ffn": 53_248, "heads": 128, "kv_heads": 8, "head_dim": 128},
}


def half(b):
    """N_1/2 = W / (2 D H)."""
    weights = b["hidden"] * (b["head_dim"] * (2 * b["heads"] + 2 * b["kv_heads"]) + 3 * b["ffn"])
    return weights / (2 * b["head_dim"] * b["heads"])


# %%
rows = [(name, f"{half(b):,.0f}", *(f"{cost.attention_flop_share(n, **b):.1%}" for n in (512, 8192, 131_072)))
        for name, b in blocks.items()]
table(["", "N where attention is half", "share at 512", "at 8,192", "at 131,072"], rows)

# %%
lengths = [2**e for e in range(7, 21)]
shares = {name: {n: cost.attention_flop_share(n, **b) for n in lengths} for name, b in blocks.items()}
against_length(shares, "share of the block's FLOPs", "Attention's share of the forward FLOPs of one block, from the "
               "closed form, without a mask. The line is one half.", level=0.5)

# %% [markdown]
# Tens of thousands. At 512 tokens the two products of attention are two per cent of the arithmetic in a block of the 8B
# model, and in larger models they are less: with twice the width, a block has about four times the weights and twice
# the attention. A causal mask, if its upper half is skipped, halves attention and doubles $N_{1/2}$.
#
# Does it follow that flash attention is useless below thousands of tokens? No, since naive attention's share of the
# *time* is not its share of the FLOPs. S and P go through memory, and the products with weights have nothing like them:

# %%
for row in layer["sweep"]:
    if row["n"] in (512, 2048, 8192):
        n, naive = row["n"], row["naive"]["time_ms"]
        of_flops, of_time = cost.attention_flop_share(n, **block), naive / (naive + rest_ms(n))
        print(f"N = {n:5,}: {of_flops:5.1%} of the block's FLOPs, and {of_time:3.0%} of its time if attention is naive")

# %% [markdown]
# What a fast kernel does, at such lengths, is to bring its share of the time down towards its share of the work.
#
# And the kernel by itself, is it faster at any length? Predict it with the roofline of chapter 1. A head of naive
# attention moves q, k, v and o, which are $4ND$ elements, and S and P twice, $4N^2$. The fused kernel moves the first
# term only. While both wait for memory, the gain is the ratio of the bytes,
#
# $$\frac{4 N D + 4 N^2}{4 N D} = 1 + \frac{N}{D} .$$
#
# So at $N = D$ it is a factor of 2, and for much shorter sequences there is nothing to gain. It grows with $N$ until the
# fused kernel is limited by its products instead. The fused kernel has $N/2$ FLOP per byte in 16 bits. **At which $N$
# does the line bend, on an H200, whose ridge stands in chapter 1?**

# %%
h200, d, heads = gpu("H200"), 128, 16  # the ratio is the same for any number of heads


def gain_at_best(n):
    """Time of naive over that of fused attention, both on the H200's roof, 16 bits."""
    intensities = cost.naive_intensity(n, d, heads, heads, 2), cost.attention_intensity(n, n, d, heads, heads, 2)
    naive, fused = (attainable_flops(h200, i) for i in intensities)
    return fused / naive


# %%
times = {(row["direction"], row["n"], row["contender"]): row["time_ms"] for row in load("h200_attention_speed")["rows"]
         if row["head_dim"] == d and not row["causal"] and "time_ms" in row}
measured = sorted({n for _, n, name in times if name == "naive"})
lines = {"predicted": {n: gain_at_best(n) for n in (16, 32, 64, 128, 256, *measured)}}
lines |= {f"flash, {way}": {n: times[way, n, "naive"] / times[way, n, "flashedu"] for n in measured} for way in ("forward", "backward")}
print(f"the fused kernel leaves the slope of the roof at N = {2 * h200.ridge:.0f}")
against_length(lines, "times as fast as naive", "Attention alone, D = 128, no mask: on the roof of an H200, and measured on one "
               "with this course's Triton kernels. At every N the batch has the same number of tokens.", level=1)

# %% [markdown]
# A few hundred tokens are enough. (Beyond the bend the line falls, since naive attention's FLOP per byte still rise a
# little, towards $D/2$, and the fused kernel has no more to gain.) The points of the forward pass lie within a factor
# of two or so of the prediction, and where they leave it one can learn something. At short lengths the real gain is
# smaller than the roof's. A kernel with few tiles of keys spends much of its time on beginning and ending, and it has
# exponentials to compute, which the roof does not know. In the middle the gain is larger, because naive attention's
# softmax stays far below the roof (chapter 1 found that). Why naive attention catches up at the greatest length, these
# times do not say. A roof is a limit for each of the two. For their ratio it is only a guess.
#
# The prediction is for the forward pass. Backward the gain is smaller at every length: naive attention reads a P that
# it has kept, and our kernels compute it again, in seven products instead of four (chapter 5).
#
# ### The block, measured
#
# The first screen was a sum: attention, measured apart, and the rest of the block, from its FLOPs and the rate of a
# matrix product. Now let a whole block run on an H200, norms and activations included, with 16,384 tokens in the batch:
# as one sequence, or as up to 128 short ones. The products with weights are the same at every $N$, and backward there
# are two for each of them. So the sum can be made again, with this course's `flash_attention`. **From which length on
# should the block be a tenth faster? And backward, is that length greater or smaller?**

# %%
short = load("h200_short_sequences")["rows"]
timed = {(row["direction"], row["n"], row["what"], row["contender"]): row["time_ms"] for row in short}
lengths, ways, rows = sorted({row["n"] for row in short}), ("forward", "backward"), []
for way, rest in zip(ways, (rest_ms(16_384), 2 * rest_ms(16_384))):
    for n in lengths:
        naive, flash = (timed[way, n, "attention", name] for name in ("naive", "flash"))
        gain = timed[way, n, "block", "naive"] / timed[way, n, "block", "flash"]
        rows.append((way, f"{n:,}", f"{naive / flash:.2f}", f"{(naive + rest) / (flash + rest):.2f}", f"{gain:.2f}"))
table(["", "N", "attention alone: times as fast", "block, predicted", "block, measured"], rows)

# %%
spread = [row["time_ms_max"] / row["time_ms_min"] - 1 for row in short if row["what"] == "block"]
print(f"a block's slowest round takes {np.median(spread):.0%} longer than its fastest (the median of all blocks)")
for way, n in (("forward", 512), ("forward", 2048), ("forward", 8192), ("backward", 2048), ("backward", 16_384)):
    for name in ("naive", "flash"):
        alone, whole = timed[way, n, "attention", name], timed[way, n, "block", name]
        added = whole - timed[way, n, "block", "none"]
        print(f"{way:8} N = {n:6,}: {name} takes {alone:5.2f} ms alone and adds {added:5.2f} ms to a block without "
              f"attention, {added / whole:3.0%} of its time")

# %%
lines = {f"{label}, {way}": {n: timed[way, n, what, "naive"] / timed[way, n, what, name] for n in lengths} for way in ways
         for label, what, name in (("flash", "attention", "flash"), ("FlashAttention-2", "attention", "fa2"), ("block", "block", "flash"))}
against_length(lines, "times as fast as naive", "On one H200, 16,384 tokens in the batch, no mask, the heads of Llama-3-8B: attention alone with "
               "this course's kernels (flash) and with torch's FlashAttention-2, and a block of the model with this course's.", level=1)

# %% [markdown]
# Forward the sum is right within a few per cent. At 1,024 tokens the block gains less than a tenth, at 2,048 about a
# fifth. At 512 and below it gains no more than what lies between two rounds of the same program. There flash attention
# has stopped mattering for the block, although attention by itself is one and a half times to nearly twice as fast. At
# the three lengths for which the share of the FLOPs was printed above, naive attention's share of the time is three to
# four times as large. Flash attention's is nearer, and larger, too.
#
# Backward the length is greater, 8,192 tokens, as it had to be with a smaller gain, and from 1,024 on the sum promises
# too much. Inside the block attention adds more time than it takes alone. Its inputs are views there, with other strides;
# whether that is the reason these times do not say. Up to 2,048 tokens the block gains nothing that can be told from
# noise, and at 16,384 less than a fifth.
#
# One curve lies clearly below the line. Backward, torch's FlashAttention-2 is *slower* than naive attention up to 8,192
# tokens. Naive attention has kept P and only reads it. What flash attention surely saves in a backward pass is the
# memory for P; whether it also saves time depends on the kernel.
#
# ## The asymptote: it is still $N^2$
#
# Flash attention stores $O(N)$ and computes $O(N^2)$. Nothing was taken from the arithmetic, and a little was added.
# So its time can be predicted for any length from a single one that is long enough to fill the GPU. Take 8,192 tokens
# of the layer on the first screen, and multiply by $(N / 8192)^2$. Naive attention's memory can be predicted as well:
# S and P are two matrices for each head, in 16 bits. **How long can a sequence be, with 32 heads, on this H200, which has
# 150 GB?**

# %%
sweep = {row["n"]: row for row in layer["sweep"]}
capacity = layer["environment"]["hbm_capacity_bytes"]
print(f"S and P fill {size(capacity)} at N = {math.isqrt(capacity // (2 * 32 * 2)):,}")
for n, row in sweep.items():
    if n >= 8192:
        predicted = sweep[8192]["flash"]["time_ms"] * (n / 8192) ** 2
        end = "does not fit" if "time_ms" not in row["naive"] else f"holds {size(row['naive']['peak_bytes'])}"
        print(f"N = {n:6,}: FlashAttention-2 {predicted:5.1f} ms predicted, {row['flash']['time_ms']:5.1f} ms measured; naive {end}")

# %% [markdown]
# Within a few per cent: an N² law is as easy to predict as it is hard to escape. Does it hold to half a million tokens?
# Take this course's kernel, with four heads, so that a measurement ends within seconds, and predict as before, from one
# time at 8,192. **How much longer does it take at 524,288 tokens? And at which power of two does naive attention end,
# now that S and P are those of four heads?**

# %%
long = {}
for row in load("h200_long_sequences")["rows"]:
    long.setdefault(row["contender"], {})[row["n"]] = row
print(f"S and P of 4 heads fill {size(capacity)} at N = {math.isqrt(capacity // (2 * 4 * 2)):,}")
for n, row in long["naive"].items():
    end = f"holds {size(row['peak_bytes'])}" if "time_ms" in row else "does not fit"
    print(f"N = {n:7,}: naive {end}, flash holds {size(long['flash'][n]['peak_bytes'])}")

# %%
# The time of each, as a part of what its own time at 8,192 and N² predict.
names, rows = {"flash": "flash", "hopper": "Hopper kernel", "cudnn": "cuDNN", "naive": "naive"}, []
for n, row in long["flash"].items():
    found = {name: long[name][n].get("time_ms", math.nan) / long[name][8192]["time_ms"] for name in names}
    off = [f"{ratio / (n / 8192) ** 2:.2f}".replace("nan", "–") for ratio in found.values()]
    rows.append((f"{n:,}", duration(row["time_ms"] / 1e3), *off, f"{long['matmul'][n]['flops_per_s'] / 1e12:.0f}"))
table(["N", "flash takes", *(f"{label}, of predicted" for label in names.values()), "matrix product, TFLOP/s"], rows)

# %%
lines = {label: {n: row["time_ms"] for n, row in long[name].items() if "time_ms" in row} for name, label in names.items()
         if name != "hopper"}
lines["N² from 8,192, predicted"] = {n: long["flash"][8192]["time_ms"] * (n / 8192) ** 2 for n in long["flash"]}
against_length(lines, "milliseconds", "Forward attention on one H200, four heads, D = 128, no mask. Flash is this course's Triton kernel. "
               "Naive attention ends where its memory does.", log=True)

# %% [markdown]
# It does. While the time grows to 4,096 times what it was, this course's kernel stays within a tenth of the prediction,
# and at the far end it is off by a per cent or so. cuDNN lies below, on a line of the same slope. At the end it and
# the course's kernel for Hopper (chapter 6) need somewhat more than the square. A matrix product that was timed beside
# them was slower there, too, so part of it is probably the GPU. Naive attention is the exception: from 16,384 tokens on
# it takes less than two thirds of what its time at 8,192 predicts, and follows the square from there. The two pictures
# before have their bend at the same place.
#
# A better kernel moves the line down by a factor, once. Twice the length eats a factor of four, every time. What flash
# attention moved is not the slope. It is the end of the line: memory stops naive attention, where the closed form said
# it would, and only time stops flash attention.
#
# How long is that? Suppose that a kernel reached the full rate of the matrix product, and let Llama-3-8B read a million
# tokens: 32 blocks, causal, so that half of the scores are computed.

# %%
n, layers = 2**20, 32
attention_s = layers * cost.attention_flops(n, n, 128, 32) / 2 / rate
rest_s = layers * rest_ms(n) / 1e3
print(f"N = {n:,}: attention {attention_s:.0f} s, everything else {rest_s:.0f} s")
print(f"attention is {attention_s / (attention_s + rest_s):.0%} of it")
print(f"twice as many tokens: attention {4 * attention_s / 60:.0f} minutes, everything else {2 * rest_s:.0f} s")
s_and_p = 2 * 32 * n * n * 2
cache = cost.kv_cache_bytes(n, layers, 8, 128, 2)
print(f"S and P of one layer would be {size(s_and_p)}; keys and values of all layers are {size(cache)}")

# %% [markdown]
# The quadratic term owns the budget. This is where other ideas than a better kernel begin: more GPUs for one sequence
# (chapter 8), or another function than attention (the end of this chapter).
#
# ## The cache: one query, and all of the keys
#
# A model that writes produces one token at a time. The new token's query meets all earlier keys and values, which were
# kept: the *KV cache*. This step is called *decoding*, and to it flash attention has little to offer, in bytes. Why?
# Count what naive attention moves for one query. S and P are now a single row for each head, $4 H N$ elements in and
# out. The cache has $2 H_{kv} N D$, with $H_{kv}$ *key heads*, which are heads of keys and of values. **By how much
# does a fused kernel reduce the traffic of a step, if $D = 128$ and four query heads share a key head?**

# %%
n, d, heads = 131_072, 128, 32
shared = {"every head its own keys (MHA)": 32, "groups of four (GQA, as in Llama-3-8B)": 8, "all heads share one (MQA)": 1}
rows = []
for name, kv_heads in shared.items():
    cache, s_and_p = cost.kv_cache_bytes(n, 1, kv_heads, d, 2), 4 * heads * n * 2
    intensity = cost.attention_intensity(1, n, d, heads, kv_heads, 2)
    rows.append((name, size(cache), f"{s_and_p / cache:.1%}", f"{intensity:.2f}", f"{intensity / h200.ridge:.1%}",
                 duration(cache / h200.hbm_bytes_per_s)))
table(["one layer, 131,072 tokens", "cache", "S and P add", "FLOP per byte", "of the ridge", "reading takes"], rows)

# %% [markdown]
# By about six per cent. (More is added only where one key head serves all queries, and then to a cache that is small.)
# The matrix that should not exist was a problem because it was $N/D$ times as large as q; with one query it is a row.
# What is left is the cache, every byte of which must be read for every new token, by any kernel that computes exact
# attention. And see what is done with it: a key of $D$ elements is multiplied once for each query
# head that reads it, and the value as well, so that in 16 bits the intensity is 1 FLOP per byte for each head of a
# group. The GPU could do two hundred. It is a copy with some arithmetic on the side.
#
# The only thing in the table that helps is the number of key heads. Shazeer 2019 went all the way from one for each query
# head (*multi-head attention*, MHA) to a single one (*multi-query*, MQA), Ainslie et al. 2023 to groups
# (*grouped-query*, GQA). It is a decision about the model, not about the kernel.
#
# A CPU has the same two limits. Take one core of yours, a cache of 65,536 keys and values, and 1 or 256 queries.
# **How many times as long do 256 queries take as one?**

# %%
rng = np.random.default_rng(0)
k, v = (rng.standard_normal((65_536, d), dtype=np.float32) for _ in range(2))
cache = k.nbytes + v.nbytes
print(f"the keys, only added up: {k.nbytes / measure(np.sum, k, repeats=9).seconds / 1e9:.1f} GB/s")
for queries in (1, 256):
    q = rng.standard_normal((queries, d), dtype=np.float32)
    seconds = measure(lambda q: stable_softmax(q @ k.T * d**-0.5) @ v, q, repeats=9).seconds
    flops = cost.attention_flops(queries, len(k), d)
    print(f"{queries:3} queries: {duration(seconds):>7}, the cache at {cache / seconds / 1e9:4.1f} GB/s, "
          f"{flops / seconds / 1e9:4.1f} GFLOP/s")

# %% [markdown]
# One query takes about the time that it takes to read the cache once, and the core computes far less than it could. 256
# queries do 256 times the work in far less than 256 times the time: now arithmetic is the limit, and the memory is
# nearly idle. The first is decoding. The second is what flash attention is for: prompts and training. (Times depend on
# what else a machine is doing.)
#
# On a GPU the prediction is as short: the bytes of the cache, divided by the rate of a copy. Take one query with 32
# heads on an H200, over caches of up to 131,072 tokens, none of which is in L2. Four kernels: naive attention,
# `flash_attention`, torch's FlashAttention-2, and `decode_attention` of chapter 8, which gives the keys of a head to
# many programs. In the bytes they hardly differ, so they should take the same time, and with a quarter of the key heads a
# quarter of it. **Do they? Remember how many programs `flash_attention` starts: one for each tile of queries of
# each head, on more than a hundred multiprocessors.**

# %%
cached = {(row["kv_heads"], row["contender"], row["n"]): row for row in load("h200_kv_cache")["rows"]}
names, rows = {"naive": "naive", "flash": "flash", "fa2": "FlashAttention-2", "decode": "decode, keys split"}, []
for kv_heads, n in ((8, 1024), (32, 131_072), (8, 131_072), (1, 131_072)):
    cache = cost.kv_cache_bytes(n, 1, kv_heads, d, 2)
    took = [duration(cached[kv_heads, name, n]["time_ms"] / 1e3) for name in names]
    rows.append((f"{n:,}", kv_heads, size(cache), duration(cache / cached[kv_heads, "copy", n]["bytes_per_s"]), *took))
table(["N", "key heads", "cache", "at a copy's rate", *names.values()], rows)

# %%
lines = {label: {n: row["of_copy"] for (kv_heads, contender, n), row in cached.items() if (kv_heads, contender) == (8, name)}
         for name, label in names.items()}
against_length(lines, "share of a copy's rate", "One query over a cache on one H200, 32 query heads, 8 key heads, D = 128. "
               "The bytes are those of k, v, q and o, once, whatever a kernel moved.", level=1)

# %% [markdown]
# `decode_attention` does what the bytes allow, if there are enough of them. With 32 key heads it is even a little
# faster than predicted: a copy reads and writes, a cache is only read, so a copy's rate is a yardstick and not a limit.
# A quarter of the key heads takes it not much more than a quarter of the time. No kernel could have given that, only
# the model. Torch's FlashAttention-2 follows. Small caches are far from the prediction. At 1,024 tokens every call takes
# ten times as long as the bytes or more, and the cache of a single key head is still a small one at 131,072.
#
# And `flash_attention` is the slowest of the four: with 32 key heads several times slower than *naive* attention,
# with one about thirty times. Its time does not depend on the key heads at all. There are 32 programs in each
# case, each of which walks through all of the keys by itself, and most of the GPU stands by. Bytes are not its limit.
# Naive attention comes near to the prediction where the cache is largest. With 8 key heads it needs more than twice the
# time of the bytes. Six per cent more bytes are no reason for that, and these times do not give one.
#
# A whole model has many layers, a GPU only so much memory, and users come in numbers. The picture opens at Llama-3-8B
# with 131,072 tokens. Before you move anything: its weights, 8 billion in 16 bits, are 16 GB and are read for each
# token, too. **At which batch does the cache matter more than the weights?** (The weights are read once for the whole
# batch. The caches are not shared.)

# %%
demos.kv_cache("Llama-3-8B", "H200", n)

# %% [markdown]
# At a batch of 1 already, at this length: the cache is 17.2 GB. That is why long contexts are expensive to serve,
# however fast the kernels are.
#
# What can be repaired in the kernel, the number of its programs, chapter 8 repairs, with the merge of chapter 2.
#
# ## Head dimensions: what padding costs
#
# In chapter 4 the tiles of the kernel had sides that are powers of two, since Triton wants them so, and a head
# dimension that is none was padded with zeros. Zeros change no product. But they are multiplied. Most models have 64 or
# 128. Some do not: 80 in Phi-2 (2,560 wide, 32 heads), 96 in GPT-NeoX-20B (6,144, 64 heads), 72 in the vision model
# SigLIP so400m (1,152, 16 heads), 40, 80 and 160 in the first Stable Diffusion. **If a head dimension of 72 runs in
# tiles of 128, how many times as many products are computed as are needed?**
#
# One might hope that the compiler sees the zeros. Without a GPU we can look at what it makes (the cell needs Triton):

# %%
if importlib.util.find_spec("triton") is not None:
    from flashedu.kernels import compiled

    for head_dim in (64, 72, 96, 128):
        made = compiled.forward(90, head_dim)
        tile, name = made.constants, made.matrix_instruction
        print(f"D = {head_dim:3}: tiles {tile['BLOCK_Q']} x {tile['BLOCK_K']}, padded to {tile['BLOCK_D']:3}, "
              f"{made.counts[name]} {name}, {made.shared_bytes:,} bytes of shared memory")

# %% [markdown]
# The same tiles, the same number of instructions, the same shared memory for 72, 96 and 128. The masks of the loads know
# about $D$; the products do not. So the prediction is that all three take the same time. Against the products that each
# of them needs, that is:

# %%
def to_a_power_of_two(head_dim):
    return max(16, 1 << (head_dim - 1).bit_length())


def to_multiples_of_16(head_dim):
    return -(-head_dim // 16) * 16  # what one instruction of the tensor cores sums over, in 16 bits


# %%
head_dims = range(40, 257, 8)
lines = {"padded to a power of two": {x: to_a_power_of_two(x) / x for x in head_dims},
         "padded to a multiple of 16": {x: to_multiples_of_16(x) / x for x in head_dims}}
against_head_dim(lines, "products done / products needed", "What padding costs in products, for head dimensions in steps of 8.")

# %%
worst = max(head_dims, key=lines["padded to a power of two"].get)
print(f"72: {to_a_power_of_two(72) / 72:.2f} times the products; worst is {worst} with {to_a_power_of_two(worst) / worst:.2f}")
print(f"72 = 64 + 8, padded to 64 + 16 in two tiles: {(64 + 16) / 72:.2f} times")

# %% [markdown]
# The saw's teeth are at 72 and 136, right behind a power of two: nearly twice the work. This is a price of *this*
# kernel. The tensor cores themselves sum over 16 elements in 16 bits, so that a kernel whose tiles may have any multiple
# of 16 pays at most a fifth at the dimensions that models have. Triton does not allow such a tile. What it does allow
# is to cut the head dimension into two tiles, 64 and 16 for 72, with twice as many loads and products in the code.
#
# Padding costs products and not HBM bytes. The loads are masked, so the zeros come from nowhere, and S, P and the
# exponentials are what they are for any $D$. So a decoding step does not pay for it, and a prompt does. If you design
# a model, choose 64 or 128, and you will never meet this.
#
# Now the measurement, on an H200: 4 sequences of 4,096 tokens, 16 heads, head dimensions from 40 to 256. The prediction
# for our kernels has no free parameter: any head dimension takes as long as the next power of two. **Will it hold forward
# and backward, and for a dimension such as 50? And torch's backends: where are their steps, and what do they refuse?**

# %%
dims = {(row["direction"], row["contender"], row["head_dim"]): row for row in load("h200_head_dims")["rows"]}
measured_dims = sorted({head_dim for _, _, head_dim in dims})
names = {"flash": "flash", "fa2": "FlashAttention-2", "cudnn": "cuDNN", "efficient": "memory-efficient"}


def head_times(way):
    """{label: {D: milliseconds}} of everybody, where they ran, and of the prediction for our kernels."""
    lines = {label: {x: dims[way, name, x]["time_ms"] for x in measured_dims if "time_ms" in dims[way, name, x]}
             for name, label in names.items()}
    return lines | {"next power of two, predicted": {x: lines["flash"][to_a_power_of_two(x)] for x in measured_dims}}


# %%
against_head_dim(head_times("forward"), "milliseconds, forward", "Forward attention on one H200, 16,384 tokens in the batch, 16 heads. "
                 "Flash is this course's Triton kernel, the others are torch's backends.")

# %%
kinds = {"multiples of 16": (48, 80, 96, 112, *range(144, 256, 16)), "other multiples of 8": (40, 56, 72, 88, 104, 120),
         "50": (50,), "100": (100,)}
for way in ways:
    ours, *_, predicted = head_times(way).values()
    for kind, chosen in kinds.items():
        off = [ours[x] / predicted[x] for x in chosen]
        print(f"{way:8} {kind:20}: " + " to ".join(f"{x:.2f}" for x in sorted({min(off), max(off)})) + " times the prediction")

# %%
steps = (64, 72), (96, 104), (128, 144), (192, 208)
rows = [(way, label, *(f"{points[above] / points[below]:.2f}" for below, above in steps), *(f"{points[x]:.1f} ms" for x in (128, 144)))
        for way in ways for label, points in head_times(way).items() if label in names.values()]
table(["", "", *(f"{above} : {below}" for below, above in steps), "D = 128", "D = 144"], rows)

# %%
for name, label in names.items():
    refused = {x: row["refused"].split(" | ") for (_, who, x), row in dims.items() if who == name and "refused" in row}
    reason = next((part for parts in refused.values() for part in parts if "head_dim" in part or "last dim" in part), "")
    print(f"{label}: " + (f"refuses {', '.join(map(str, refused))}: {reason.strip()}" if refused else "runs all of them"))

# %% [markdown]
# A staircase, as predicted, with rough treads. 72 takes what 128 takes, and every multiple of 16 what the next power of
# two takes, within about a tenth. Some of the other multiples of 8 take about a fifth more, and so does 100. 50 takes
# more than one and a half times the prediction: its rows begin at multiples of 4 bytes and no more, so that loads have
# to be narrow, which is probably the reason. That price was not in the products.
#
# Nor was the height of the last step. Backward, from 128 to 144, our kernels take three times as long, not twice. For
# 256 they need smaller tiles, or tiles that are not loaded ahead (`flashedu/kernels/tiles.py`), which is probably the
# reason. Torch's FlashAttention-2, slower than ours at 128, overtakes them. The memory-efficient backend falls even
# further.
#
# The libraries have steps, too. Forward, FlashAttention-2 climbs at all four places of the table, cuDNN at three, and at
# 72 both climb less than we do. What is refused is simple: cuDNN and the memory-efficient backend take multiples of 8
# and nothing else. FlashAttention-2, as torch calls it, takes them all. When several backends are allowed,
# `scaled_dot_product_attention` selects one by the inputs. So a model with $D = 100$ raises no error. It runs on what
# is left, and in the figure that takes more than twice as long as cuDNN takes for 104.
#
# ## Approximations: what is given up
#
# If the work is $N^2$ and exactness forbids to leave anything out, give up exactness. Three ideas from the years before
# FlashAttention, each the simplest of a family, each in a few lines. The *window*: a query sees its neighbours.

# %%
# include: flashedu.reference.approximate:window_attention


# %% [markdown]
# *Low rank*: there are $N$ keys in $D$ dimensions, surely they can be summarised. Keys and values are replaced by a few
# means, each of which weighs as much as the keys that went into it. (Linformer learns its summary; a mean is one that
# needs no training.)

# %%
# include: flashedu.reference.approximate:pooled_attention


# %% [markdown]
# *Linear attention*: what ties the queries to the keys is the exponential of their product. Put a product of functions
# of each in its place, and the sum over keys can be done once, for all queries, before any query is seen.

# %%
# include: flashedu.reference.approximate:linear_attention


# %% [markdown]
# To compare them, give each the same work. With 272 tokens and $D = 32$, linear attention needs about an eighth of the
# FLOPs. A window of 16 either way needs as many, and so do 32 means. Suppose that each is one fused kernel, so that all
# move the same bytes at best: q, k and v once, and the output. **Which of the three saves HBM traffic, compared with
# flash attention?**

# %%
n, d = 272, 32
io_bytes, _ = cost.naive_traffic(n, d, 1, 1, 2)
exact = cost.attention_flops(n, n, d)
work = {"flash": exact, "window of 16": cost.window_flops(n, 16, d), "32 means": cost.pooled_flops(n, 32, d),
        "linear": cost.linear_flops(n, d)}
rows = [(name, f"{flops:,}", f"{flops / exact:.0%}", f"{io_bytes:,}", f"{flops / io_bytes:.0f}") for name, flops in work.items()]
table(["", "FLOPs", "of exact attention's", "HBM bytes, 2 an element", "FLOP per byte"], rows)

# %% [markdown]
# None. Against naive attention each of them saves the square in HBM, which was their great argument before there was
# another way to save it. Flash attention took the argument away: its traffic is the same as theirs. What they save is
# arithmetic. So they do less for each byte, and on a GPU sooner wait for memory than flash attention does.
#
# Now the errors, by the measure that this course uses for everything. Three inputs: two heads of chapter 2's model, and
# random numbers of the same shape. Head 8 looks at the next token, head 10 at the first. As a baseline there is the
# cheapest attention of all: every query gets the mean of the values, without looking at anything. **Which method will do
# best on which input? And will all of them beat the baseline?**

# %%
real, rng = load_minilm(), np.random.default_rng(0)
inputs = {f"head {head}": [x[head] for x in (real.q, real.k, real.v)] for head in (8, 10)}
inputs["random"] = [rng.standard_normal((n, d), dtype=np.float32) for _ in range(3)]
methods = {
    "flash": lambda q, k, v: tiled_attention(q, k, v, 64, 64)[0],
    "window of 16": lambda q, k, v: window_attention(q, k, v, 16),
    "32 means": lambda q, k, v: pooled_attention(q, k, v, 32),
    "linear": linear_attention,
    "the mean value": lambda q, k, v: np.tile(v.mean(axis=0), (n, 1)),
}


# %%
def relative_error(o, exact):
    return float(np.linalg.norm(o - exact) / np.linalg.norm(exact))


rows = []
for name, (q, k, v) in inputs.items():
    bound, _ = attention_bounds(q, k, v, block_k=64)
    results = {method: attend(q, k, v) for method, attend in methods.items()}
    for method, o in results.items():
        ratio = bound.ratio(o)
        rows.append((name, method, f"{ratio:,.2f}" if ratio < 10 else f"{ratio:,.0f}", f"{relative_error(o, bound.exact):.1e}"))
table(["", "", "error / bound", "relative error"], rows)

# %% [markdown]
# (The relative error is that of the whole output, against naive attention in float64.) Flash attention uses a few per
# cent of what rounding allows. The others are beyond it by four orders of magnitude and more, and their relative errors
# are not a few per cent; they are tens of per cent or above one. Two of the results are worth a thought.
#
# The window is the best for head 8, which looks next door, and the worst for head 10, which looks at the first token, a
# place that is out of sight. A method is right for a head if the head happens to be made that way. Everywhere else the
# mean value, which looks at nothing, is not beaten by much, and by the window not at all.
#
# Were 16 neighbours and 32 means too few? Take more. For comparison there is one more curve. The best that *any*
# matrix of rank $r$ can do in the place of P is known, by its singular values (the theorem of Eckart and Young, for the
# error of P). Nobody can compute it without computing P first, so it is no method, but it says what low rank could do
# if one knew everything. **Where do the curves reach the error of flash attention?**

# %%
def turned(q, k, v):
    """{method: [(share of the FLOPs, relative error), ...]}, and the error of the mean value."""
    right, ranks = attention_bounds(q, k, v)[0].exact, (8, 16, 32, 68, 136, 204, 264)
    u, sigma, vt = np.linalg.svd(stable_softmax(q.astype(float) @ k.T.astype(float) * d**-0.5))
    tried = {"window": [(cost.window_flops(n, r, d), window_attention(q, k, v, r)) for r in (4, 8, 16, 32, 64, 128, 240, 271)],
             "means of keys": [(cost.pooled_flops(n, r, d), pooled_attention(q, k, v, r)) for r in (*ranks, n)],
             "best of its rank": [(cost.attention_flops(n, r, d), (u[:, :r] * sigma[:r]) @ (vt[:r] @ v)) for r in ranks],
             "linear": [(work["linear"], linear_attention(q, k, v))], "exact": [(exact, methods["flash"](q, k, v))]}
    errors = {method: [(flops / exact, relative_error(o, right)) for flops, o in points] for method, points in tried.items()}
    return errors, relative_error(np.tile(v.mean(axis=0), (n, 1)), right)


# %%
panels = {name: turned(*arrays) for name, arrays in inputs.items()}
error_against_work(panels, "Relative error against float64, over the FLOPs in the two products. The best matrix of a rank "
                   "is no method: it is computed from P, and drawn at the FLOPs that it would need if it were given.")

# %% [markdown]
# At the right edge of the panels, where all of the work is done, and nowhere before it. Between approximate and exact
# there is no slope that one could walk down at leisure; there is a cliff. Head 10 is the exception that shows what low
# rank means: nearly all its queries do the same, and the best matrix of rank 8 is several times nearer to it than
# anything else of that price. The means do not find that matrix, since they do not know which key matters. Head 8's P is
# nearly a shifted identity, of full rank, and the best matrix of half the rank misses a good part of it. On random
# numbers the window is at its worst, and the two others hardly beat the mean value: whoever tries a method on them learns
# little about models.
#
# ## What is bought with it
#
# It would be wrong to end here. These errors say that another function was computed. They do not say that it is a worse
# one: this model was trained with exact attention and then given something else. Models that were trained with a window
# (Mistral 7B, for one) or with linear attention have adapted to it, and for them it is the right function. A window in
# its turn can be computed exactly, tile by tile, by a flash kernel that skips the tiles outside of it, as it skips
# those above the diagonal.
#
# And they buy what flash attention cannot. The limits of this chapter were $N^2$ in the work and $N$ in the cache.
# What must be kept for the next token, for one head of 128, with 131,072 tokens behind it?

# %%
n, d = 131_072, 128
kept = {
    "exact": cost.kv_cache_bytes(n, 1, 1, d, 2),
    "window of the last 4,096": cost.kv_cache_bytes(4096, 1, 1, d, 2),
    "linear: the two sums over keys": d * (d + 1) * 2,
}
for name, kept_bytes in kept.items():
    print(f"{name:31} {size(kept_bytes):>8}, {kept['exact'] / kept_bytes:7,.0f} times less")
less = cost.attention_flops(n, n, d) / cost.linear_flops(n, d)
print(f"a prompt of that length: linear attention needs 1/{less:,.0f} of the FLOPs")

# %% [markdown]
# Against naive attention, approximations seemed to buy memory and speed at
# any length. Against flash attention they buy nothing at lengths where attention is a small share, and none of a prompt's
# HBM traffic at any length. Where the quadratic term owns the budget, or the cache fills the GPU, they buy a great deal,
# and the price is another function, to which a model has to be trained.
#
# ## What you can now explain
#
# At which length attention becomes half of a block, and why it is later for larger models. What Amdahl's law leaves of
# a kernel that is five times as fast. Why the time at any great length is known from one. Why a decoding step
# reads all of the cache with any exact kernel, at about one FLOP per byte for each query head of a group, and who can
# change that. Why flash attention can lose to naive attention there. What a head dimension of 72 costs in tiles of 128,
# and what it does not cost. What three approximations give up, what each is good for, and why their errors lie on the
# other side of a cliff.
#
# ## Now you
#
# Open [exercises/07_where_it_does_not_help](../exercises/07_where_it_does_not_help.ipynb). You write
# `attention_intensity`, `kv_cache_bytes` and `attention_flop_share`, three closed forms of a few lines that answer most
# of the questions of this chapter before anything is measured.
#
# ## Where to read more
#
# - Kaplan et al., *Scaling laws for neural language models*, 2020 (arXiv 2001.08361): section 2.1, what a token costs.
# - Shazeer, *Fast transformer decoding: one write-head is all you need*, 2019 (arXiv 1911.02150): sections 2 and 3, the
#   bytes of a decoding step; Ainslie et al., *GQA*, 2023 (arXiv 2305.13245): section 2.2.
# - Beltagy, Peters, Cohan, *Longformer*, 2020 (arXiv 2004.05150): section 3.1, the window; Wang, Li, Khabsa, Fang, Ma,
#   *Linformer*, 2020 (arXiv 2006.04768): section 4.
# - Katharopoulos, Vyas, Pappas, Fleuret, *Transformers are RNNs*, 2020 (arXiv 2006.16236): section 3.2, linear
#   attention, and 3.4, why it can decode in constant memory.
# - Jiang et al., *Mistral 7B*, 2023 (arXiv 2310.06825): section 2, a model with a window.
