# %% [markdown]
# # 5. Backward: recompute what you refused to store
#
# The forward pass refused to store the matrix P. But a model is trained with derivatives, and every derivative
# of attention contains P. **Where does the backward pass take it from, and how can a program that computes P
# three times over be faster than one that kept it?**

# %%
import math
import os
import sysconfig
from pathlib import Path

# The tiles of this chapter are small, and one core is fastest. NumPy reads this when it is loaded.
os.environ.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", VECLIB_MAXIMUM_THREADS="1")

# %%
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from flashedu import demos
from flashedu.gradient_bounds import gradient_bounds

# %%
from flashedu.hardware import gpu
from flashedu.kernels import DEVICE, flash_attention
from flashedu.reference import attention_backward, naive_attention, stable_softmax, tiled_attention, tiled_backward
from flashedu.results import load
from flashedu.viz import gradients
from flashedu.viz.curves import size
from flashedu.viz.table import table

# %%
if DEVICE is None:
    print("Triton is not installed here (it exists for Linux): a cell that defines or starts a kernel ends in a NameError, the others run.")
else:  # after flashedu.kernels, which decides where kernels run
    import triton
    import triton.language as tl

# %% [markdown]
# PyTorch's autograd writes down, during the forward pass, what the backward pass will need, and we can look
# over its shoulder: a hook sees every tensor that is put aside. Below, causal attention for 4 heads of 1,024
# tokens, head dimension 64, float32: once written as three operations of torch, once as this course's
# `flash_attention`. The inputs q, k and v are 1 MB each.
#
# Two predictions before you run it. How many bytes does each put aside? And one of the two has to rebuild from
# scraps what the other has at hand: how much accuracy will its gradients lose?

# %%
device = "cuda" if DEVICE == "cuda" else "cpu"


def naive(q, k, v):
    s = q @ k.mT * q.shape[-1] ** -0.5  # (B, H, N, N)
    hidden = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1)
    return s.masked_fill(hidden, -math.inf).softmax(-1) @ v


def flash(q, k, v):
    return flash_attention(q, k, v, causal=True)


# %%
def forward_and_kept(function, *inputs):
    """The output, and {address: (shape, bytes)} of the inputs and of all memory that autograd puts aside."""
    kept = {}

    def put_aside(x):
        kept.setdefault(x.untyped_storage().data_ptr(), (tuple(x.shape), x.untyped_storage().nbytes()))
        return x

    with torch.autograd.graph.saved_tensors_hooks(put_aside, lambda x: x):
        output = function(*map(put_aside, inputs))
    return output, kept


# %%
rng = np.random.default_rng(0)
arrays = [rng.standard_normal((1, 4, 1024, 64), dtype=np.float32) for _ in range(4)]
bounds = gradient_bounds(*arrays, causal=True, block_q=128, block_k=128)
q, k, v, do = (torch.tensor(x, device=device, requires_grad=True) for x in arrays)
for name, attention in (("naive", naive), ("flash", flash)):
    o, kept = forward_and_kept(attention, q, k, v)
    print(f"{name}: {size(sum(n for _, n in kept.values()))} kept", *(f"\n    {shape}: {size(n)}" for shape, n in kept.values()))
    found = torch.autograd.grad(o, (q, k, v), do)
    ratios = [bound.ratio(x.cpu().numpy()) for bound, x in zip(bounds, found)]
    print("    error over bound: " + ", ".join(f"{x} {r:.3f}" for x, r in zip(("dq", "dk", "dv"), ratios)))

# %% [markdown]
# (Each piece of memory is counted once, however often it is put aside.) Naive attention kept the four matrices
# of P, 1,024 x 1,024 each, which are most of its bytes, and the mask. Flash attention kept q, k, v, its output,
# and one number for each row. In spite of that its gradients, measured in units of what rounding allows, are as
# good. (The bound is that of chapter 2, carried through the backward pass.)
#
# So nothing was lost with P. This chapter derives the gradients, finds out why one number a row is enough to
# rebuild it, and then asks what the rebuilding costs in time. The answer to that is the opposite of what you
# would expect of doing work twice.
#
# ## What a layer would have to keep
#
# First the size of the problem, for the layer of chapter 1: Llama-3-8B, 8,192 tokens, bfloat16. It has 32 such
# layers, and what is kept waits there until the backward pass comes by.

# %%
n, d, heads, kv_heads, layers = 8192, 128, 32, 8, 32
arrays_kept = {
    "P": heads * n * n * 2,
    "lse (float32)": heads * n * 4,
    "o": heads * n * d * 2,
    "q, k and v": (heads + 2 * kv_heads) * n * d * 2,
}
table(["kept for the backward pass", "one layer", f"{layers} layers"],
      [(name, size(x), size(layers * x)) for name, x in arrays_kept.items()])

# %%
ratio = arrays_kept["P"] / arrays_kept["lse (float32)"]
print(f"P is {ratio:,.0f} times as large as lse, N / 2 = {n // 2:,}")
print(f"P of all layers: {size(layers * arrays_kept['P'])}, the memory of an H200: {size(gpu('H200').hbm_bytes)}")

