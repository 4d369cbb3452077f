# %% [markdown]
# # Exercises 4. A real kernel in Triton
#
# Two kernels and their launchers: a softmax, and the forward pass of flash attention. Triton exists for
# Linux. With a GPU your kernels run there, without one in the interpreter, where a check takes some seconds.
# A check calls the launcher, which has to start a kernel of yours.

# %%
import flashedu.kernels  # before Triton: without a GPU this switches Triton's interpreter on

DEVICE = flashedu.kernels.DEVICE

# %%
import math

import torch
import triton
import triton.language as tl

from flashedu import check, hint, progress
from flashedu.kernels.memory import load_tile, store_tile

# %% [markdown]
# ## 1. A row a program: `triton_softmax`
#
# The kernel gets pointers to `x` and `y`, the number `n` of columns and the four strides. It computes the row
# `tl.program_id(0)`, all of it in one tile of `BLOCK_N` elements, a power of two and at least `n`. So:
# addresses, a mask, a load, the softmax, a store.
#
# Where the mask is false, `tl.load` gives `other`. Choose it such that neither the maximum nor the sum
# notices. Compute in float32, `.to(tl.float32)`, and store in the type of `y`, which is
# `y_ptr.dtype.element_ty`. Rows may hold $-\infty$. A row that holds nothing else gives zeros: see to it that
# neither $-\infty - (-\infty)$ nor $0/0$ is computed. And since `row * stride` may exceed $2^{31}$, make the
# row's number int64.
#
# The launcher allocates `y`, with strides of its own, which need not be those of `x`. The grid is a tuple,
# here with one number. What is passed by name as `BLOCK_N=...` becomes a constant of the kernel;
# `num_warps=...` may be added, and says how many threads share a program (32 for each warp; 4 warps unless
# you say otherwise).
#
# A first test is below. When your functions are written, look at `triton_softmax(x)`.

# %%
x = torch.tensor([[0.0, math.log(2.0), math.log(5.0)], [1.0, -math.inf, 1.0]], device=DEVICE)
expected = torch.tensor([[0.125, 0.25, 0.625], [0.5, 0.0, 0.5]])  # triton_softmax(x), to within rounding


# %%
# exercise: flashedu.kernels.softmax:softmax_kernel


# exercise: flashedu.kernels.softmax:triton_softmax

# %%
check(triton_softmax).score

# %% [markdown]
# If the check says that a program wrote past the end of a tensor, or that a result is NaN where it should not
# be, then think of guard bands: the check puts your tensors between elements that are NaN, and looks
# afterwards whether they still are.
#
# ## 2. A tile of queries a program: `flash_forward`
#
# The chapter's kernel has two loops, so that most tiles are computed without a mask. Begin with one loop in
# which every tile is masked. It is shorter, just as exact, and all that it costs is time. Tiles of 32 queries
# and 32 keys will do for everything here, with head dimensions up to 128, and fit into any GPU.
#
# A plan for the kernel:
#
# 1. Which head of which batch entry is this, and which tile of queries? One way is a grid of
#    `(batch * heads, number of tiles)` with `tl.program_id(0)` and `tl.program_id(1)`. Move the four pointers
#    to the head, with numbers that are int64. Query head `h` reads key head `h // group`.
# 2. Load the tile of q. `load_tile` and `store_tile` are those of the chapter. `load_tile(q_ptr, i0, n_q, stride_qn,
#    stride_qd, D, BLOCK_Q, BLOCK_D, True)` gives rows `i0` to `i0 + BLOCK_Q`, with zeros past the end;
#    `store_tile` takes the tile after the strides, and no last argument.
# 3. The state: `m` at $-\infty$, `l` and `acc` at 0, in float32.
# 4. Walk over the keys. The scores are `tl.dot(q, tl.trans(k), input_precision="ieee")`, in base 2 once they
#    are multiplied by `scale_log2`. Keys past `n_k` and keys that the causal mask hides get $-\infty$. Then the
#    update of chapter 2, with `exp2` and with its guard: a row may not have seen any key yet.
# 5. Store `acc / l` and lse, which is a *natural* logarithm; `LN2` in the cell below is $\ln 2$. A row that sees no
#    key has output 0 and lse $-\infty$.
#
# The launcher passes on $\log_2 e / \sqrt D$ as `scale_log2`, and as `BLOCK_D` the width of a tile: D, rounded up to a
# power of two that is at least 16.
#
# With `causal=True` query `i` sees key `j` when `j <= i + Nk - Nq`, and the walk should end where no row of
# the tile sees any further key.
#
# In the example all scores are 0, as they were in chapter 3, so that a causal row is the mean of the values
# that it sees: nothing, one value, two.

