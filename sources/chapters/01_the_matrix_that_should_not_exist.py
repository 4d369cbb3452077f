# %% [markdown]
# # 1. The matrix that should not exist
#
# Attention has three steps. Multiply queries with keys, which gives a score for each pair. Turn each row of scores
# into probabilities with a softmax. Use the probabilities to average the values. Written as one line for each step,
# it is three calls, and on a GPU each call runs one *kernel*: a program that reads its inputs from the GPU's memory,
# computes, and writes its result back.
#
# The two products do hundreds of operations for every score. The softmax does about five: find the maximum, subtract
# it, exponentiate, add up, divide. We timed the three kernels on an H200, for one layer of Llama-3-8B and 8192
# tokens.
#
# **Before you run the next cells, write down a guess: what share of the time does the softmax take?**

# %%
import os

# What is timed below runs on one core, whatever else the machine has. NumPy reads this when it is loaded.
os.environ.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", VECLIB_MAXIMUM_THREADS="1")

# %%
import numpy as np

from flashedu import demos
from flashedu.bench import measure
from flashedu.cost import attention_flops, naive_intensity, naive_traffic
from flashedu.data import load_minilm
from flashedu.exactness import attention_bounds
from flashedu.hardware import gpu
from flashedu.machine import Machine
from flashedu.reference import naive_attention, stable_softmax
from flashedu.results import load

# %%
from flashedu.viz.curves import duration, error_against_bound, growth, size
from flashedu.viz.head import row_maxima, scores_and_probabilities
from flashedu.viz.table import table
from flashedu.viz.traffic import moved, shares

# %%
result = load("h200_attention_traffic")
kernels = {row["step"]: row for row in result["kernels"] if row["algorithm"] == "naive"}
n, d, heads, kv_heads = (result["shape"][name] for name in ("n", "head_dim", "heads", "kv_heads"))
operations = {"qk": 2 * d, "softmax": 5, "pv": 2 * d}  # for each score
time_ms = {step: row["time_ms"] for step, row in kernels.items()}
shares({"operations": operations, "time": time_ms}, "Three kernels: operations counted, time measured on an H200.")

# %% [markdown]
# One per cent of the operations takes most of the time. Whatever the softmax kernel is busy with, it is not
# arithmetic. By the end of this chapter you can say what it is busy with, compute it for any model in two lines, and
# show why the obvious cure does not work.

# %% [markdown]
# ## Softmax, and how it breaks
#
# Softmax takes a row of scores and returns positive weights that add up to 1. It raises $e$ to each score, then
# divides by the row's sum:
#
# $$p_j = \frac{e^{x_j}}{\sum_i e^{x_i}}$$
#
# Here it is as the formula says. Six rows follow. They differ by a constant only, and the formula does not care about
# constants: adding $c$ to every score multiplies the numerator and the denominator by the same $e^c$. **Which answers
# do you expect?**

# %%
def textbook_softmax(x):
    e = np.exp(x)
    return e / e.sum(axis=-1, keepdims=True)

row = np.array([1, 2, 3], dtype=np.float32)
with np.errstate(all="ignore"):
    for c in (0, 40, 80, 100, -100, -120):
        scores = row + np.float32(c)
        print(f"{scores!s:21} -> {textbook_softmax(scores)}")

# %% [markdown]
# Six rows that should agree, and half of them do not. Around 100, $e^{x}$ leaves the range of the number format and
# becomes infinity, and infinity divided by infinity is NaN. Around $-100$ the exponentials are so small that they
# lose their digits: the fifth row's weights are wrong, without a warning. A little lower they are all 0, and 0
# divided by 0 is NaN again. How far up can a score go?

# %%
for dtype in (np.float16, np.float32, np.float64):
    largest = np.finfo(dtype).max
    print(f"{largest.dtype}: up to {largest:.3g}, exp overflows above {np.log(float(largest)):.2f}")