# %% [markdown]
# One sequence, and the P of its layers is about the whole memory of the GPU, without weights or anything else.
# With lse in its place attention keeps $O(N)$ numbers for each head beside arrays that the model has anyway. It
# is sometimes called "$O(1)$ memory"; it is not quite that.
#
# The next picture makes the same sum for any length, for other models and other GPUs, and marks the length at
# which the GPU is full. It opens at the layers of the table. Before you touch it, a prediction: put two sequences
# into the batch instead of one, and every array doubles. By what factor does the longest sequence that fits get
# shorter, with naive attention and with flash attention?

# %%
demos.memory("Llama-3-8B", "H200", n)

# %% [markdown]
# With flash attention by a factor of two, because all that it keeps grows with $N$. With naive attention only by
# about $\sqrt 2$: nearly all that it keeps is P, which grows with $N^2$, and a sequence shorter by the root of two
# has half the P. That sounds like a point for naive attention. Read it backwards: if you get a GPU with twice the
# memory, flash attention lets you train on twice the length, and naive attention on $\sqrt 2$ times the length. In
# the picture the slopes say so: both axes are logarithmic, and naive attention's curve is twice as steep.
#
# ## The derivative, one row at a time
#
# Let $L$ be the loss, one number. For any array $X$ let $dX$ be the array of derivatives $\partial L/\partial X$,
# which has the shape of $X$. The backward pass is given $dO$, which says for each output by how much the loss
# rises if that output does, and wants $dQ$, $dK$ and $dV$. Take one query. Its row of scores, its probabilities
# and its output are
#
# $$s_j = \tau\, q \cdot k_j, \qquad p = \mathrm{softmax}(s), \qquad o = \sum_j p_j v_j ,$$
#
# with $\tau = 1/\sqrt{D}$, the scale. Now walk back, from the right to the left.

# %%
rng = np.random.default_rng(1)
q, do = rng.standard_normal((2, 4))  # one query, float64
k, v = rng.standard_normal((2, 6, 4))  # six keys
scale = 4**-0.5
s = scale * k @ q
p = np.exp(s) / np.exp(s).sum()
o = p @ v
print("p =", p.round(3))

# %% [markdown]
# **The values.** $v_j$ enters the output with the weight $p_j$ and goes nowhere else. If it moves, the output
# moves $p_j$ times as far in the same direction:
#
# $$dv_j = p_j\, do .$$
#
# **The probabilities.** $p_j$ is what $v_j$ is multiplied by. If $p_j$ rises, the output moves along $v_j$, and
# the loss changes by as much of $v_j$ as points in the direction of $do$:
#
# $$dp_j = do \cdot v_j .$$

# %%
dv = np.outer(p, do)  # (6, 4)
dp = v @ do  # (6,)
print("dp =", dp.round(3))

# %% [markdown]
# **The scores.** This is the step through softmax. If the score $s_j$ rises, its own probability rises; but the sum
# must remain 1, and so all of them, this one included, are pushed down in proportion to what they have. With
# $[i = j]$ for 1 if $i = j$, and 0 otherwise,
#
# $$\frac{\partial p_i}{\partial s_j} = p_i\,([i = j] - p_j) .$$
#
# Add up what that does to the loss over all $i$:
#
# $$ds_j = \sum_i dp_i\, p_i\,([i = j] - p_j) = p_j\,(dp_j - \delta), \qquad \delta = \sum_i p_i\, dp_i .$$
#
# $\delta$ is the average of $dp$ over the row, weighted with $p$. (In chapter 2 the letter stood for the error of a
# score.) So raising a score raises the loss exactly if its key's value raises it more than the average of what the
# query listens to now. Before you run the next cell: what is the sum of all $ds_j$?

# %%
delta = p @ dp
ds = p * (dp - delta)
print("ds =", ds.round(3))
print(f"their sum: {ds.sum():.1e}")

# %% [markdown]
# Zero, up to rounding. It must be, since adding one number to all scores of a row changes nothing.
#
# **The query and the keys.** Only the product $s_j = \tau\, q \cdot k_j$ is left. The query meets every key, so
# it collects from all of them. A key gets what this query has for it, and since other queries meet it too, its
# gradient is a sum over rows; so is that of a value.
#
# $$dq = \tau \sum_j ds_j\, k_j, \qquad dk_j = \tau\, ds_j\, q \quad\text{(summed over the queries).}$$
#
# Put the rows together, and the whole of it is five lines, of which four are matrix products:
#
# $$\begin{aligned}
# dV &= P^\top dO \\
# dP &= dO\, V^\top \\
# dS &= P \circ (dP - \delta) \\
# dQ &= \tau\, dS\, K \\
# dK &= \tau\, dS^\top Q
# \end{aligned}$$
#
# Here $\circ$ multiplies element by element, and $\delta$ has one number for each row, subtracted from the whole
# row.
#
# ## Ask the function itself
#
# A derivation can be wrong, so ask the loss. Move one number of an input up by $h$ and down by $h$, compute the
# loss both times, and divide the difference by $2h$. This needs nothing but the forward pass. The loss is
# $\sum dO \circ O$, because its derivative with respect to $O$ is the given $dO$.

# %%
def central_differences(arrays, do, h):
    """The slope of sum(do * o) along every element of q, k and v."""
    slopes = [np.zeros_like(x) for x in arrays]
    for x, slope in zip(arrays, slopes):
        for at in np.ndindex(x.shape):
            here, losses = x[at], []
            for moved in (here + h, here - h):
                x[at] = moved
                losses.append((do * naive_attention(*arrays, causal=True)).sum())
            x[at], slope[at] = here, (losses[0] - losses[1]) / (2 * h)
    return slopes


