# %% [markdown]
# # FlashAttention in ten pictures
#
# Move any slider: the arrow keys move it, <kbd>Tab</kbd> twice reaches the next one. (In JupyterLab, run all cells first.)

# %% jupyter={"source_hidden": true}
import os

# Small products: one core is fastest, and the browser needs the other. NumPy reads this when it is loaded.
os.environ.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", VECLIB_MAXIMUM_THREADS="1")

# %% jupyter={"source_hidden": true}
from IPython.display import HTML

from flashedu import demos

# as large as a screen with controls, picture and caption on it allows, with letters for the last row
HTML("""<style>
:root { --flashedu-width: max(860px, min(96vw, 120vh)); }
.jp-RenderedMarkdown p { font-size: calc(var(--flashedu-width) / 48); margin: 0; }
.jp-RenderedMarkdown h2 { font-size: calc(var(--flashedu-width) / 38); margin: 0; }
</style>""")

# %% [markdown]
# ## 1. A softmax that has not seen its row
#
# The maximum may still rise. How can the sum be right already?

# %%
demos.online_softmax()

# %% [markdown]
# ## 2. The square that never exists
#
# Which tiles fit into SRAM, and how many bytes do they cost?

# %%
demos.tiling()

# %% [markdown]
# ## 3. Which loop is the outer one?
#
# The same tiles in another order give the same output. Do they move the same bytes?

# %%
demos.loop_order()

# %% [markdown]
# ## 4. Half of the scores are masked
#
# Is half of the work saved?

# %%
demos.causal_tiles()

# %% [markdown]
# ## 5. Arithmetic or bytes?
#
# Which of the two does attention wait for?

# %%
demos.roofline()

# %% [markdown]
# ## 6. What backward has to keep
#
# At which length does training no longer fit?

# %%
demos.memory()

# %% [markdown]
# ## 7. Two kinds of work at once
#
# What can the tensor cores do while the exponentials are computed?

# %%
demos.overlap()

# %% [markdown]
# ## 8. What a new token has to read
#
# A model has written 131,072 tokens. What does the next one cost, and can a better kernel change it?

# %%
demos.kv_cache()

# %% [markdown]
# ## 9. One token, a whole GPU
#
# Into how many parts should the keys be cut? Is one more always better?

# %%
demos.splits()

# %% [markdown]
# ## 10. Your own function
#
# It is exact at one block size. Is it at every other?

# %%
demos.your_kernel()
