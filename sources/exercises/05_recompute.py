# %% [markdown]
# # Exercises 5. Backward: recompute what you refused to store
#
# Three functions: the gradients from a stored P, the same by tiles from lse, and the same in Triton. Each has a
# small example, cells to fill in, and a check.

# %%
import flashedu.kernels  # isort: skip  first: without a GPU it switches Triton's interpreter on

import numpy as np
import torch

from flashedu import check, hint, progress
from flashedu.reference import stable_softmax

# %% [markdown]
# ## 1. With P in memory: `attention_backward`
#
# Chapter 5 derived five lines. Here they are for one head, as whole matrices. You are given q, k, v and dO, which
# is called `do`, and nothing from the forward pass, so begin with P. Return `dq`, `dk`, `dv`, in that order.
#
# Two places are easy to get wrong. The scale $1/\sqrt{D}$ stands in the scores, and so it comes back once in dq
# and once in dk. And with `causal=True` some rows may see no key at all, when there are more queries than keys.
# Their P must be 0, which `stable_softmax` gives you; then their gradients are 0 without a special case. `v` may
# have another number of columns than `q`.
#
# In the example all scores are 0, so that each of the two keys has $P = 1/2$. With `do` = 1 the average of $dP$ is
# the average of the values, 3, and the values are 2 and 4: dS is $\frac12 (2 - 3)$ and $\frac12 (4 - 3)$. The
# scale is 1, since $D = 1$.

# %%
q, k, v, do = np.array([[2.0]]), np.array([[0.0], [0.0]]), np.array([[2.0], [4.0]]), np.array([[1.0]])
expected_dq = np.array([[0.0]])
expected_dk = np.array([[-1.0], [1.0]])
expected_dv = np.array([[0.5], [0.5]])

# %%
# exercise: flashedu.reference.backward:attention_backward

# %%
check(attention_backward).score

# %% [markdown]
# ## 2. From lse, by tiles: `tiled_backward`
#
# Now without a stored P: you may not hold an array of shape `(Nq, Nk)`, and the check measures it. In return you
# get the output `o` and the `lse` of the forward pass. A tile of P is an exponential of scores and lse, and
# $\delta$ is a row sum of two small arrays.
#
# Everything in a tile, P as well as dS, can be computed from tiles of q, k, v and `do`, and from the lse and
# $\delta$ of its rows. One pass over the tiles would be enough here, where nobody computes at the same time as you;
# two passes, as on the GPU, are as good. As in the forward pass, tiles above the diagonal can be skipped, those
# that it crosses need the mask, and block sizes need not divide the lengths.
#
# The trap is a row that sees no key. Its lse is `-inf`, and `-inf - (-inf)` is NaN.
#
# The example is the same, with what its forward pass leaves.

# %%
o, lse = np.array([[3.0]]), np.array([np.log(2.0)])  # tiled_backward(q, k, v, o, lse, do, 1, 1) gives the gradients above

# %%
# exercise: flashedu.reference.backward:tiled_backward

# %%
check(tiled_backward).score