# %% [markdown]
# Which $h$? Six queries and keys, float64, with $h$ from a tenth down to a millionth of a millionth. Draw the
# curve that you expect for the error against $h$: the smaller, the better? As a control there is a fourth curve
# for a wrong formula, dq with $\delta$ forgotten.

# %%
arrays, do = list(rng.standard_normal((3, 6, 4))), rng.standard_normal((6, 4))
formulas = attention_backward(*arrays, do, causal=True)
q, k, v = arrays
s = np.where(np.tri(6, dtype=bool), q @ k.T * scale, -np.inf)
forgotten = scale * (stable_softmax(s) * (do @ v.T)) @ k  # P * dP in the place of P * (dP - delta)
steps = np.logspace(-1, -12, 23)
errors = {name: [] for name in ("dq", "dk", "dv", "dq without delta")}
for h in steps:
    slopes = central_differences(arrays, do, h)
    for name, slope, formula in zip(errors, (*slopes, slopes[0]), (*formulas, forgotten)):
        errors[name].append(np.abs(slope - formula).max())
gradients.against_differences(steps, errors)

# %% [markdown]
# A V, for dq and dk. On its right arm $h$ is too large: the function is not straight over such a distance, and
# the error of a central difference falls with $h^2$, by 100 when $h$ is ten times smaller. On the left arm $h$ is
# too small: the two losses agree in almost all of their digits, and what rounding left of the others is divided
# by an ever smaller $h$. The arms $h^2$ and $u/h$ meet at $h = u^{1/3}$, where $u = 2^{-53}$ is float64's unit of
# rounding, at an error of about $u^{2/3}$:

# %%
u, best = 2.0**-53, int(np.argmin(errors["dq"]))
print(f"expected at the tip: h = {u ** (1 / 3):.0e}, error {u ** (2 / 3):.0e}")
print(f"found for dq:        h = {steps[best]:.0e}, error {errors['dq'][best]:.0e}")

# %% [markdown]
# For dv the right arm is missing. The output is *linear* in the values, so that the difference is exact over any
# distance, and rounding is all there is.
#
# The control stays where it is, whatever $h$. A wrong formula does not make a V, and that is why one looks at
# the curve and not at a single $h$.
#
# Finite differences tell right formulas from wrong ones, in float64 and for small inputs. Whether a kernel in
# float32 rounds as it should is beyond them; for that there is `gradient_bounds`, which you saw on the first
# screen.
#
# ## One number a row
#
# Look at the five lines with the eyes of somebody who has only a tile. $P$ and $dP$ of a tile can be computed
# from tiles of q, k, v and dO. But $\delta$ is a sum over the whole row, and dS needs it in every tile. That is
# the obstacle of chapter 1 again: nothing can be finished before the row has been seen. Must we walk over all
# keys once for $\delta$, and then again?
#
# Write it out, with $dp_j = do \cdot v_j$, and take $do$, which does not depend on $j$, out of the sum:
#
# $$\delta = \sum_j p_j\, dp_j = \sum_j p_j\, (do \cdot v_j) = do \cdot \sum_j p_j v_j = do \cdot o .$$
#
# What remains of the sum is the output of the forward pass. So $\delta$ is the row sum of $dO \circ O$, two
# arrays of $N \times D$ that are both at hand.

# %%
arrays = [rng.standard_normal((1024, 64), dtype=np.float32) for _ in range(4)]
q, k, v, do = arrays
scale = np.float32(64**-0.5)
o, lse = tiled_attention(q, k, v, 128, 128)
long = (stable_softmax(q @ k.T * scale) * (do @ v.T)).sum(axis=1)  # two products and a pass over N x N
short = (do * o).sum(axis=1)  # a pass over N x D
print("rowsum(P * dP) :", long[:4])
print("rowsum(dO * O) :", short[:4])
print(f"equal in {np.mean(long == short):.0%} of the rows to the bit, largest difference {np.abs(long - short).max():.1e}")

# %% [markdown]
# The same numbers, added up in another order, and so with other roundings.
#
# ## P comes back, tile by tile
#
# There is still P. The forward pass left $\mathrm{lse}_i$ for each row, the logarithm of the sum of the
# exponentials of its scores. A probability is an exponential divided by that sum, and dividing by a number is
# subtracting its logarithm in the exponent:
#
# $$P_{ij} = \frac{e^{s_{ij}}}{e^{\mathrm{lse}_i}} = e^{s_{ij} - \mathrm{lse}_i} .$$
#
# No maximum, no running sum, no correction of anything. The forward pass had to *discover* the denominator while
# the keys came by; the backward pass knows it, so that any tile of P can be computed alone, in any order. Why is
# it safe to exponentiate without subtracting the maximum? Because a sum of exponentials is at least as large as
# any one of them: $s_{ij} \le \mathrm{lse}_i$, and the exponent is never positive, rounding aside.

# %%
rows, keys = slice(256, 384), slice(512, 640)
tile = np.exp(q[rows] @ k[keys].T * scale - lse[rows, None])  # from 128 queries, 128 keys, 128 numbers
stored = stable_softmax(q @ k.T * scale)[rows, keys]  # from all keys
exact = stable_softmax((q.astype(float) @ k.T.astype(float)) * 64**-0.5)[rows, keys]
for name, x in (("cut out of the stored P", stored), ("rebuilt from lse", tile)):
    print(f"{name:24} differs from float64 by at most {np.max(np.abs(x - exact) / exact):.1e} of a probability")

