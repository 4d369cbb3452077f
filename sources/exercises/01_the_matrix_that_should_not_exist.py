# %% [markdown]
# # Exercises 1. The matrix that should not exist
#
# Three functions. Run the first cell. Write each body where it says `your code here`, run the cell, then run the
# check below it. A check that fails tells you the smallest input on which it failed, what you returned there and
# what is right; if your answer behaves like a mistake that others have made, it says which. The number below its
# card is the score: the share of its checks that passed, 1.0 when all did. If you are stuck,
# `hint("stable_softmax", 1)` nudges, 2 explains, 3 nearly tells. Chapter 1 has the ideas. What a docstring says after
# "In the package" you need not write.

# %%
import numpy as np

from flashedu import check, hint, progress

# %% [markdown]
# ## 1. `stable_softmax`
#
# Softmax over the last axis, for an array with any number of axes. The docstring says what goes in and out.
#
# Two rows in which every score is the same, and one in which the second key is hidden. Their weights are known
# without a calculation: 1/2 and 1/2, again 1/2 and 1/2, and 1 and 0. When your function is written, compare
# `stable_softmax(x)` with `expected` before you run the check.
#
# What an experienced person stumbles on here is seldom the formula. *Which* maximum: a large score in one row must
# not disturb the other rows. A row that is nothing but $-\infty$ is legal, and its answer is zeros, not NaN; try what
# $-\infty - (-\infty)$ is before you decide where to guard. And the result has the dtype that came in: a stray
# float64 constant can change it.

# %%
x = np.array([[0.0, 0.0], [1000.0, 1000.0], [5.0, -np.inf]])
expected = np.array([[0.5, 0.5], [0.5, 0.5], [1.0, 0.0]])

# %%
# exercise: flashedu.reference.softmax:stable_softmax

# %%
check(stable_softmax).score

# %% [markdown]
# ## 2. `naive_attention`
#
# The whole of attention for one head, as a textbook has it: scores, softmax, average of the values. $S$ and $P$ may
# exist here, and this is the last time. You may call your `stable_softmax`. In later chapters this function is what
# everything else is compared with, so it is worth getting right.
#
# In the example all keys are equal, so all scores of a row are equal, and the output is the plain mean of the
# values, 3.
#
# Two things to think about. The number of queries and the number of keys may differ (a model that generates text has
# one query and thousands of keys), and then "causal" needs a definition: here the *last* query sees every key, so
# query $i$ sees key $j$ when $j \le i + N_k - N_q$. Draw a 2 by 4 and a 4 by 2 square before you write the mask. In
# one of them some rows see nothing. And $D$ in the scale is the number of columns of $Q$, not of $V$.

# %%
q, k, v = np.ones((1, 4)), np.ones((3, 4)), np.array([[1.0], [2.0], [6.0]])
expected = np.array([[3.0]])

# %%
# exercise: flashedu.reference.attention:naive_attention

# %%
check(naive_attention).score

# %% [markdown]
# If you are stuck, a hint. The first is a nudge; ask for 2 or 3 if it does not help.

# %%
hint("naive_attention", 1)

# %% [markdown]
# ## 3. `naive_traffic`
#
# The bytes that naive attention moves through HBM, from the shapes alone, as a pair: first what any implementation
# must move at least once (the inputs and the output), then what moves only because $S$ and $P$ are stored. `heads`
# counts query heads. With grouped queries, several query heads share one head of keys and values, and there are only
# `kv_heads` of those.
#
# The example is small enough to count by hand: 2 tokens, 1 column, 1 head, 1 byte. Q, K, V and O are 2 elements each,
# 8 bytes in all. $S$ and $P$ are 4 elements each; how often does each cross? The answer is `(8, 16)`.
#
# Ask of each array: how many heads of it are there, and how many times does it cross? The two traps are the two
# questions.

# %%
expected = (8, 16)  # naive_traffic(n=2, head_dim=1, heads=1, kv_heads=1, itemsize=1)

# %%
# exercise: flashedu.cost:naive_traffic

# %%
check(naive_traffic).score

# %% [markdown]
# With it, the numbers of chapter 1 for any model are one call away. One layer of Llama-3-8B with 8192 tokens in
# bfloat16 is `naive_traffic(n=8192, head_dim=128, heads=32, kv_heads=8, itemsize=2)`. Try other models and lengths.

# %% [markdown]
# ## Where you are

# %%
progress()