# %% [markdown]
# bfloat16, the usual format of a large model, has the exponent range of float32. For float16 the limit is low enough
# that ordinary scores reach it. We look at real scores below.
#
# The formula's indifference to constants is also the cure. We may subtract any $c$ we like from the row before we
# exponentiate. Which one? Let the row hold large scores, and try.

# %%
large = np.array([101, 102, 103], dtype=np.float32)
with np.errstate(all="ignore"):
    for c in (0, 15, 50, 90, 103, 150, 200, 220):
        print(f"subtract {c:3}: {textbook_softmax(large - np.float32(c))}")

# %% [markdown]
# The maximum, 103, is safe for a reason that one can prove. After subtracting it, the largest exponent is exactly 0.
# So every term lies between 0 and 1, and one of them *is* 1. The sum lies between 1 and $N$. Nothing can overflow and
# nothing can divide by zero, whatever the scores were.
#
# But look at the other lines: nothing is special about the maximum. Every constant in a wide band gives the same
# weights. What matters is that the whole row uses *one* constant, and that it is not far from the maximum. Keep that
# in mind. It is what chapter 2 is built on.
#
# ### What $-\infty$ means
#
# Often a query must not see a key: the key comes later in the text, or it is padding. One gives that pair the score
# $-\infty$. Then $e^{-\infty} = 0$, the key gets no weight and adds nothing to the sum, as if it were not there. That
# is more honest than a large negative number, as the last row below shows: when *all* keys are hidden, minus a
# million everywhere is a row of equal scores, and softmax hands out equal weights to keys that nobody may see. With
# $-\infty$ such a row has maximum $-\infty$, and $-\infty - (-\infty)$ is NaN unless somebody thought of it. The
# course's convention: a row that sees no key has weights 0.

# %%
inf = np.float32(np.inf)
masked = np.array([[1, 2, -inf], [-inf, -inf, -inf], [-1e6, -1e6, -1e6]], dtype=np.float32)
with np.errstate(all="ignore"):
    shifted = textbook_softmax(masked - masked.max(axis=-1, keepdims=True))
rows = zip(masked, shifted.round(3), stable_softmax(masked).round(3), strict=True)
table(["scores", "minus the maximum, then the formula", "`stable_softmax`"], rows)

# %% [markdown]
# `stable_softmax` is the first function that you write in this chapter's exercises.
#
# ## A real head
#
# Now the other two steps. For one head, let $Q$ hold a query in each row, $K$ a key, $V$ a value; each has $D$
# columns. Each score is the dot product of a query and a key, divided by $\sqrt D$ so that scores do not grow with
# the head dimension:
#
# $$S = \frac{Q K^\top}{\sqrt D}, \qquad P = \operatorname{softmax}(S)\ \text{row by row}, \qquad O = P V$$
#
# Random numbers make poor examples of attention. The course therefore carries the queries, keys and values of one
# layer of a real model: all-MiniLM-L6-v2, a small BERT, while it reads the last paragraph of Darwin's *On the Origin
# of Species*. (In its tokens, ## marks a piece that continues a word.)

# %%
layer = load_minilm()
q, k, v = layer.q[8], layer.k[8], layer.v[8]  # one of twelve heads
tokens, columns = q.shape
s = q @ k.T / np.sqrt(np.float32(columns))
p = stable_softmax(s)
print(f"{tokens} tokens, D = {columns}:", *layer.tokens[1:14], "...")
scores_and_probabilities(s, p)

# %% [markdown]
# On the left, every pair of tokens has a score, and the square is full. On the right it is almost empty, since the
# exponential turns *differences* between scores into *ratios* of weights. What is left lies beside the diagonal. In
# which direction does this head look? The next cell counts. (Other heads look elsewhere; try another number in the
# cell above.)

# %%
best_key = s.argmax(axis=1)
ahead = best_key - np.arange(tokens)
for step, name in ((-1, "the token before"), (0, "itself"), (1, "the token after it")):
    print(f"queries whose largest score is with {name:18}: {(ahead == step).mean():4.0%}")