# %% [markdown]
# Neither is more true than the other. With that, the whole backward pass works by tiles, and `tiled_backward`,
# which you will write, does it in NumPy. Here it is beside the one that holds P and dP, in units of what rounding
# allows:

# %%
bounds = gradient_bounds(q, k, v, do, block_q=128, block_k=128)
for name, found in (("P held in memory", attention_backward(q, k, v, do)),
                    ("P from lse, tile by tile", tiled_backward(q, k, v, o, lse, do, 128, 128))):
    ratios = [f"{x} {bound.ratio(g):.3f}" for x, bound, g in zip(("dq", "dk", "dv"), bounds, found)]
    print(f"{name:26}", ", ".join(ratios))

# %% [markdown]
# To throw away what a forward pass computed, and to compute it again when the backward pass needs it, is an old
# trick with a name, *activation checkpointing* (Chen et al. 2016). It buys memory with time: usually one more
# forward pass. FlashAttention does it at the grain of a single kernel. A tile of P is rebuilt where it is used,
# in the fast memory, and forgotten a moment later. It never sees HBM. And there the bill changes.
#
# ## Cheaper to recompute than to keep
#
# Suppose that we had kept P after all. A backward pass would then save one product, $QK^\top$, and the
# exponentials; but it would have to read P, and the forward pass would have had to write it. For the Llama layer,
# with the rates that an H200 reached for copies and for matrix products: which is more expensive?

# %%
rates = load("h200_attention_traffic")["ceilings"]
p_ms = arrays_kept["P"] / rates["copy_bytes_per_s"] * 1e3
scores_ms = 2 * heads * n * n * d / rates["matmul_flops_per_s"] * 1e3
print(f"P once through HBM at the copy rate:     {p_ms:.2f} ms")
print(f"QK^T once at the matrix product rate:    {scores_ms:.2f} ms")

# %% [markdown]
# About the same. But to keep P means to write it once and to read it for every kernel that needs it, and the
# estimate leaves out the exponentials, what the caches do, and whatever else happens at the same time. So both were
# built, and measured on an H200. The kernels are the same in everything else. One set keeps P in bfloat16: its
# forward kernel writes P (and the maximum under which each tile of it was computed), and its two backward kernels
# (there are two, as the next sections explain) read it and compute five products. The other set recomputes P in
# both backward kernels, and comes to seven products. 16 heads, $D = 128$, bfloat16, no mask. Predict for each phase
# which of the two is faster.

# %%
measured = {(row["n"], row["variant"], row["phase"]): row for row in load("h200_backward_stored_p")["rows"]}


def ms(length, variant, phase):
    row = measured[length, variant, phase]
    return f"{row['time_ms']:.2f} ms" if "time_ms" in row else "did not run"


# %%
phases = ("forward", "backward", "both")
rows = []
for length in sorted({n for n, variant, _ in measured if variant == "stored"}):
    for variant in ("stored", "recomputed"):
        kept = measured[length, variant, "both"].get("kept_bytes")
        rows.append((f"{length:,}", variant, *(ms(length, variant, phase) for phase in phases), size(kept) if kept else ""))
table(["N", "P is", *phases, "kept, with o"], rows)

# %% [markdown]
# In the backward pass it is a tie, or nearly one: two products and all the exponentials more take no longer than
# reading what they would have produced. In the forward pass it is not close. The kernel that keeps P has to write
# it, and gets nothing for it. Together recomputing wins, by the median at every length. Does the estimate explain
# that? Take 8,192 tokens and 16 heads, half of the layer above.

# %%
seconds = {(variant, phase): measured[8192, variant, phase]["time_ms"] for variant in ("stored", "recomputed") for phase in phases}
longer = {phase: seconds["stored", phase] - seconds["recomputed", phase] for phase in phases}
print(f"forward:  writing P, estimated {p_ms / 2:.2f} ms; measured: stored takes {longer['forward']:.2f} ms longer")
print(f"backward: reading P twice {2 * p_ms / 2:.2f} ms, two products less {2 * scores_ms / 2:.2f} ms; "
      f"measured: stored takes {longer['backward']:.2f} ms longer")
longest = max(n for n, *_ in measured)
for variant in ("stored", "recomputed"):
    row = measured[longest, variant, "both"]
    print(f"N = {longest:,}, {variant:10} both passes {row['time_ms_min']:.1f} to {row['time_ms_max']:.1f} ms over {row['rounds']} rounds")

# %% [markdown]
# It does, roughly: what is left in the backward pass is less than what its rounds differ by. Note what carries the
# argument. It is not that a matrix product is cheap; it is that a number in HBM is dear. And the memory between the
# passes comes on top of that: the last column of the table, for one layer of 16 heads.
#
# ## A checkpoint around flash attention
#
# Libraries offer checkpointing as a switch: `torch.utils.checkpoint` wraps a function, keeps only its inputs, and
# calls it again in the backward pass. Around naive attention that gets rid of P between the passes. What does it
# do around flash attention? The next cell counts, for both with and without, the bytes that wait for the backward
# pass and how often the forward runs. After attention comes a projection, as in every model; it needs its input,
# attention's output, for its own gradient. Predict the last row.

