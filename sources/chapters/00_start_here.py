# %% [markdown]
# # Start here
#
# Attention compares every token with every other. For $N$ tokens that is $N \times N$ scores, and the textbook
# computes them all, stores them, and goes on from there. With 4096 tokens it is 16 million scores for each head.
#
# The next cells run two functions on the same input. The first is the textbook's. The second is one that you will
# have written by the end of chapter 3; it never holds more than a small block of scores. It does more bookkeeping,
# more steps, and it is written in the same slow language. **Before you run it: how much memory will it save, how much
# slower will it be, and how different will its answer be?**

# %%
import os

# One core and its cache against one core and its cache. NumPy reads this when it is loaded.
os.environ.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", VECLIB_MAXIMUM_THREADS="1")

# %%
import ipywidgets as widgets
import numpy as np
from IPython.display import display

from flashedu import check, doctor
from flashedu.bench import measure
from flashedu.hardware import KIB, gpu
from flashedu.reference import naive_attention, stable_softmax, tiled_attention
from flashedu.results import load
from flashedu.viz.block_grid import block_grid, block_grid_svg
from flashedu.viz.curves import duration, naive_against_flash, size

# %%
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((4096, 64)).astype(np.float32) for _ in range(3))
textbook = measure(naive_attention, q, k, v)
tiled = measure(tiled_attention, q, k, v, 256, 256)
difference = np.abs(naive_attention(q, k, v) - tiled_attention(q, k, v, 256, 256)[0]).max()
print(f"textbook: {size(textbook.peak_bytes):>8}  {duration(textbook.seconds):>7}")
print(f"tiled:    {size(tiled.peak_bytes):>8}  {duration(tiled.seconds):>7}")
smaller = textbook.peak_bytes / tiled.peak_bytes
print(f"{smaller:.0f} times less memory; largest difference between the answers: {difference:.1e}")

# %% [markdown]
# Nearly a hundred times less memory, and the same answer up to the last digits that float32 has. And on the machine
# on which this page was made it even took less time, although it does more. On yours? (Times depend on the machine and
# on what else it is doing. The memory hardly does, and the answers agree to rounding anywhere.)
#
# The method is called FlashAttention. It is not an approximation: nothing is dropped, sampled or compressed. Two
# questions follow, and the course is about them. How can a softmax be computed without ever seeing a whole row of
# scores? And why can doing *more* take *less* time?
#
# ## What you will have built
#
# The course leads from the textbook's formula, in NumPy, to a *kernel* of your own, a program that runs on a GPU, and
# times the course's kernels beside the fastest that NVIDIA ships (in its library cuDNN). Chapters 1 to 3 end with the
# whole algorithm working in NumPy, its memory traffic counted to the byte. Chapter 4 makes a kernel of it, and chapter
# 5 adds the gradients. None of them needs a GPU: without one the kernels run in an interpreter, on the CPU and slowly.
#
# Where this leads is already measured. The picture shows one attention layer of Llama-3-8B on an H200, a GPU for data
# centres. Both methods compute the same function. "Flash" is the FlashAttention-2 that ships with torch.

# %%
result = load("h200_attention_traffic")
naive_against_flash(result)

# %%
for row in result["sweep"]:
    naive, flash = row["naive"], row["flash"]
    if row["n"] >= 8192 and "time_ms" in naive:
        faster, smaller = (naive[x] / flash[x] for x in ("time_ms", "peak_bytes"))
        print(f"N = {row['n']:6,}: {faster:.1f} times faster, {smaller:.0f} times less memory")
    elif "time_ms" not in naive:
        print(f"N = {row['n']:6,}: naive does not fit; flash holds {size(flash['peak_bytes'])}")