# %% [markdown]
# So this head fetches the token that comes next, which it may, since BERT reads a text in both directions.
#
# It is tempting to say that the dark part need not be computed. There are methods that leave parts out, and they are
# approximations. FlashAttention is not one of them: it computes every entry of these two squares. It only never
# *stores* them. To see what softmax subtracts in each row, and whether float16 could have done without:

# %%
overflow = np.log(float(np.finfo(np.float16).max))
m = s.max(axis=1)
print(f"entries of P below 1/1000: {(p < 1e-3).mean():.0%}")
print(f"rows whose largest score would overflow exp in float16: {(m > overflow).mean():.0%}")
row_maxima(s, overflow, "float16: exp overflows")

# %% [markdown]
# The maximum changes from row to row, and nothing announces it. In a sizeable part of the rows the textbook formula
# would have failed in float16, on an ordinary paragraph. To be safe whatever the scores are, a row needs a constant
# near its own maximum, and to find the maximum one has to look at the whole row. That sentence comes back at the end
# of the chapter.
#
# ## Three kernels, and what travels between them
#
# A GPU has two levels of memory that a kernel's author cares about. **HBM** is the large one: tens of gigabytes
# beside the chip, which hold the model and all arrays. **SRAM** is the small one: about 200 KB in each of the hundred
# or so processors (*multiprocessors*) that the chip is made of, and many times faster. Arithmetic happens on data
# that has been brought close. When a kernel ends, whatever it kept in SRAM is gone. What survives is in HBM. (Some of
# it may still be on its way there, in a cache between the two. Chapter 3 meets that cache; arrays as large as $S$ do
# not fit in it.)
#
# So when the three steps are three kernels, $S$ must be *written* to HBM by the first and *read* back by the second,
# and $P$ must be written by the second and read by the third. To see this, the course has a machine with these two
# levels. It computes with NumPy, refuses to hold more in SRAM than fits, and counts every byte that crosses. `load`
# copies rows from HBM into SRAM, `store` writes rows back, `alloc` takes room in SRAM and `free` gives it back. Here
# is naive attention on it. Each kernel is the best of its kind: it reads its inputs once and writes its output once.
# (For that, the first holds all of $K$ in SRAM and the third all of $V$, which at real sizes do not fit. Then they
# are read several times. $S$ and $P$ cross as often in either case, and they are what this chapter is about.)

# %%
# include: flashedu.reference.attention:naive_on_machine

# %% [markdown]
# We run the real head through it, counting 2 bytes for each element, as in bfloat16. **Predict, for $N$ tokens and
# $D$ columns, how many elements cross.** Four arrays of $N \times D$ cross once each. How often do the arrays of $N
# \times N$ cross?

# %%
square = np.zeros((tokens, tokens), q.dtype)
machine = Machine.for_attention(q, k, v, sram_bytes=200_000, itemsize=2, s=square, p=square)
naive_on_machine(machine)
counted = machine.read_bytes + machine.written_bytes
io_bytes, intermediate_bytes = naive_traffic(tokens, columns, heads=1, kv_heads=1, itemsize=2)
print(f"the machine counted   {counted:9,} bytes")
print(f"q, k, v, o once       {io_bytes:9,} bytes = 4 x {tokens} x {columns} x 2")
print(f"S and P, twice each   {intermediate_bytes:9,} bytes = 4 x {tokens} x {tokens} x 2")
assert counted == io_bytes + intermediate_bytes

# %%
crossed = {name: [0, 0] for name in ("q", "k", "s", "p", "v", "o")}
for event in machine.events:
    if event.kind in ("load", "store"):
        crossed[event.name][event.kind == "store"] += event.size_bytes
moved(crossed, f"One head of MiniLM by three kernels: {tokens} tokens, two bytes an element.")

# %% [markdown]
# The machine and the closed form agree to the byte. You write the closed form, `naive_traffic`, in the exercises.
# Note what the picture says: the answer is an $N \times D$ array, and so are all inputs. $S$ and $P$ are nobody's
# input and nobody's result. They exist because the work was cut into three kernels at exactly these two places.
#
# ## One layer of Llama-3-8B
#
# Now a real size. One attention layer of Llama-3-8B has 32 query heads and 8 heads of keys and values (each serves
# four query heads), with $D = 128$, in bfloat16, 2 bytes an element. Take 8192 tokens. Everything in the next table
# is a product of such numbers.