# %%
runs = 0


def counted(attention):
    def run(*inputs):
        global runs
        runs += 1
        return attention(*inputs)

    return run


# %%
def layer_costs(attention, in_checkpoint):
    """(bytes kept, runs of the forward pass) of attention and a projection, once forward and once backward."""
    global runs
    attention, runs = counted(attention), 0

    def layer(q, k, v):
        o = checkpoint(attention, q, k, v, use_reentrant=False) if in_checkpoint else attention(q, k, v)
        return o @ projection

    o, kept = forward_and_kept(layer, *(x.requires_grad_() for x in torch.randn(3, 1, 4, 1024, 64, device=device)))
    o.sum().backward()
    return size(sum(n for _, n in kept.values())), runs


# %%
projection = torch.randn(64, 64, device=device, requires_grad=True)
rows = [(f"{name}{', in a checkpoint' if wrapped else ''}", *layer_costs(attention, wrapped))
        for name, attention in (("naive", naive), ("flash", flash)) for wrapped in (False, True)]
table(["", "kept", "forward runs"], rows)

# %% [markdown]
# Around naive attention the checkpoint is worth its price: it keeps a small part of what was kept, and pays with
# a second forward pass. Around flash attention it pays the same price, and what it saves is lse, one number a
# row, since the projection keeps the output anyway. The backward pass rebuilds P from q, k and lse in any case.
# With the checkpoint it first runs the whole forward pass again, to obtain an lse that it once had.
#
# On the H200, 8,192 tokens, 16 heads, $D = 128$, bfloat16, forward and backward together: attention alone, and
# between the two projections of a layer, with the checkpoint around nothing, around attention, and around all.
# *Kept* is by how much more memory is in use after the forward pass than before it: the output is in it, the inputs
# are not.

# %%
rows = [
    (row["variant"], "alone" if row["block"] == "attention" else "with projections", row["checkpoint"],
     f"{row['time_ms']:.1f} ms", size(row["kept_bytes"]), size(row["peak_bytes"]))
    for row in load("h200_checkpoint")["rows"] if "time_ms" in row
]
table(["attention", "", "in the checkpoint", "time", "kept", "peak"], rows)

# %% [markdown]
# Flash attention alone: the time of one more forward pass, and what is kept shrinks by its lse. Between projections
# it shrinks by one output as well, because a projection wants the heads side by side and keeps a rearranged copy of
# its own. The peak does not fall, since during the backward pass all of it is there again. A checkpoint around the
# whole layer is another matter. It does without the inputs of the projections, which have nothing to do with
# attention, and it may be worth its time.
#
# ## Two kernels
#
# On the GPU, who computes what? In the forward pass a program owned a tile of queries and walked over the keys.
# The backward pass has sums in both directions: dq is a sum over keys, dk and dv are sums over queries. A program
# that owns a tile of keys can keep its dk and dv close to the arithmetic while the queries come past. But in each
# tile it also finds a piece of the dq of other rows, which would have to be added to memory that all programs of
# that row of tiles add to.
#
# There are two ways out. The one of FlashAttention-2 is to add with *atomic* operations, which make sure that
# additions from several programs do not overwrite each other. The other is to walk twice: a kernel whose programs
# own keys, and another whose programs own queries. Everybody finishes what they own, and nobody adds to what is
# another's.

# %%
gradients.owners()

# %% [markdown]
# The package takes the second way. This is the loop of its dQ kernel, as it runs. `do` and `q` are the program's
# own tiles, `lse_2` is lse with $\log_2 e$ multiplied in, and `MASKED` is true only for the tiles that the
# diagonal, or the end of the keys, crosses. Find the five lines of the formulas in it. Which of them are missing?
#
# (The cell is for reading: the function is a part of a kernel, and nothing here calls it. Without Triton, as on
# macOS and Windows, it ends in a NameError; go on with the next cell.)

# %%
# include: flashedu.kernels.backward_dq:sum_dq

# %% [markdown]
# There are dP, dS and dQ, and before them S and P. Missing are dV and dK, which belong to the other kernel; and
# that one has to compute S, P and dP too. The factor $\tau$ of dQ is multiplied in behind the loop, once. Two more
# things to notice. Where the forward pass set hidden *scores* to $-\infty$, this loop sets hidden *probabilities*
# to 0, after the exponential: in a row that sees no key at all, lse is $-\infty$, and $-\infty - (-\infty)$ would
# be NaN. And `ds` is rounded to the type of `k` before the product, as P was in the forward pass, since that is
# what tensor cores multiply.
#
# Now count products of the size $N \times N \times D$. The forward pass has two of them. How many has each
# kernel of the backward pass, and how many would a single kernel need? And with a stored P?

# %%
products = {
    "P stored, one kernel": ("dV dP dQ dK", ""),
    "P stored, two kernels": ("dV dP dK", "dP dQ"),
    "P rebuilt, one kernel": ("S dV dP dQ dK", ""),
    "P rebuilt, two kernels": ("S dV dP dK", "S dP dQ"),
}
forward_products = 2
rows = [(name, first, second, m := len((first + " " + second).split()), f"{m / forward_products:.1f}")
        for name, (first, second) in products.items()]
table(["backward pass", "products of a kernel", "of a second one", "in all", "forward passes"], rows)