# %% [markdown]
# ## 3. In Triton: `flash_backward`
#
# The torch layout again: q, o and do are (B, H, Nq, D), k and v are (B, Hkv, Nk, D), and lse is (B, H, Nq) in
# float32. Query head `h` reads key head `h // (H // Hkv)`. Return `dq`, `dk`, `dv` in the shapes and the dtype of
# q, k and v, and sum in float32 inside.
#
# Write two kernels and a function that launches them, in the three cells below; their parameters are a
# suggestion, and only `flash_backward` itself is checked. In one kernel a program owns a tile of queries and walks
# over the keys, in the other it owns a tile of keys and walks over the queries. Begin with the first. It is your
# forward kernel of chapter 4 with another inside: it loads `do`, lse and delta for its rows, and needs neither a
# maximum nor a running sum. When it works, exchange the roles for the second.
#
# What an experienced person would watch:
#
# - `do` may have any strides. The gradient that comes from `o.sum()` is a single number whose strides are all 0.
#   Either use the strides in the kernels or call `.contiguous()` first.
# - delta may be computed outside the kernels, since it is a row sum. Products may not.
# - With grouped queries several query heads add to the dk and dv of one key head. If each had a program of its
#   own, they would write to the same place. The check runs your kernel twice, the second time with the programs in
#   the opposite order, and compares the bits.
# - Set P to 0 where it is hidden, *after* the exponential. That serves the mask, the rows and keys past the end,
#   and the rows that see no key.
# - Round P and dS to the inputs' type before a product, and multiply float32 with `input_precision="ieee"`.
# - D may be any number up to 256. `load_tile` and `store_tile` of chapter 4 take care of rows and columns past the
#   end. For a contiguous head they are `load_tile(q_ptr, i0, n_q, D, 1, D, BLOCK_Q, BLOCK_D, True)` and
#   `store_tile(dq_ptr, i0, n_q, D, 1, dq, D, BLOCK_Q, BLOCK_D)`, once the pointer has been moved to the head.
#
# The example for the third time: `flash_backward(*in_torch)` gives the same gradients.

# %%
in_torch = [torch.tensor(x, dtype=torch.float32, device=flashedu.kernels.DEVICE)[None, None] for x in (q, k, v, o, lse, do)]

# %%
import triton
import triton.language as tl

from flashedu.kernels.memory import load_tile, store_tile


# %%
@triton.jit
def dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, n_q, n_k, heads, kv_heads, scale,
    CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """dq of one tile of queries, summed over the keys; grid (tiles of queries, batch * heads)."""
    ### BEGIN SOLUTION
    head = tl.program_id(1).to(tl.int64)  # of all query heads of the batch
    kv_head = head // heads * kv_heads + head % heads // (heads // kv_heads)
    i0 = tl.program_id(0) * BLOCK_Q
    rows, offset = i0 + tl.arange(0, BLOCK_Q), n_k - n_q
    q = load_tile(q_ptr + head * n_q * D, i0, n_q, D, 1, D, BLOCK_Q, BLOCK_D, True)
    do = load_tile(do_ptr + head * n_q * D, i0, n_q, D, 1, D, BLOCK_Q, BLOCK_D, True)
    lse = tl.load(lse_ptr + head * n_q + rows, mask=rows < n_q, other=0.0)
    delta = tl.load(delta_ptr + head * n_q + rows, mask=rows < n_q, other=0.0)
    dq = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    stop = n_k
    if CAUSAL:
        stop = tl.minimum(n_k, i0 + BLOCK_Q + offset)  # what the last row sees
    for j in range(0, stop, BLOCK_K):
        keys = j + tl.arange(0, BLOCK_K)
        k = load_tile(k_ptr + kv_head * n_k * D, j, n_k, D, 1, D, BLOCK_K, BLOCK_D, True)
        v = load_tile(v_ptr + kv_head * n_k * D, j, n_k, D, 1, D, BLOCK_K, BLOCK_D, True)
        visible = (keys < n_k)[None, :]
        if CAUSAL:
            visible = visible & (keys[None, :] <= rows[:, None] + offset)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # (BLOCK_Q, BLOCK_K)
        p = tl.where(visible, tl.exp(s - lse[:, None]), 0.0)
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds = p * (dp - delta[:, None])
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")
    store_tile(dq_ptr + head * n_q * D, i0, n_q, D, 1, dq * scale, D, BLOCK_Q, BLOCK_D)
    ### END SOLUTION