# %%
elements = {"Q": heads * n * d, "K": kv_heads * n * d, "V": kv_heads * n * d}
elements |= {"O": heads * n * d, "S": heads * n * n, "P": heads * n * n}
stored = {name: 2 * count for name, count in elements.items()}
table(["array", "elements", "bytes"], [(a, f"{elements[a]:,}", size(stored[a])) for a in stored])

# %%
inputs = stored["Q"] + stored["K"] + stored["V"]
both = stored["S"] + stored["P"]
io_bytes, intermediate_bytes = naive_traffic(n, d, heads, kv_heads, itemsize=2)
print(f"Q, K and V together              {size(inputs):>8}")
print(f"S and P, each stored once        {size(both):>8}, {both / inputs:.0f} times as much")
print(f"S and P, each written and read   {size(intermediate_bytes):>8}")

# %% [markdown]
# The last two numbers both appear in texts about FlashAttention, often without saying which is meant. The smaller one
# is memory that must exist. The larger one is traffic, what the memory bus has to carry, and it is the one that costs
# time.
#
# A formula is a claim. GPUs have counters that record how many bytes really crossed to and from HBM, and we read them
# for each kernel. Two details. The measured kernels got $K$ and $V$ copied out to all 32 heads, since that is what
# plain torch code does, so the right closed form has `kv_heads=32`. And $Q$ was multiplied by $1/\sqrt D$ beforehand.
# The usual line `(q @ k.mT) / sqrt(D)` runs a fourth kernel, which reads and writes all of $S$ once more, and a mask
# may run a fifth. If you measure your own code and find more bytes than here, look there first.

# %%
names = {"qk": "S = Q Kᵀ", "softmax": "P = softmax(S)", "pv": "O = P V"}
reads = {step: row["hbm_read_bytes"] for step, row in kernels.items()}
writes = {step: row["hbm_written_bytes"] for step, row in kernels.items()}
rows = [(names[x], size(reads[x]), size(writes[x]), f"{time_ms[x]:.2f} ms") for x in kernels]
table(["kernel", "read from HBM", "written to HBM", "time"], rows)

# %%
counted = sum(reads.values()) + sum(writes.values())
predicted = sum(naive_traffic(n, d, heads, kv_heads=heads, itemsize=2))
print(f"predicted {predicted / 1e9:.2f} GB, counted {counted / 1e9:.2f} GB: {counted / predicted - 1:+.1%}")

# %% [markdown]
# The counters see $S$ being written by the first kernel and read by the second, and $P$ by the second and third. (Some
# megabytes may still sit in the chip's L2 cache when a kernel ends, and are then not counted in its column.) The
# traffic is real, and it is almost all $S$ and $P$.
#
# ## Is it the bytes, then?
#
# It is tempting to stop here and say that traffic explains the time. Let us check that, instead. We know what the
# same H200 can do at best, measured in the same run: how fast it copies memory, and how fast it multiplies large
# matrices (in FLOP/s, floating-point operations a second; a multiplication and its addition are two). For each kernel
# we compute what share of either rate it reached. A kernel that is limited by memory alone should be near 100 % in
# the first column, one that is limited by arithmetic alone in the second.

# %%
copy_rate = result["ceilings"]["copy_bytes_per_s"]
matmul_rate = result["ceilings"]["matmul_flops_per_s"]
rows = []
for x in kernels:
    bytes_per_s = (reads[x] + writes[x]) / time_ms[x] * 1e3
    flops_per_s = operations[x] * heads * n * n / time_ms[x] * 1e3
    rows.append((names[x], f"{bytes_per_s / copy_rate:.0%}", f"{flops_per_s / matmul_rate:.1%}"))
copy, matmul = f"{copy_rate / 1e12:.2f} TB/s", f"{matmul_rate / 1e12:.0f} TFLOP/s"
table(["kernel", f"of the copy rate, {copy}", f"of the matmul rate, {matmul}"], rows)