# %%
extra = 2 * (2 * heads * n * n * d)  # a product has n n d multiplications and as many additions, for each head
print(f"the two extra products of the Llama layer: {extra / 1e12:.2f} TFLOP, "
      f"{extra / rates['matmul_flops_per_s'] * 1e3:.2f} ms at the rate above")

# %% [markdown]
# Seven in the place of five, 1.4 times as much arithmetic. (A stored P would save the products called S, at
# the price that you saw.) When you read of a backward pass's FLOP per second,
# look at what was counted: by convention it is credited with five products, 2.5 forward passes, however many it
# executes, so that a kernel like this one looks slower by that factor than the hardware runs.
#
# Here it runs, on a GPU if there is one, and in Triton's interpreter otherwise. A ragged number of tokens, two
# query heads that share a key head, and a head dimension that is no power of two:

# %%
backend = "triton" if DEVICE else "reference"  # without Triton, as on macOS and Windows, the NumPy version
shapes = ((1, 2, 75, 40), (1, 1, 75, 40), (1, 1, 75, 40), (1, 2, 75, 40))
arrays = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
q, k, v, do = (torch.tensor(x, device=device, requires_grad=True) for x in arrays)
o = flash_attention(q, k, v, causal=True, backend=backend)
found = torch.autograd.grad(o, (q, k, v), do)
for name, bound, g in zip(("dq", "dk", "dv"), gradient_bounds(*arrays, causal=True, block_q=32, block_k=32), found):
    print(f"{backend}, {name} {tuple(g.shape)}: error over bound {bound.ratio(g.cpu().numpy()):.3f}")

# %% [markdown]
# ## What atomics would do
#
# Why pay for two more products? An atomic addition is safe, but it does not say who comes first. That depends on
# which program finished when, and it is different in every run. In exact arithmetic it would not matter. Floating
# point is another matter, since each addition rounds:

# %%
a, b, c = np.float32(1), np.float32(2**-24), np.float32(2**-24)
print(f"(a + b) + c = {(a + b) + c:.8f}")
print(f"a + (b + c) = {a + (b + c):.8f}")

# %% [markdown]
# Imitate it. 1,024 tokens, 16 tiles of keys, float32. Each tile of keys contributes to dq of every row; compute
# the 16 contributions once, and add these same numbers in a hundred random orders. How many different results
# will there be, and is any of them wrong?

# %%
q, k, v, do = (rng.standard_normal((1024, 64), dtype=np.float32) for _ in range(4))
o, lse = tiled_attention(q, k, v, 64, 64)
delta = (do * o).sum(axis=1, keepdims=True)


def contribution(rows, keys):
    """What a tile of keys adds to dq of some rows."""
    p = np.exp(q[rows] @ k[keys].T * scale - lse[rows, None])
    return p * (do[rows] @ v[keys].T - delta[rows]) @ k[keys] * scale


# %%
everybody, tiles = slice(None), [slice(i, i + 64) for i in range(0, 1024, 64)]
pieces = [contribution(everybody, keys) for keys in tiles]
bound = gradient_bounds(q, k, v, do, block_k=64)[0]
results, ratios = set(), []
for _ in range(100):
    dq = np.zeros_like(q)
    for i in rng.permutation(16):  # whoever is ready adds
        dq += pieces[i]
    results.add(dq.tobytes())
    ratios.append(bound.ratio(dq))
print(f"100 orders, different results: {len(results)}, error over bound {min(ratios):.4f} to {max(ratios):.4f}")

# %% [markdown]
# Practically every order has bits of its own, and every one of them is right: all lie within a small part of what
# rounding allows. So this is no matter of accuracy. What is lost is that a program run twice gives the same
# result twice. Whoever has looked for a bug in a training run knows what that is worth. Now the same, with owners.
# The programs come in random order again, but each owns a tile of queries and goes over the keys by itself.

# %%
results = set()
for _ in range(10):
    dq = np.zeros_like(q)
    for i in rng.permutation(16):  # programs in any order
        for keys in tiles:  # each walks over the keys from the left to the right
            dq[tiles[i]] += contribution(tiles[i], keys)
    results.add(dq.tobytes())
print(f"10 orders, different results: {len(results)}")

# %% [markdown]
# The order of programs is still left to chance, but the order of additions is not. (The interpreter runs one
# program after the other, always in the same order, so there even atomics would look reproducible. The check of
# the exercise turns the order round.) On a GPU the same can be seen directly:

# %%
if DEVICE == "cuda":
    q, k, v, do = (torch.randn(2, 8, 2000, 64, device="cuda", dtype=torch.float16, requires_grad=True) for _ in range(4))
    o = flash(q, k, v)
    first = torch.autograd.grad(o, (q, k, v), do, retain_graph=True)
    again = [torch.autograd.grad(o, (q, k, v), do, retain_graph=True) for _ in range(20)]
    print("the same bits in 20 runs:", all(torch.equal(a, b) for run in again for a, b in zip(first, run)))
else:
    print("This needs a GPU.")

# %% [markdown]
# ## A function that knows its own derivative
#
# Autograd would differentiate operation by operation, and it cannot look into a kernel. `torch.autograd.Function`
# is the place to tell it: `forward` computes and says what to keep, `backward` receives $dO$ and returns one
# gradient for each argument of `forward`. This is the one behind `flash_attention`:

# %%
# include: flashedu.kernels.attention:FlashAttention