# %%
@triton.jit
def dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, n_q, n_k, heads, kv_heads, scale,
    CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """dk and dv of one tile of keys, summed over all queries that read it; grid (tiles of keys, batch * kv_heads)."""
    ### BEGIN SOLUTION
    kv_head = tl.program_id(1).to(tl.int64)  # of all key heads of the batch
    group = heads // kv_heads
    j0 = tl.program_id(0) * BLOCK_K
    keys, offset = j0 + tl.arange(0, BLOCK_K), n_k - n_q
    k = load_tile(k_ptr + kv_head * n_k * D, j0, n_k, D, 1, D, BLOCK_K, BLOCK_D, True)
    v = load_tile(v_ptr + kv_head * n_k * D, j0, n_k, D, 1, D, BLOCK_K, BLOCK_D, True)
    dk = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    start = 0
    if CAUSAL:  # the first tile with a row that sees the first of these keys
        start = tl.maximum(0, j0 - offset) // BLOCK_Q * BLOCK_Q
    for g in range(group):  # the query heads of this key head are neighbours
        head = kv_head * group + g
        for i in range(start, n_q, BLOCK_Q):
            rows = i + tl.arange(0, BLOCK_Q)
            q = load_tile(q_ptr + head * n_q * D, i, n_q, D, 1, D, BLOCK_Q, BLOCK_D, True)
            do = load_tile(do_ptr + head * n_q * D, i, n_q, D, 1, D, BLOCK_Q, BLOCK_D, True)
            lse = tl.load(lse_ptr + head * n_q + rows, mask=rows < n_q, other=0.0)
            delta = tl.load(delta_ptr + head * n_q + rows, mask=rows < n_q, other=0.0)
            visible = (rows < n_q)[None, :]
            if CAUSAL:
                visible = visible & (keys[:, None] <= rows[None, :] + offset)
            s = tl.dot(k, tl.trans(q), input_precision="ieee") * scale  # transposed: (BLOCK_K, BLOCK_Q)
            p = tl.where(visible, tl.exp(s - lse[None, :]), 0.0)
            dv += tl.dot(p.to(do.dtype), do, input_precision="ieee")
            dp = tl.dot(v, tl.trans(do), input_precision="ieee")
            ds = p * (dp - delta[None, :])
            dk += tl.dot(ds.to(q.dtype), q, input_precision="ieee")
    store_tile(dk_ptr + kv_head * n_k * D, j0, n_k, D, 1, dk * scale, D, BLOCK_K, BLOCK_D)
    store_tile(dv_ptr + kv_head * n_k * D, j0, n_k, D, 1, dv, D, BLOCK_K, BLOCK_D)
    ### END SOLUTION


# %%
def flash_backward(q, k, v, o, lse, do, causal=False):
    """The gradients of sum(do * o) for q, o, do (B, H, Nq, D), k, v (B, Hkv, Nk, D), lse (B, H, Nq) float32.

    Returns dq like q, dk like k, dv like v. With causal=True query i sees key j when j <= i + Nk - Nq;
    a row that sees no key has dq = 0 and adds nothing to dk and dv.
    """
    ### BEGIN SOLUTION
    (batch, heads, n_q, d), (_, kv_heads, n_k, _) = q.shape, k.shape
    delta = (do.float() * o.float()).sum(-1)
    q, k, v, lse, do = (x.contiguous() for x in (q, k, v, lse, do))
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    numbers, block = (n_q, n_k, heads, kv_heads, d**-0.5), 32  # small tiles, for which most GPUs have room even when D is large
    options = dict(CAUSAL=causal, D=d, BLOCK_D=max(16, triton.next_power_of_2(d)), BLOCK_Q=block, BLOCK_K=block, num_stages=1)
    grid_q, grid_k = (triton.cdiv(n_q, block), batch * heads), (triton.cdiv(n_k, block), batch * kv_heads)
    dq_kernel[grid_q](q, k, v, do, lse, delta, dq, *numbers, **options)
    dkdv_kernel[grid_k](q, k, v, do, lse, delta, dk, dv, *numbers, **options)
    return dq, dk, dv
    ### END SOLUTION


# %%
check(flash_backward).score

# %% [markdown]
# Without a GPU the check runs your kernels in Triton's interpreter, which takes a few seconds; with one it
# also runs them there. If you are stuck: `hint("flash_backward", 1)`.

# %%
hint("flash_backward", 1)

# %% [markdown]
# ## Where you are

# %%
progress()