# %%
work = attention_flops(n, n, d, heads)
measured_ms = sum(time_ms.values())
floors = {"all bytes, at the copy rate": counted / copy_rate}
floors["products, at the matmul rate"] = work / matmul_rate
print(f"{'three kernels, each alone':30} {measured_ms:5.2f} ms")
for name, seconds in floors.items():
    print(f"{name:30} {1e3 * seconds:5.2f} ms, {1e3 * seconds / measured_ms:.0%} of that")

# %% [markdown]
# Memory is what the two products come closest to, $PV$ closer than $QK^\top$. They are not far from the limit of the
# matrix units either: one such product does $2D$ operations for each score that it reads or writes, and at $D = 128$
# that keeps both busy. (The next section makes a law of this ratio.) The softmax is another matter. It moves about as
# many bytes as the two products together, and takes several times as long, at a quarter of the copy rate. Neither its
# bytes nor its arithmetic explain its time. Is that a property of softmax, or of this kernel? The same run timed the
# softmax at other lengths.

# %%
for row in result["sweep"]:
    if "softmax_ms" in row["naive"] and row["n"] >= 1024:
        length, ms = row["n"], row["naive"]["softmax_ms"]
        share = 2 * 2 * heads * length**2 / (ms / 1e3) / copy_rate  # reads S, writes P
        print(f"N = {length:6,}: softmax {ms:6.2f} ms, {share:4.0%} of the copy rate")

# %% [markdown]
# Of the kernel. From 8192 to 16384 columns the rate doubles, for the same computation on each score. (torch has
# several softmax kernels and chooses by the length of a row: `SoftMax.cu` in its source.) And even the best of these
# lines leaves almost half of the memory's rate unused.
#
# So be careful with the sentence "naive attention is slow because of its traffic". What the measurement supports is
# this. The bytes set a floor that no three kernels can go below, however well they are written: here about two fifths
# of the measured time, and more than twice what the products need. Nearly all of the rest is one kernel that uses the
# memory badly, and it is a kernel that would not be there if nobody had stored $S$. A single kernel that keeps $S$
# and $P$ to itself is rid of both.
#
# ## Arithmetic intensity
#
# How many operations can a program do for each byte that it moves? That ratio is its **arithmetic intensity**. For
# naive attention it can be seen without a formula. Every score crosses between HBM and SRAM four times, twice as $S$
# and twice as $P$, which makes 8 bytes in a 16-bit format. It is worth $2D$ operations in each of the two products:
# $4D$. So the intensity is about $D/2$ operations for each byte, and it *does not depend on* $N$: a longer sequence
# does not help.
#
# A GPU has such a ratio too: the operations that it can do while one byte arrives, which is called the ridge. **A
# program below the ridge waits for memory; one above it waits for arithmetic.** What would you expect the ridge of a
# modern GPU to be, compared with $D/2 = 64$?

# %%
for name in ("T4", "A100 80GB", "H100 SXM", "H200", "B200"):
    g = gpu(name)
    rates = f"{g.matmul_flops / 1e12:4.0f} TFLOP/s / {g.hbm_bytes_per_s / 1e12:.2f} TB/s"
    print(f"{name:10} {rates} = {g.ridge:3.0f} FLOP per byte")
for length in (1024, n, 64 * n):
    print(f"naive, N = {length:7,}: {naive_intensity(length, d, heads, kv_heads, 2):5.1f} FLOP per byte")

# %% [markdown]
# Every one of them wants at least twice the operations that naive attention offers. The next picture, the *roofline*,
# shows what that costs. The sloping part is what memory can feed, the flat part is what the matrix units can do, and
# the corner is the ridge. The second mark, flash, is where this course goes: the same layer by one kernel that never
# stores $S$ or $P$, so that only $Q$, $K$, $V$ and $O$ cross. Filled marks are the best that the roof allows, hollow
# ones were measured (flash is torch's own FlashAttention-2).
#
# Both marks do $4 N^2 D$ operations for each head. Four arrays of $N \times D$ cross for one of them, and four times
# $N \times N$ in addition for the other. **So when $N$ doubles, which mark moves, and how far? Is there a length at
# which the memory limits flash attention, too?** Run the cell, then move the slider of $N$.