# %% [markdown]
# In time the two curves run side by side: flash is a few times faster, and both grow with the square of $N$, since
# both compute every score. In memory they part. Naive attention grows with the square there too, until the GPU is
# full; flash grows with $N$.
#
# ## How to use a notebook
#
# A notebook is a list of cells. Click into one and press Shift+Enter: it runs, and you move to the next. Run them in
# order, from the top. You can change any cell and run it again, and you should: the numbers in the course are there
# to be played with. If things get confused, *Kernel, Restart Kernel and Run All Cells* in the menu starts afresh.
#
# Chapters are for reading and experiments. They ask you to predict before you run a cell. Do write the guess down, at
# least in your head; an explanation sticks when it corrects a guess. Each chapter has an exercise notebook of the
# same number in `exercises/`, where you write the functions that the chapter was about, and one in `solutions/` with
# the answers.
#
# ### Is everything there?
#
# `doctor` looks at what is installed and says what works on this machine, what does not, and what to do about it. The
# chapters need no GPU; chapter 4 and the kernels of chapters 5, 6 and 8 need Triton, which exists for Linux.

# %%
doctor()

# %% [markdown]
# ## How a check answers
#
# In an exercise notebook you write a function and hand it to `check`. There are three kinds of answer that you should
# have met before they are about you. (There are two more: *error*, when a function raises an exception, and *skipped*,
# when the machine lacks what it takes.) The exercise here is the first of chapter 1, a softmax over the last axis of an
# array. First an answer that is right:

# %%
check(stable_softmax)

# %% [markdown]
# Now one that looks right. It is the formula as textbooks print it, and on the first example it does what it should:

# %%
def my_softmax(x):
    e = np.exp(x)
    return e / e.sum(axis=-1, keepdims=True)

my_softmax(np.array([1.0, 2.0, 3.0]))

# %%
check(my_softmax, exercise="stable_softmax")

# %% [markdown]
# The check tries inputs that are chosen to bite, finds one on which the function fails, makes it as small as it can,
# and shows what came out and what is right. It also runs a collection of known mistakes on the same inputs. If your
# function behaves like one of them, the check names it. (Here the function has another name than the exercise, so we
# said which exercise is meant. In the exercise notebooks you need not.)
#
# And last, a function that nobody has written yet. That is not called wrong:

# %%
def unwritten_softmax(x):
    raise NotImplementedError  # your code here

check(unwritten_softmax, exercise="stable_softmax")

# %% [markdown]
# How does a check decide that an answer is right, when a different order of additions gives slightly different
# digits? Not by a tolerance that somebody picked. For every input it computes how large an error rounding can be
# expected to cause there, element by element, and your answer must stay within that. So a right answer passes however
# you organised the work, and a mistake shows as soon as it costs more than rounding might, which is far below the
# 0.01 of many test suites. (Chapter 2 says how the limit is computed, and how much room it leaves.)
#
# ## Notation, once
#
# The symbols are the same in formulas, in code and in pictures, in all chapters.
#
# | formula | code | what it is |
# |:--|:--|:--|
# | $N$, $N_q$, $N_k$ | `n`, `n_q`, `n_k` | number of tokens; of queries and of keys where they differ |
# | $D$ | `head_dim`, `d` | columns of a query or key: the head dimension, typically 64 or 128 |
# | $Q$, $K$, $V$ | `q`, `k`, `v` | queries $(N_q, D)$, keys $(N_k, D)$, values $(N_k, D_v)$ of one head |
# | $H$, $H_{kv}$ | `heads`, `kv_heads` | heads of queries; of keys and values, where several query heads share one |
# | $\tau$ | `scale` | what scores are multiplied by, $1/\sqrt D$ |
# | $S = QK^\top/\sqrt D$ | `s` | scores, $(N_q, N_k)$ |
# | $P$ | `p` | probabilities: the softmax of each row of $S$ |
# | $O = PV$ | `o` | output, $(N_q, D_v)$; as part of a state $(m, l, o)$, not yet divided by $l$ (chapter 2) |
# | $m$ | `m` | the largest score of a row, so far |
# | $l$ | `l` | the sum of $e^{s-m}$ over a row, so far |
# | $m + \ln l$ | `lse` | log-sum-exp: the natural logarithm of the row's sum of $e^{s}$ |
# | $B_r$, $B_c$ | `block_q`, `block_k` | rows (queries) and columns (keys) of a block, also called a tile |
# | | `block_size` | the same where only the keys are cut |
# | | `causal` | query $i$ sees key $j$ when $j \le i + N_k - N_q$: the last query sees every key |
# | | HBM | the GPU's large memory, tens of gigabytes beside the chip |
# | | SRAM | the small fast memory inside each of the hundred or so processors of the chip (multiprocessors), about 200 KB |
#
# A query that sees no key has output 0 and `lse` $-\infty$.
#
# ## A slider
#
# Some cells have a slider. Run the cell below and move it with the mouse or the arrow keys. (In a notebook that you
# have not run, you see a still picture instead.) It shows a square of 1024 by 1024 scores cut into blocks. **At which
# block size does one block no longer fit into the SRAM of one multiprocessor of an H200?**