# %% [markdown]
# `passes` holds two functions, forward and backward: the Triton kernels, or the NumPy reference. The line with
# `save_for_backward` is the whole list that you saw on the first screen. There is also `dlse`, since lse is an
# output that somebody may differentiate, too. The backward pass has no derivative of its own: whoever asks for
# second derivatives is told so, and is not given wrong ones. (`set_materialize_grads(False)` says that an output
# which nobody used comes with None, and `resolve_neg` carries out a change of sign that torch may only have noted:
# a kernel reads memory as it is.)
#
# Torch's `gradcheck` holds such a function against finite differences, at one $h$ near the tip of the V, and raises
# an error if they disagree. It wants float64, so it judges the logic, on the NumPy reference.

# %%
inputs = [torch.randn(1, heads_, 5, 4, dtype=torch.float64, requires_grad=True) for heads_ in (4, 2, 2)]
for causal in (False, True):
    def both_outputs(q, k, v, causal=causal):
        return flash_attention(q, k, v, causal=causal, return_lse=True, backend="reference")

    print(f"causal={causal}:", torch.autograd.gradcheck(both_outputs, inputs))

# %% [markdown]
# ## A model that does not notice
#
# The claim of the whole course is that flash attention is exact. Then a model trained with it should go the same
# way as with naive attention, step by step. Let us train one. The text is one that every Python has, a part of its
# own standard library, character by character.

# %%
folder = Path(sysconfig.get_paths()["stdlib"])
names = ("argparse", "csv", "dataclasses", "difflib", "fractions", "heapq", "pathlib", "random", "statistics", "textwrap")
paths = [path for path in (folder / f"{name}.py" for name in names) if path.is_file()]
if not paths:
    print(f"No sources in {folder}; taking NumPy's instead.")
    paths = sorted(Path(np.__file__).parent.glob("lib/*.py"))
text = "".join(path.read_text(encoding="utf-8") for path in paths)
letters = sorted(set(text))
data = torch.tensor([letters.index(c) for c in text], device=device)
print(f"{len(paths)} files, {len(text):,} characters, {len(letters)} different ones")

# %% [markdown]
# The model is a transformer like any other, only small. Attention is an argument of `forward`, so that nothing
# but attention changes between two runs.

# %%
class SelfAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, attention):
        qkv = self.qkv(x).view(*x.shape[:2], 3, self.heads, -1)  # (B, N, 3, H, D)
        o = attention(*qkv.permute(2, 0, 3, 1, 4))  # (B, H, N, D)
        return self.projection(o.transpose(1, 2).flatten(2))  # (B, N, H D)


# %%
class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm_1, self.attention = nn.LayerNorm(width), SelfAttention(width, heads)
        self.norm_2, self.network = nn.LayerNorm(width), nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x, attention):
        x = x + self.attention(self.norm_1(x), attention)
        return x + self.network(self.norm_2(x))


# %%
class Transformer(nn.Module):
    def __init__(self, context, width=64, heads=4, layers=2):
        super().__init__()
        self.letter, self.position = nn.Embedding(len(letters), width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.guess = nn.LayerNorm(width), nn.Linear(width, len(letters))

    def forward(self, x, attention):
        x = self.letter(x) + self.position.weight  # (B, N, width)
        for block in self.blocks:
            x = block(x, attention)
        return self.guess(self.norm(x))  # (B, N, letters)


# %%
def next_letter_loss(model, attention, context, batch):
    """The loss of guessing each letter of some stretches of the text from those before it."""
    stretches = torch.stack([data[i : i + context + 1] for i in torch.randint(len(data) - context, (batch,))])
    return F.cross_entropy(model(stretches[:, :-1], attention).flatten(0, 1), stretches[:, 1:].flatten())


# %%
def train(attention, steps=120, context=512, batch=1):
    """The losses of a training and the model after it; the same seeds, so the same start and the same batches."""
    torch.manual_seed(0)
    model, losses = Transformer(context).to(device), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(steps):
        loss = next_letter_loss(model, attention, context, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses), model


# %% [markdown]
# With what shall a difference between naive and flash be compared? With the difference between naive and naive. The
# function below is naive attention with the keys in reverse order. It is the same sum, added up from the other end,
# and nobody would call it an approximation.

# %%
def backwards(q, k, v):
    k, v = k.flip(2), v.flip(2)
    s = q @ k.mT * q.shape[-1] ** -0.5
    hidden = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1).flip(1)
    return s.masked_fill(hidden, -math.inf).softmax(-1) @ v


# %% [markdown]
# The cell trains three times, which takes some twenty seconds on a laptop. How far apart will the losses be after 120
# steps, each of which builds on the rounding errors of all steps before it?

# %%
trained = {name: train(f) for name, f in (("naive", naive), ("flash", flash), ("naive, keys in reverse", backwards))}

# %%
losses = {name: loss for name, (loss, _) in trained.items()}
differences = {f"{name} - naive": loss - losses["naive"] for name, loss in losses.items() if name != "naive"}
gradients.training(losses, differences)

# %%
counts = np.unique(list(text), return_counts=True)[1] / len(text)
print(f"loss of uniform guesses {math.log(len(letters)):.2f}, of guesses by frequency {-(counts * np.log(counts)).sum():.2f}, "
      f"of the last 20 steps {losses['naive'][-20:].mean():.2f}")