# %%
demos.roofline("H200", n, d, heads, kv_heads)

# %% [markdown]
# At the length of our layer there are two things to read off. Naive attention sits under the slope, so even a
# flawless version of its three kernels could not reach a third of the chip's arithmetic: the ceiling above it is the
# memory's. Flash attention moves so few bytes that it is far to the right, under the flat roof. Memory is no longer
# its problem. It is not *at* the roof, and what keeps it from there is a subject of chapter 4, and of chapter 6.
#
# And the slider shows why this course is about long sequences. With twice the tokens, four times the operations meet
# twice the bytes in flash attention, so its mark moves to the right by a factor of two, every time. Naive attention
# has four times the bytes as well, and creeps up to $D/2$. For very short sequences even flash attention has too
# little to do for each byte, and lies on the slope. Another GPU moves the roof, and leaves both intensities where
# they are.
#
# Arithmetic was never what made naive attention slow: both marks do the same two products. What costs is what lies
# between the products, two matrices that travel and a kernel that is there only to turn one into the other.
#
# ## On your own machine
#
# You do not need a GPU to meet $S$. `measure` returns the time of a call and the most memory that it held at once. We
# run one head with $D = 64$ in float32, up to 4096 tokens. **Predict the memory first**: $S$ and $P$ are two arrays
# of $N \times N$ with 4 bytes an element. So $8 N^2$ bytes?

# %%
def head(n, d=64, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, d)).astype(np.float32) for _ in range(3)]

measured = {}
for length in (256, 512, 1024, 2048, 4096):
    m = measure(naive_attention, *head(length), repeats=7)
    measured[length] = m.seconds, m.peak_bytes
    per_pair = f"{m.peak_bytes / length**2:.2f} N² bytes"
    print(f"N = {length:4}: {duration(m.seconds):>8}  {size(m.peak_bytes):>8} = {per_pair}")

# %% [markdown]
# Not 8 but about 12 bytes for each pair. There is a third matrix: while $P$ is being written, the exponentials from
# which it is made are still there, and so is $S$, which the caller holds. Each line of code that makes a new array
# makes an $N \times N$ array. A careful programmer gets down to one by overwriting, and still has one too many.
#
# Twice the tokens, four times the memory, and for the longer runs roughly four times the time. (On most machines the
# short runs are cheaper for each pair, since their matrices still fit into the processor's cache: the same hierarchy,
# in another place.) That is enough to predict. We fit memory as $a N^2 + b N$ and take the time per pair from the
# longest run, predict a length that we have not tried, and try it.

# %%
lengths = np.array(list(measured))
peaks = np.array([peak for _, peak in measured.values()])
a, b = np.polyfit(lengths, peaks / lengths, 1)  # peak / N = a N + b
seconds_per_pair = measured[4096][0] / 4096**2

def predict(n):
    return seconds_per_pair * n**2, a * n**2 + b * n

test = measure(naive_attention, *head(6000), repeats=1)
guess = predict(6000)
print(f"predicted for N = 6000: {duration(guess[0])}, {size(guess[1])}")
print(f"measured:               {duration(test.seconds)}, {size(test.peak_bytes)}")

# %% [markdown]
# The memory comes out right, since it is a matter of counting arrays; the time depends on what else your machine is
# doing. The next cell asks the system how much memory there is. (Windows does not say, and then it takes 8 GB; a
# container with a limit says what the machine around it has. Write the right number there.) **At which $N$ does your
# machine die?** Guess before you run it.

# %%
memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 8e9
end = int(np.sqrt(memory_bytes / a))
grid = [int(x) for x in np.geomspace(256, end, 12)]
growth(measured | {6000: (test.seconds, test.peak_bytes)}, {x: predict(x) for x in grid}, memory_bytes)