# %%
slider = widgets.IntSlider(128, min=32, max=512, step=16, description="block")
drawing = widgets.HTML()

def draw(change=None):
    drawing.value = block_grid_svg(1024, slider.value)

slider.observe(draw, "value")
draw()
demo, still = widgets.VBox([slider, drawing]), block_grid(1024, 128)
display({**still._repr_mimebundle_(), **demo._repr_mimebundle_()}, raw=True)

# %% [markdown]
# The scores are counted with 4 bytes here, because they are kept in float32 even where queries and keys have 16 bits.
# Did you find the answer?

# %%
sram = gpu("H200").block_shared_bytes
sizes = range(slider.min, slider.max + 1, slider.step)
largest = max(side for side in sizes if 4 * side**2 <= sram)
for side in (largest, largest + slider.step):
    print(f"{side} x {side}: {4 * side**2 / KIB:.0f} KiB of {sram / KIB:.0f} KiB")

# %% [markdown]
# The blocks of the slider are what this course works with. A block of scores is small enough to live beside the
# arithmetic, so it never has to travel. What stands in the way is that softmax wants the whole row. (Scores are not
# all that must fit there; chapter 3 does the accounts.)
#
# ## The map
#
# | chapter | you write |
# |:--|:--|
# | [1. The matrix that should not exist](01_the_matrix_that_should_not_exist.ipynb) | `stable_softmax`, `naive_attention`, `naive_traffic` |
# | [2. Softmax without seeing the row](02_softmax_without_the_row.ipynb) | `update_normalizer`, `merge_states`, `online_attention` |
# | [3. Now tile it](03_now_tile_it.ipynb) | `tiled_attention`, `block_sizes`, `tiled_on_machine` |
# | [4. A real kernel in Triton](04_a_real_kernel.ipynb) | `triton_softmax`, `flash_forward` |
# | [5. Backward: recompute what you refused to store](05_recompute.ipynb) | `attention_backward`, `tiled_backward`, `flash_backward` |
# | [6. Three papers, three different things](06_three_papers.ipynb) | `fa1_on_machine`, `lazy_attention`, `rotate` |
# | [7. Where it does not help](07_where_it_does_not_help.ipynb) | `attention_intensity`, `kv_cache_bytes`, `attention_flop_share` |
# | [8. One merge, everywhere](08_one_merge_everywhere.ipynb) | `split_kv_attention` |
#
# Chapter 1 asks where the time of attention goes, and finds two matrices that nobody asked for. Chapter 2 takes the
# obstacle out of the way: a softmax that can be repaired when a larger score turns up. In chapter 3 everything falls
# into place: what lives where, in blocks of which size, and how many bytes move. In chapter 4 it becomes a kernel, with
# all that a GPU asks for in addition, and in chapter 5 it learns to be trained through. Chapter 6 runs what each of the
# three papers changed, and reads a kernel for one generation of GPUs line by line. Chapter 7 asks what no kernel can do
# for a model, and chapter 8 cuts one attention over many programs and many devices. Each takes 30 minutes to an hour and
# a half to read, and its exercises half an hour to three hours.
#
# ## What you can now explain
#
# What the textbook's attention stores that it need not, what a check tells you, and what the symbols mean. There is
# no exercise for this chapter. Go on to [chapter 1](01_the_matrix_that_should_not_exist.ipynb).
#
# ## Where to read more
#
# The method is from Dao, Fu, Ermon, Rudra and Ré, *FlashAttention: Fast and Memory-Efficient Exact Attention with
# IO-Awareness*, 2022; section 1 says in two pages what the course says in chapters 1 to 3.