# %%
q, k = torch.ones(1, 1, 3, 2, device=DEVICE), torch.zeros(1, 1, 2, 2, device=DEVICE)
v = torch.tensor([[4.0, -4.0], [8.0, 0.0]], device=DEVICE)[None, None]
expected_o = torch.tensor([[0.0, 0.0], [4.0, -4.0], [6.0, -2.0]])  # flash_forward(q, k, v, causal=True)
expected_lse = torch.tensor([-math.inf, 0.0, math.log(2.0)])

# %%
LN2 = tl.constexpr(math.log(2))


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, n_q, n_k, heads, group, scale_log2,
    stride_qb, stride_qh, stride_qn: tl.constexpr, stride_qd: tl.constexpr,
    stride_kb, stride_kh, stride_kn: tl.constexpr, stride_kd: tl.constexpr,
    stride_vb, stride_vh, stride_vn: tl.constexpr, stride_vd: tl.constexpr,
    stride_ob, stride_oh, stride_on: tl.constexpr, stride_od: tl.constexpr,
    CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):
    ### BEGIN SOLUTION
    head, i0 = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK_Q
    b, h = head // heads, head % heads
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h // group * stride_kh
    v_ptr += b * stride_vb + h // group * stride_vh
    o_ptr += b * stride_ob + h * stride_oh
    rows, offset = i0 + tl.arange(0, BLOCK_Q), n_k - n_q

    q = load_tile(q_ptr, i0, n_q, stride_qn, stride_qd, D, BLOCK_Q, BLOCK_D, True)
    m = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    stop = n_k
    if CAUSAL:
        stop = tl.minimum(n_k, i0 + BLOCK_Q + offset)  # what the last row sees
    for j in range(0, stop, BLOCK_K):
        k = load_tile(k_ptr, j, n_k, stride_kn, stride_kd, D, BLOCK_K, BLOCK_D, True)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2  # (BLOCK_Q, BLOCK_K)
        keys = j + tl.arange(0, BLOCK_K)
        visible = (keys < n_k)[None, :]
        if CAUSAL:
            visible = visible & (keys[None, :] <= rows[:, None] + offset)
        s = tl.where(visible, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, axis=1))
        safe = tl.where(m_new == float("-inf"), 0.0, m_new)  # rows that have seen no key yet
        alpha = tl.exp2(m - safe)
        p = tl.exp2(s - safe[:, None])
        l = l * alpha + tl.sum(p, axis=1)
        v = load_tile(v_ptr, j, n_k, stride_vn, stride_vd, D, BLOCK_K, BLOCK_D, True)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
        m = m_new

    l_safe = tl.where(l == 0.0, 1.0, l)  # a row that sees no key: o = 0 / 1, lse = -inf + log(1)
    store_tile(o_ptr, i0, n_q, stride_on, stride_od, acc / l_safe[:, None], D, BLOCK_Q, BLOCK_D)
    tl.store(lse_ptr + head * n_q + rows, (m + tl.log2(l_safe)) * LN2, mask=rows < n_q)
    ### END SOLUTION


def flash_forward(q, k, v, causal=False):
    """Attention without the matrix of scores.

    Takes q (B, H, Nq, D), k and v (B, Hkv, Nk, D), H a multiple of Hkv, D <= 128, any strides, float32,
    float16 or bfloat16. Returns o (B, H, Nq, D) of the same dtype and lse (B, H, Nq) in float32.
    """
    ### BEGIN SOLUTION
    batch, heads, n_q, d = q.shape
    kv_heads, n_k = k.shape[1:3]
    o = torch.empty((batch, heads, n_q, d), dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, heads, n_q), dtype=torch.float32, device=q.device)
    attention_kernel[batch * heads, triton.cdiv(n_q, 32)](
        q, k, v, o, lse, n_q, n_k, heads, heads // kv_heads, d**-0.5 * math.log2(math.e),
        *q.stride(), *k.stride(), *v.stride(), *o.stride(),
        CAUSAL=causal, D=d, BLOCK_D=max(16, triton.next_power_of_2(d)), BLOCK_Q=32, BLOCK_K=32,
    )
    return o, lse
    ### END SOLUTION

# %%
check(flash_forward).score

# %% [markdown]
# If you are stuck: `hint("flash_forward", 1)`.

# %%
hint("flash_forward", 1)

# %% [markdown]
# Passed? Then go on, if you like, to the chapter's version: one loop up to the first tile that needs a mask,
# without comparisons, and one for the rest. The check will say whether you missed a tile, and
# `flashedu.kernels.forward` is there to compare with. For speed you need a GPU.
#
# ## Where you are

# %%
progress()
