# %% [markdown]
# # Exercises 7. Where it does not help
#
# Three closed forms, each a few lines, that say beforehand what a better kernel cannot change. Write each body where it
# says `your code here`, run the cell, then run the check below it.

# %%
from flashedu import check, hint, progress
from flashedu.cost import attention_flops

# %% [markdown]
# ## 1. `attention_intensity`
#
# The most FLOP for each byte of HBM that any fused kernel can reach: q, k and v are read once, o is written once, and
# nothing else moves. `attention_flops(n_q, n_k, head_dim, heads)` counts the two products, a multiply-add as two.
# Queries and keys have lengths of their own, since in decoding one query meets a long cache.
#
# By hand, with 1 query, 4 keys, 2 columns, 2 query heads that share 1 key head, 1 byte an element: 64 FLOP over
# 4 + 16 + 4 bytes.
#
# Ask of each of the four arrays: how many rows has it, and how many heads?

# %%
expected = 64 / 24  # attention_intensity(1, 4, 2, 2, 1, 1)

# %%
# exercise: flashedu.cost:attention_intensity

# %%
check(attention_intensity).score

# %% [markdown]
# When it is exact, try it: one query at a cache of 131,072 keys, 32 query heads, 8 key heads, $D = 128$, 2 bytes.
# Then with 32 key heads. What did the grouped queries buy, and what would a longer cache buy?
#
# ## 2. `kv_cache_bytes`
#
# The bytes of the keys and values that a model keeps of `n` tokens, over all its layers. Every new token reads all of
# them once.
#
# By hand, 3 tokens, 2 layers, 1 key head, 4 columns, 2 bytes: 96 bytes.

# %%
expected = 96  # kv_cache_bytes(3, 2, 1, 4, 2)

# %%
# exercise: flashedu.cost:kv_cache_bytes

# %%
check(kv_cache_bytes).score

# %% [markdown]
# ## 3. `attention_flop_share`
#
# The share of one transformer block's forward FLOPs that the two products of attention take. The block has
# projections for q, k, v and the output, and a SwiGLU feed-forward part: three products of the hidden width with
# `ffn`. Norms, activations and softmax are left out, and so are masks.
#
# An extreme to try first: with one token, and again with a million, what must the share be close to?

# %%
# exercise: flashedu.cost:attention_flop_share

# %%
check(attention_flop_share).score

# %% [markdown]
# A hint, if you need one. The first is a nudge; ask for 2 or 3 if it does not help.

# %%
hint("attention_flop_share", 1)

# %% [markdown]
# ## Where you are

# %%
progress()
