# %% [markdown]
# # Exercises 2. Softmax without seeing the row
#
# Three functions: one step of the running maximum and sum, the merge of two states, and attention that sees
# its keys block by block. Chapter 2 has the idea; here are the details that decide whether it works.
#
# Write each function, run its cell, then run the `check` cell below it. A check tells you what went wrong on
# the smallest case that shows it, and which known mistake your answer resembles. Hints come in three levels,
# from a question to nearly the code: `hint("merge_states", 1)`, then 2, then 3.

# %%
import numpy as np

from flashedu import check, demos, hint, progress

# %% [markdown]
# ## 1. One step: `update_normalizer`
#
# For each of `R` queries you hold the maximum `m` and the sum `l` of everything seen so far. A block of `B`
# new scores arrives for every query. Return the new maximum and the new sum. The old scores are gone; only
# `m` and `l` can tell you about them.
#
# What you are likely to stumble on: each row has its own maximum, so mind which axis you reduce and how a
# result of shape `(R,)` meets an array of shape `(R, B)`. And some rows may have seen nothing yet,
# `m = -inf`, while their new block is masked entirely: then the result must still be `(-inf, 0)`, and no NaN
# may appear on the way. Another row of the same call may be perfectly ordinary, so an `if` on the whole array
# will not do.
#
# An example that you can verify by hand. The first row has seen one score, 0, and now gets 0 and 0: three
# equal scores, so the sum is 3. The second has seen nothing and gets 7 and a masked key: the maximum is 7 and
# the sum $e^0 = 1$. The third has seen nothing and gets nothing. When your function is written, compare
# `update_normalizer(m, l, scores)` with `expected` before you run the check.

# %%
m = np.array([0.0, -np.inf, -np.inf])
l = np.array([1.0, 0.0, 0.0])
scores = np.array([[0.0, 0.0], [7.0, -np.inf], [-np.inf, -np.inf]])
expected = np.array([0.0, 7.0, -np.inf]), np.array([3.0, 1.0, 0.0])

# %%
# exercise: flashedu.reference.online:update_normalizer

# %%
check(update_normalizer).score

# %% [markdown]
# ## 2. Two states become one: `merge_states`
#
# A state `(m, l, o)` describes a set of keys: the maximum of their scores, the sum of `exp(score - m)`, and
# the sum of `exp(score - m) * v`, not divided by anything. Given the states of two disjoint sets, return the
# state of their union.
#
# Neither argument is the old one: both may have to be scaled. A row of either may be empty, `(-inf, 0, 0)`, or
# of both; then it must change nothing, and the rows beside it may be ordinary ones. `m` and `l` have shape
# `(R,)` and `o` has `(R, Dv)`.
#
# The example has one query. The first state is one key with score 0 and value 4, the second one key with
# score $\ln 3$ and value 8. Relative to the larger score the first key weighs $1/3$. So the sum is $4/3$ and
# the output $4/3 + 8 = 28/3$; divided, it is 7, which is the weighted mean of 4 and 8 with weights 1 and 3.

# %%
a = np.array([0.0]), np.array([1.0]), np.array([[4.0]])
b = np.array([np.log(3)]), np.array([1.0]), np.array([[8.0]])
expected = np.array([np.log(3)]), np.array([4 / 3]), np.array([[28 / 3]])

# %%
# exercise: flashedu.reference.online:merge_states

# %%
check(merge_states).score

# %% [markdown]
# ## 3. Attention, block by block: `online_attention`
#
# Now the whole of it for one head: queries `(Nq, D)`, keys `(Nk, D)`, values `(Nk, Dv)`. Walk over the keys
# in blocks of `block_size`, keep one state for every query, divide once at the end.
#
# The scale is $1/\sqrt{D}$ with `D` from the queries; `Dv` may differ. The last block may be shorter than the
# others, and one block may hold more than all the keys. The result has the dtype of the inputs, and float64
# inputs are to be computed in float64 (a state that you allocate without saying a dtype is float64, whatever
# `q` is). The functions that you wrote above may help, but do not have to.
#
# The check measures memory, too: an array of shape `(Nq, Nk)` is seen and refused, even if the numbers are
# right. And among its inputs are scores that would overflow `exp` if it were applied without the maximum, and
# rows whose maximum rises in every block.
#
# In the example every key is zero, so all scores are 0 and the output is the plain mean of the values,
# whatever the block size.

# %%
q, k, v = np.ones((1, 2)), np.zeros((3, 2)), np.array([[1.0], [2.0], [6.0]])
expected = np.array([[3.0]])  # for block_size 1, 2, 3 and 100

# %%
# exercise: flashedu.reference.online:online_attention

# %%
check(online_attention).score

# %% [markdown]
# Then look at it from outside. The next cell runs your function whenever you move a slider, and shows its error,
# the memory that it held, and the bytes that a kernel would move which works in such blocks. Before you run it:
# as the block grows from a few keys to all of them, what becomes of the error, and what of the memory?

# %%
demos.your_kernel(online_attention)

# %% [markdown]
# If the function is right, the error stays where it is, near that of naive attention: it is rounding, and however
# the keys are cut, rounding does not add up to much. The memory grows with the block, because you hold a score for
# every query and every key of the block. With one block for all keys you are back at naive attention. The bytes do
# not change, since each key is read once. But look at the last line: a state for *every* query at once soon needs
# more SRAM than a GPU has. That is what chapter 3 is about.
#
# If you are stuck: `hint("online_attention", 1)`.

# %%
hint("online_attention", 1)

# %% [markdown]
# ## Where you are

# %%
progress()