print(f"neighbouring float32 numbers near the loss are {np.spacing(np.float32(losses['naive'][-1])):.1e} apart")
for name in ("flash", "naive, keys in reverse"):
    print(f"{name:24} loss the same to the bit in {np.mean(losses[name] == losses['naive']):4.0%} of the steps")

# %% [markdown]
# The model has learned something: it predicts better than the frequencies of the characters would. And the three
# losses are one curve. What lies between them is at most a few steps of the grid of float32 numbers, which is why
# the marks on the right lie on lines. It is not always zero, because the additions inside attention came in another
# order, and every step starts from weights that differ by the steps before. But it is of the same size whether
# naive is replaced by flash or by naive with its keys turned round. In this sense, and in no stronger one, the
# model does not notice. (Do not expect the curves to stay together forever. Training can amplify small differences,
# and two long runs with different roundings may part, two of naive attention as well.)
#
# The weights have a surprise in store. Look at how far apart they are after the last step, the biases of the keys
# by themselves and all others.

# %%
def apart(model, other):
    """The largest difference among the biases of keys, and among all other weights."""
    keys, rest = [], []
    for (name, a), b in zip(model.named_parameters(), other.parameters()):
        difference = (a - b).abs().detach()
        if name.endswith("qkv.bias"):
            of_q, of_k, of_v = difference.chunk(3)
            keys.append(of_k.max().item())
            difference = torch.cat((of_q, of_v))
        rest.append(difference.max().item())
    return max(keys), max(rest)


# %%
for name in ("flash", "naive, keys in reverse"):
    keys, rest = apart(trained[name][1], trained["naive"][1])
    print(f"{name:24} against naive: biases of keys {keys:.1e}, all others {rest:.1e}")

# %% [markdown]
# The biases of the keys are far apart, and it does no harm. A bias $b$ of all keys adds the same number
# $\tau\, q \cdot b$ to all scores of a row, and you saw that this changes nothing: the sum of a row's dS is zero.
# So the gradient of that bias is zero, and what the backward pass computes for it is rounding and nothing else, in
# whatever order. The optimizer divides each gradient by its usual size and so turns this noise into steps like any
# others. It happens with every kind of attention.
#
# ## A fraction of the memory
#
# What differs is the memory. Count once more what autograd keeps for one step of the model, for contexts from 128
# to 2,048 characters. The third curve is the model with attention taken out (it hands on the values), to show what
# the rest of the model keeps. Predict the slopes: by what factor does each grow when the context doubles?

# %%
def step_bytes(attention, context):
    """Bytes kept between forward and backward for one sequence, without the weights."""
    model = Transformer(context).to(device)
    _, kept = forward_and_kept(lambda x: model(x, attention), data[:context].clone()[None])
    weights = {w.untyped_storage().data_ptr() for w in model.parameters()}
    return sum(n for address, (_, n) in kept.items() if address not in weights)


# %%
contexts = [128, 256, 512, 1024, 2048]
versions = {"naive": naive, "flash": flash, "attention taken out": lambda q, k, v: v.clone()}
sizes = {name: [step_bytes(f, n) for n in contexts] for name, f in versions.items()}
gradients.kept(contexts, sizes)

# %%
rows = [(f"{n:,}", size(a), size(b), f"{b / a:.0%}", size(a - c), size(b - c))
        for n, a, b, c in zip(contexts, sizes["naive"], sizes["flash"], sizes["attention taken out"])]
table(["context", "naive", "flash", "flash / naive", "attention alone: naive", "flash"], rows)

# %% [markdown]
# Naive attention's curve bends towards a factor of four for each doubling. The other two double: what flash
# attention keeps is of the kind that every layer of the model keeps, a few arrays of $N$ rows. On a GPU the same
# shows in the peak of the memory that was in use, forward and backward together:

# %%
if DEVICE == "cuda":
    for name in ("naive", "flash"):
        torch.cuda.reset_peak_memory_stats()
        train(versions[name], steps=3, context=4096)
        print(f"{name}: {size(torch.cuda.max_memory_allocated())} at the peak")
else:
    print("This needs a GPU.")

# %% [markdown]
# ## What you can now explain
#
# Where each of the five lines of attention's gradient comes from, and why a score's gradient is the difference
# from an average. Why that average is the row sum of $dO \circ O$. Why finite differences make a V, and a wrong
# formula does not. How P comes back from lse without a maximum, and in any order. Why recomputing it can be faster
# than keeping it. Why a checkpoint around flash attention only adds work. Why there are two kernels and seven
# products, and what atomics would save and cost. In what sense two trainings are the same.
#
# ## Now you
#
# Open [exercises/05_recompute](../exercises/05_recompute.ipynb). You write `attention_backward`, `tiled_backward`
# and, in Triton, `flash_backward`.
#
# ## Where to read more
#
# - Dao, Fu, Ermon, Rudra, Ré, *FlashAttention*, 2022 (arXiv 2205.14135): appendix B.2 derives the gradients,
#   B.4 has the algorithm.
# - Dao, *FlashAttention-2*, 2023 (arXiv 2307.08691): section 3.1.2 with algorithm 2, and section 3.2 on atomic
#   additions to dQ.
# - Chen, Xu, Zhang, Guestrin, *Training Deep Nets with Sublinear Memory Cost*, 2016 (arXiv 1604.06174).
