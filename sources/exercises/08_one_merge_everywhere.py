# %% [markdown]
# # Exercises 8. One merge, everywhere
#
# One function, and you have written its heart already: chapter 2's `merge_states`. There it joined blocks that one
# program had seen one after the other. Here the parts know nothing of each other.

# %%
import functools

import numpy as np

from flashedu import check, hint, progress
from flashedu.reference import merge_states

# %% [markdown]
# ## `split_kv_attention`
#
# Attention for one head, with the keys cut into `splits` runs of nearly equal length. Each run is worked on by itself,
# as if on another GPU, and gives a state `(m, l, o)`; then the states are merged, and the division comes at the end.
#
# In the example both keys have the same score, so the output is the mean of the two values, and the lse is
# $0 + \ln 2$, however you cut.
#
# Three things to think about. The lengths need not divide: no key may be lost, and none seen twice. There may be more
# parts than keys, and an empty part has a state as well. Which one, and does your code make it without a NaN? And what
# is it that must not be averaged?

# %%
q, k, v = np.zeros((1, 2)), np.ones((2, 2)), np.array([[1.0], [3.0]])
expected = np.array([[2.0]]), np.array([np.log(2)])

# %%
# exercise: flashedu.reference.decode:split_kv_attention

# %%
check(split_kv_attention).score

# %% [markdown]
# A hint, if you need one.

# %%
hint("split_kv_attention", 1)

# %% [markdown]
# ## Where you are

# %%
progress()