# %% [markdown]
# Look at the predicted time at the end: the memory runs out long before your patience does. And this is *one* head.
# On the H200 the whole layer went the same way:

# %%
def peak(run):
    return size(run["peak_bytes"]) if "peak_bytes" in run else "out of memory"

rows = [(f"{row['n']:,}", peak(row["naive"]), peak(row["flash"])) for row in result["sweep"][-4:]]
table(["N", "naive, peak memory", "flash, peak memory"], rows)

# %% [markdown]
# ## Why not cut it up?
#
# The cure seems obvious. Never build the whole $S$. Take a block of keys, small enough for SRAM, compute its scores,
# its softmax and its share of the output there, and go on with the next block. Programs that multiply large matrices
# have worked like that for decades: a product can be cut anywhere, because every entry is a sum, and the terms of a
# sum can be added whenever they arrive. For the last step of attention, $PV$, that works:

# %%
blocks = [slice(start, start + 64) for start in range(0, tokens, 64)]
by_blocks = sum(p[:, block] @ v[block] for block in blocks)
print(f"{len(blocks)} blocks; largest difference from P V: {np.abs(by_blocks - p @ v).max():.1e}")

# %% [markdown]
# The remaining difference is rounding: the same terms, added in another order. And $QK^\top$ can be cut too, since
# each score needs one query and one key only. Which leaves the softmax. Let us try the whole of attention in blocks:
# run each block of keys as if it were all there is, and combine the outputs. Summing them worked for $PV$. Or perhaps
# one should average them, since each block's weights already add up to 1. **Is one of the two right, and how wrong is
# the other?**

# %%
def attention_in_blocks(q, k, v, block, combine):
    starts = range(0, len(k), block)
    return combine([naive_attention(q, k[i : i + block], v[i : i + block]) for i in starts], axis=0)

exact = naive_attention(q.astype(np.float64), k.astype(np.float64), v.astype(np.float64))
for name, combine in (("sum", np.sum), ("mean", np.mean)):
    error = np.abs(attention_in_blocks(q, k, v, 64, combine) - exact)
    print(f"{name:4}  largest error {error.max():.2f}, typical error {np.median(error):.3f}")
print(f"typical size of an output element: {np.median(np.abs(exact)):.3f}")
print(f"naive attention in float32, largest error: {np.abs(naive_attention(q, k, v) - exact).max():.1e}")

# %% [markdown]
# Both are wrong. The sum is off because each row of weights now adds up to the number of blocks. The mean is the
# dangerous one: its weights are positive and add up to 1, its outputs have the right size, nothing overflows and
# nothing warns. It is a perfectly good weighted average of the values. It is only not attention.
#
# ### How wrong is wrong?
#
# A largest error of a millionth in float32 is no mistake: it is rounding. So where does rounding end? This course
# answers that with a bound, computed in float64, on the error that rounding alone can be expected to cause in each
# element of the output. (Chapter 2 takes it apart.) An answer at 1 times the bound or less may be right. An answer
# above it has something wrong that rounding does not explain.
#
# That matters, because the usual test, "differs by less than 0.01", can be blind. Here is the mean of two blocks, on
# random inputs whose scores are small:

# %%
mild_q, mild_k, mild_v = head(1024)
mild_q = mild_q / 4  # scores with a standard deviation of 1/4
bound, _ = attention_bounds(mild_q, mild_k, mild_v)
wrong = attention_in_blocks(mild_q, mild_k, mild_v, 512, np.mean)
right = naive_attention(mild_q, mild_k, mild_v)
print(f"within 0.01 of the exact output: {np.allclose(wrong, bound.exact, rtol=0, atol=0.01)}")
print(f"error / bound, mean of two blocks: {bound.ratio(wrong):.0f}")
print(f"error / bound, naive in float32:   {bound.ratio(right):.3f}")

# %% [markdown]
# A wrong algorithm passes a tolerance of 0.01, and exceeds the bound by orders of magnitude. Now all block sizes, on
# the real head and on random inputs, and on a logarithmic scale:

# %%
sizes, ratios = (16, 32, 64, 128, 256, 512, 1024), {}
for label, arrays in {"MiniLM": (q, k, v), "random": head(1024)}.items():
    bound, _ = attention_bounds(*arrays)
    for name, combine in (("sum", np.sum), ("mean", np.mean)):
        outputs = {b: attention_in_blocks(*arrays, b, combine) for b in sizes}
        ratios[f"{name}, {label}"] = {b: bound.ratio(o) for b, o in outputs.items()}
error_against_bound(ratios)

# %% [markdown]
# As long as there is more than one block, both are wrong by thousands to millions of times what rounding could do,
# and no block size helps. The real head fares worst, because its weight sits in few places: averaging blocks dilutes
# the one block that matters with all those that do not. On the right, one block holds all keys (MiniLM has fewer keys
# than the random inputs, so its lines fall earlier). Then the computation *is* naive attention, and the error drops
# to a few hundredths of the bound. There is nothing in between.
#
# ### What is missing
#
# Take one query of the real head, the one with the largest score of all. For each block of keys we compute two
# things: the share of the weight that softmax really gives to the block, and what the mean assumes.

# %%
i = int(s.max(axis=1).argmax())
rows = []
for block in blocks:
    first, last = block.start, min(block.stop, tokens) - 1
    share, assumed = p[i, block].sum(), 1 / len(blocks)
    rows.append((f"{first} to {last}", f"{s[i, block].max():.2f}", f"{share:.1%}", f"{assumed:.1%}"))
table(["keys", "largest score", "true share", "share in the mean"], rows)

# %% [markdown]
# Each block's own softmax divides by the *block's* sum of exponentials. The right answer divides by the *row's*. The
# ratio of the two sums is the true share in the third column, and nothing inside a block says what it is. It takes
# the sum over the whole row, and that is known only when the last key has been seen.
#
# There is a second difficulty underneath. Each block subtracted its own maximum, so the blocks' sums are not even in
# the same unit: a sum of 3 in a block with maximum 2 is worth far less than a sum of 1 in a block with maximum 10.
# The maximum of the row, too, is known only at the end.
#
# One could go over the keys three times, once for the maximum, once for the sum, once for the output, and compute
# every score three times. That stores nothing, and it reads all keys three times over. The question is whether once
# is enough:
#
# **Can softmax be computed without ever seeing a whole row at once?** A block arrives, we use it, we throw it away.
# Later a larger score turns up, and everything that we have added so far was divided by the wrong thing and shifted
# by the wrong maximum. Can it be repaired? Think about what you would have to remember. Chapter 2 answers it.
#
# ## What you can now explain
#
# Why softmax subtracts the maximum, why another constant would do, and what happens to a row in which every key is
# hidden. Why naive attention writes two $N \times N$ matrices to HBM and reads them back, what that is in bytes for any
# model, and the difference between storing them and moving them. What arithmetic intensity and the ridge are, and why
# $D/2$ operations for each byte cap naive attention at a fraction of a GPU's arithmetic, whatever its length. Why
# blocks can be cut out of both products but not, so far, out of the softmax.
#
# ## Now you
#
# Open [exercises/01_the_matrix_that_should_not_exist](../exercises/01_the_matrix_that_should_not_exist.ipynb). You write `stable_softmax`, `naive_attention` and
# `naive_traffic`.
#
# ## Where to read more
#
# - Dao, Fu, Ermon, Rudra, Ré, *FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness*, 2022:
#   section 2 has the memory hierarchy and algorithm 0, which is naive attention; section 3.2 analyses its traffic.
# - Williams, Waterman, Patterson, *Roofline: An Insightful Visual Performance Model for Multicore Architectures*,
#   2009: where the picture comes from.
# - Vaswani et al., *Attention Is All You Need*, 2017, section 3.2.1: the formula, and why it divides by $\sqrt D$.
# - Ivanov, Dryden, Ben-Nun, Li, Hoefler, *Data Movement Is All You Need*, 2021: the same diagnosis for a whole
#   transformer, before FlashAttention.
