# %% [markdown]
# # 2. Softmax without seeing the row
#
# Softmax divides by a sum over the whole row. Now let the row arrive in pieces: 128 scores, then another 128,
# and every piece is gone when the next one comes. You may keep a few numbers, but nothing that grows with the
# length of the row. **Can the output of attention still be computed, and how much accuracy does the
# forgetting cost?**
#
# Chapter 1 ended on why this looks hopeless. A block can compute a softmax of its own scores, but the results
# of several blocks cannot be added up, because each was divided by its own denominator and the right one is
# known only at the end.
#
# The function `online_attention`, which you will write in this chapter's exercise, takes the keys block by
# block and forgets them. Below it competes with the textbook's version, which holds the whole row. One query,
# 100,000 keys, everything in float32, judged against the same computation in float64. The third run is meant
# to hurt: the keys come sorted, lowest score first, so that every block brings a larger maximum than all the
# blocks before it, and all work done so far has been done relative to a wrong one.
#
# Before you run the cell, write down your guess: to how many decimal places is each of the three right?

# %%
import numpy as np

from flashedu import demos
from flashedu.data import load_minilm
from flashedu.exactness import attention_bounds
from flashedu.reference import merge_states, naive_attention, online_attention, stable_softmax
from flashedu.viz.errors import against_bound
from flashedu.viz.online import moving_maxima
from flashedu.viz.table import table

# %%
rng = np.random.default_rng(1)
q, k, v = (rng.standard_normal((n, 64), dtype=np.float32) for n in (1, 100_000, 100_000))
q *= 4  # scores between about -15 and 15
order = np.argsort(k @ q[0])
exact = naive_attention(*(x.astype(np.float64) for x in (q, k, v)))
answers = {
    "the whole row at once": naive_attention(q, k, v),
    "blocks of 128 keys": online_attention(q, k, v, 128),
    "blocks of 128 keys, lowest score first": online_attention(q, k[order], v[order], 128),
}

# %%
for name, o in answers.items():
    print(f"{name:40} largest error {np.abs(o - exact).max():.1e}  (outputs up to {np.abs(exact).max():.2f})")

# %% [markdown]
# All three agree with float64 to about the sixth decimal place. And on the machine on which this page was
# made, the two that forgot were *nearer* to the truth than the one that saw everything. (That is no law. It
# comes from the order of the additions: many short sums tend to lose less to rounding than one sum of 100,000
# terms, and how a library adds those up is its own affair.) The sorted run is as good as the other in blocks,
# although every block after the first told it that its maximum had been wrong.
#
# So nothing was approximated, and a wrong maximum is something that can be repaired. This chapter is about
# the repair. It is one multiplication.
#
# ## What a late maximum does
#
# Take six scores in two blocks of three. Stable softmax subtracts the row's maximum before it exponentiates.
# The first block knows only its own maximum, 3, and so that is what it subtracts.

# %%
row = np.array([1.0, 3.0, 2.0, 5.0, 4.0, 0.0])
first, second = row[:3], row[3:]
m1 = first.max()
l1 = np.exp(first - m1).sum()
print(f"first block: maximum m1 = {m1}, sum l1 = {l1:.6f}")

# %% [markdown]
# Then the 5 arrives. Had we known it, we would have subtracted 5 and the first block's sum would have been a
# different number. The block itself is gone: only `m1` and `l1` are left. Can the sum that we should have had
# be obtained from these two? Try it with pen and paper before you go on; you need one rule about
# exponentials.

# %%
wanted = np.exp(first - 5).sum()  # needs the block, which is gone
repaired = l1 * np.exp(m1 - 5)  # needs only m1 and l1
print(f"wanted {wanted:.6f}, repaired {repaired:.6f}, the factor is {np.exp(m1 - 5):.6f}")

# %% [markdown]
# The rule is that a difference in the exponent is a factor in front. If $m$ is the old maximum and $m'$ the new
# one (`m_new` in the code), then for every score $s$ of the past
#
# $$e^{s - m'} = e^{s - m}\, e^{m - m'} .$$
#
# The factor $\alpha = e^{m - m'}$ does not contain $s$. It is the same for every key that was ever seen, so
# it can be taken out of the sum, and one multiplication corrects them all at once:
#
# $$\sum_j e^{s_j - m'} = \alpha \sum_j e^{s_j - m} .$$
#
# It helps to read the pair $(m, l)$ as a number in scientific notation. The true sum of exponentials is
# $l\, e^m$, which may be far too large or too small to be stored; so it is kept as a significand $l$ and an
# exponent $m$. Nobody is surprised that $6 \cdot 10^{23}$ can be rewritten as $0.06 \cdot 10^{25}$ without
# asking where the 6 came from. The correction factor is that and nothing more, with base $e$.
#
# ## A row that arrives
#
# The next cell lets a row of 48 scores arrive in blocks of 8. For each block it records the maximum so far,
# the factor, what is kept of the old sum after the factor, and what the block adds. Before you run it: in how
# many of the six blocks do you expect a factor that differs from 1?

# %%
scores = np.random.default_rng(345).normal(0, 1.6, 48)
m, l = -np.inf, 0.0
for block in scores.reshape(6, 8):
    m_new = max(m, block.max())
    alpha = np.exp(m - m_new)
    kept, added = l * alpha, np.exp(block - m_new).sum()
    m, l = m_new, kept + added
    print(f"maximum {m:.2f}, factor {alpha:.2f}, kept {kept:.3f}, added {added:.3f}, sum {l:.3f}")

# %%
whole = np.exp(scores - scores.max()).sum()
print(f"sum from blocks {l:.12f}\nsum of the row  {whole:.12f}")

# %% [markdown]
# Three of the six factors differ from 1. Look at the first: it is 0, and not because something was wrong.
# Before the first block the state is "nothing seen", written as $m = -\infty$ and $l = 0$, and
# $e^{-\infty - m'} = 0$ for any finite $m'$. The empty state needs no special case. (It needs one in a single
# situation, which is this chapter's trap, further down.)
#
# Here is the same row as a picture, with a slider for the blocks that have been seen. The dashed line in it is
# the sum of somebody who never multiplies: what a block adds is left as it was, under the maximum of its own
# time. Before you run the cell: is that sum too large or too small? And in which order would the scores have to
# come for it to be right? (The menu has rows on which you can try that.)

# %%
demos.online_softmax("random", block_size=8, step=6)

# %% [markdown]
# It is too large. What was added under a smaller maximum counts for more than it should, by just the factor
# that nobody applied, and nothing that comes later takes it back. Only when the largest score is in the first
# block are all later factors 1, and then both sums are right. The other extreme is one huge score that comes
# late: next to it, all that was added before is nearly nothing, which only the factor knows.
#
# The check at the bottom right adds up the exponentials of all scores seen so far at once, under their true
# maximum. The repaired sum agrees with it after every block, and not only at the end.
#
# Half of the factors here are exactly 1. How is it in a longer row? In a row whose scores come in no particular
# order, block number $b$ holds the largest score of the first $b$ blocks with probability $1/b$. The expected
# number of new maxima in $T$ blocks is therefore $1 + \frac12 + \dots + \frac1T$, which grows like $\ln T$.

# %%
many = np.random.default_rng(0).standard_normal((5000, 64, 32))  # 5000 rows of 64 blocks of 32 scores
block_maxima = many.max(axis=2)
running = np.maximum.accumulate(block_maxima, axis=1)
new_maxima = 1 + (running[:, 1:] > running[:, :-1]).sum(axis=1)
print(f"new maxima in 64 blocks: {new_maxima.mean():.2f} on average")
print(f"1 + 1/2 + ... + 1/64 = {sum(1 / b for b in range(1, 65)):.2f}")

# %% [markdown]
# Fewer than five blocks in 64 change anything; in all others the multiplication is by 1. Chapter 6
# comes back to this, because the newest kernels skip the multiplication when it would not matter.
#
# ## The output follows the same rule
#
# The denominator is only half of attention. The output is a quotient of two sums over the same keys,
#
# $$\frac{\sum_j e^{s_j - m}\, v_j}{\sum_j e^{s_j - m}} ,$$
#
# and the numerator has the same exponentials in it as the denominator. Whatever repairs one repairs the other.
# So the numerator is kept as a third quantity, a vector $o$, *without dividing it*; when the maximum moves, it
# is multiplied by the same $\alpha$; and there is one division, $o / l$, at the very end. The three together
# are the **state** $(m, l, o)$ of online softmax: for one query, two numbers and a vector as long as a value.
#
# Dividing later rather than now is what removes chapter 1's obstacle. There, each block divided by its own
# denominator and then nothing fitted together. A state is a fraction before the division, and such fractions
# can be brought to a common scale.

# %%
def state_of(s, v):
    """The state of some keys, from the scores of one query (B,) and the keys' values (B, Dv)."""
    m = s.max()
    p = np.exp(s - m)  # numerators only: no division
    return m, p.sum(), p @ v


# %%
values = np.random.default_rng(2).standard_normal((6, 4))
(m1, l1, o1), (m2, l2, o2) = state_of(first, values[:3]), state_of(second, values[3:])
m = max(m1, m2)
a1, a2 = np.exp(m1 - m), np.exp(m2 - m)
print("from two blocks:", (a1 * o1 + a2 * o2) / (a1 * l1 + a2 * l2))
print("from the row:   ", stable_softmax(row) @ values)

# %% [markdown]
# Notice that this cell did not treat the first block as "old" and the second as "new". Both were computed
# alone, from scratch, and both were brought to the larger of the two maxima. One of the two factors is 1, and
# it does not matter which.
#
# ## No first, no last
#
# That symmetry deserves a closer look, for it is the most useful thing in this chapter. Call the operation of
# the last cell *merge*: it takes the states of two disjoint sets of keys and gives the state of all their
# keys together,
#
# $$(m_a, l_a, o_a) \oplus (m_b, l_b, o_b) = \bigl(m,\;\; e^{m_a - m} l_a + e^{m_b - m} l_b,\;\; e^{m_a - m} o_a + e^{m_b - m} o_b\bigr),
# \qquad m = \max(m_a, m_b).$$
#
# In terms of scientific notation it is plain addition: $l_a e^{m_a} + l_b e^{m_b}$, with the larger exponent
# chosen for the result. Addition does not care about order or grouping, and neither does a maximum, so merge
# is commutative and associative; and the empty state $(-\infty, 0, 0)$ changes nothing, as adding zero
# changes nothing. A set with such an operation is called a **commutative monoid**. The name is worth having
# because of what it permits: cut the keys anywhere, give the pieces to anyone, merge in any order as results
# come in.
#
# We should not take this from algebra alone, since algebra knows no rounding. The next cells split 1,000 keys
# into a random number of pieces at random places, after shuffling them, and merge random pairs until one state
# is left; 300 times. `merge_states` does the formula above for many queries at once.

# %%
q, k, v = (rng.standard_normal((n, 64), dtype=np.float32) for n in (4, 1000, 1000))


def states_of(keys):
    """The state of the keys with these indices, for all four queries: (4,), (4,), (4, 64)."""
    s = q @ k[keys].T / np.float32(8)  # 8 is sqrt(64)
    m = s.max(axis=1)
    p = np.exp(s - m[:, None])
    return m, p.sum(axis=1), p @ v[keys]


# %%
def merged_in_random_order(states):
    while len(states) > 1:
        rng.shuffle(states)
        a, b, *states = states
        states.append(merge_states(a, b))
    return states[0]


# %%
bound, _ = attention_bounds(q, k, v, block_k=50)
ratios, outputs = [], set()
for _ in range(300):
    cuts = np.sort(rng.choice(np.arange(1, 1000), size=rng.integers(1, 40), replace=False))
    pieces = np.split(rng.permutation(1000), cuts)
    m, l, o = merged_in_random_order([states_of(keys) for keys in pieces])
    ratios.append(bound.ratio(o / l[:, None]))
    outputs.add((o / l[:, None]).tobytes())
print(f"largest error over 300 random splits and orders: {max(ratios):.3f} of what rounding allows")
print(f"outputs that differ in at least one bit: {len(outputs)}")

# %% [markdown]
# Read both lines. Every one of the 300 merges is right, to a small fraction of what rounding alone could have
# done (the next section says what that bound is). And yet hardly two of the outputs agree in every bit. There
# is no contradiction: floating-point addition itself is associative only up to rounding, and merge inherits
# exactly that. What about the other two laws?

# %%
a, b = states_of(np.arange(400)), states_of(np.arange(400, 1000))
nothing = (np.full(4, -np.inf, np.float32), np.zeros(4, np.float32), np.zeros((4, 64), np.float32))


def same_bits(x, y):
    return all(np.array_equal(i, j) for i, j in zip(x, y, strict=True))


# %%
print("a + b is b + a, bit for bit:  ", same_bits(merge_states(a, b), merge_states(b, a)))
print("a + nothing is a, bit for bit:", same_bits(merge_states(a, nothing), a))

# %% [markdown]
# These two hold to the bit: addition of two floating-point numbers is commutative, and multiplying by 1 and
# adding 0 round nothing. (In NumPy, that is, which rounds each product and then the sum. A GPU's compiler may
# fuse one of the two products with the addition and round only once. Which of the two it fuses depends on the
# order, and then even a + b and b + a may differ in the last bit.) Online softmax is the special case in which
# the pieces happen to be merged from left to right. Chapter 8 uses the general case, with pieces on
# different processors and on different machines.
#
# ## What "exact" means here
#
# Flash attention is called exact, and the 300 merges above show that this cannot mean "the same bits". It
# means that in real arithmetic the result is the same number, so that rounding is the *only* reason for a
# difference. A claim of this kind can be tested, because rounding errors have a size that can be computed.
#
# The course does it as follows. The output is computed in float64 and called $o^*$, its probabilities $P^*$.
# Each operation in float32 may be off by a relative $u = 2^{-24}$. A score is a dot product of length $D$,
# and its error $\delta$ grows with $\sqrt{D}$ and with the size of the products in it; the exponential turns
# this absolute error into a relative error of a probability; sums over $N$ keys in $T$ blocks add theirs.
# (In the worst case the error would grow with $D$ itself. But rounding errors have random signs and partly
# cancel, hence the square roots. A larger error is not impossible, only so unlikely that we call it a mistake.)
# Collected, for every element of the output:
#
# $$|o - o^*| \;\le\; 1.25 \,\bigl[\kappa \,(P^*|V|) + u\,|o^*|\bigr], \qquad \kappa = 2\delta + u\,(2T + 2\sqrt{B} + 8),$$
#
# where $B$ is the block size; the factor in front is a margin. Note $P^*|V|$ on the right, the weighted mean of
# *absolute* values. The terms of an output may cancel; their rounding errors do not. `attention_bounds` in
# `flashedu/exactness.py` has the formula in full, with a term for numbers too small to be represented, and
# every `check` of an attention function uses it. The number that we report is always error divided by bound: up
# to 1, rounding explains it. The bound leaves some air, as you will see: correct answers use a small part of
# it. So a mistake whose effect is smaller than that is not seen on these inputs, which is why a check tries
# many.
#
# A yardstick is good only if wrong things fail by it. We need data on which to try, and random numbers are too
# kind. So from here on we use the real head of chapter 1 again.

# %%
layer = load_minilm()
q, k, v = layer.q[8], layer.k[8], layer.v[8]  # one head of twelve: (272, 32) each
print(f"layer {layer.layer}, head 8, {len(layer.tokens)} tokens: {' '.join(layer.tokens[:10])} ...")

# %% [markdown]
# Now to the candidates. Three claim to be exact. Then the online loop with a bug: the factor is forgotten, for
# the last block only. Then three well-known approximations. Dropping small probabilities: what is below
# $10^{-4}$ becomes zero. A window: each query sees only its nearest 64 neighbours on either side. A low-rank
# product: the keys are replaced by their best approximation of rank 16. Each stands for a family of methods
# that save work or memory, and each is tempting: after all, attention is mostly a few large probabilities.
# Which of them will pass?

# %%
def window(s, reach):
    i, j = np.arange(s.shape[0])[:, None], np.arange(s.shape[1])
    return np.where(np.abs(i - j) <= reach, s, -np.inf)


# %%
def low_rank(x, rank):
    u, sigma, vt = np.linalg.svd(x, full_matrices=False)
    return (u[:, :rank] * sigma[:rank]) @ vt[:rank]


# %%
def last_factor_forgotten(q, k, v, block):
    cut = (len(k) - 1) // block * block  # the last block begins here
    s = q @ k.T / np.sqrt(q.dtype.type(q.shape[1]))
    old, new = s[:, :cut].max(axis=1, keepdims=True), s.max(axis=1, keepdims=True)
    p = np.exp(s - np.where(np.arange(len(k)) < cut, old, new))
    return p @ v / p.sum(axis=1, keepdims=True)


# %%
s = q @ k.T / np.sqrt(np.float32(q.shape[1]))
p = stable_softmax(s)
large = np.where(p < 1e-4, 0, p)
methods = {
    "naive": naive_attention(q, k, v),
    "online, blocks of 32": online_attention(q, k, v, 32),
    "online, blocks of 1": online_attention(q, k, v, 1),
    "online, last factor forgotten": last_factor_forgotten(q, k, v, 32),
    "probabilities < 0.0001 dropped": large / large.sum(axis=1, keepdims=True) @ v,
    "window of 64 each way": stable_softmax(window(s, 64)) @ v,
    "keys of rank 16": naive_attention(q, low_rank(k, 16), v),
}

# %%
bound, _ = attention_bounds(q, k, v, block_k=32)
against_bound({name: bound.errors(o) for name, o in methods.items()})

# %% [markdown]
# The axis is logarithmic. The three that claim to be exact lie well to the left of the dashed line, and they
# lie in the same place: whether the row was seen whole, in blocks of 32 or key by key makes no difference that
# this measure can see. The approximations are not a little worse. Even the middle half of their elements lies
# beyond the line, and their worst elements by orders of magnitude.
#
# The bug is instructive in another way. Its middle half looks perfectly healthy, since most rows have no new
# maximum in the last block and lose nothing when the factor is forgotten. The next cell looks at it with three
# summaries of the error, and beside it what a common test would have said: many test suites compare attention
# outputs with a fixed tolerance, often 0.01. Which of the summaries do not notice the bug?

# %%
columns = ("median error", "mean error", "largest", "within 0.01?", "error / bound")
print(f"{'':32}" + "".join(f"{column:>14}" for column in columns))
for name, o in methods.items():
    error = np.abs(o - bound.exact)
    passes = "yes" if error.max() < 0.01 else "no"
    print(f"{name:32}{np.median(error):14.1e}{error.mean():14.1e}{error.max():14.1e}{passes:>14}"
          f"{bound.ratio(o):14,.2f}")

# %% [markdown]
# The median of the bug's errors is what it is for the correct methods: a test that looks at the median, or at
# a few elements, sees nothing. The mean notices, and the largest element cannot be missed.
#
# Dropping the small probabilities passes the test with 0.01. Its errors are hundreds of times larger than
# rounding can explain, but they are below 0.01, and 0.01 is all the test knows. A fixed tolerance cannot tell
# an approximation from a rounding error, and so it cannot tell a small bug from one either.
#
# None of this says that approximations are useless. A model can be trained with a window, and then the window
# is the right answer. It says that they compute another function, and that this is visible. Flash attention
# computes the same one.
#
# ## The trap: nothing minus nothing
#
# So far every block held at least one finite score. Masks change that. A key that a query must not see gets
# the score $-\infty$, so that its exponential is 0. Usually all goes well: $e^{-\infty - m} = 0$ for a finite
# $m$. Below is one row, in two blocks, of which one is masked completely. The row is computed twice: in one
# order and in the other. We have just learned that the order is irrelevant. What do you expect?

# %%
def careless_sum(blocks):
    m, l = -np.inf, 0.0
    for block in blocks:
        m_new = max(m, block.max())
        l = l * np.exp(m - m_new) + np.exp(block - m_new).sum()
        m = m_new
    return l


# %%
seen, masked = np.array([1.0, 2.0]), np.array([-np.inf, -np.inf])
with np.errstate(invalid="ignore"):  # NumPy would warn
    print("masked block last: ", careless_sum([seen, masked]))
    print("masked block first:", careless_sum([masked, seen]))

# %% [markdown]
# When the masked block comes first, nothing has been seen before it and nothing is seen in it. The maximum
# stays at $-\infty$, and the code evaluates $e^{m - m'}$ with both at $-\infty$. In IEEE arithmetic
# $-\infty - (-\infty)$ is NaN, and from then on NaN is multiplied into everything, including the good block
# that follows.
#
# The bug hides well. In causal attention, every query sees key 0, so the first block is never wholly masked,
# and all tests are green. Then somebody adds a sliding window or padding on the left, or more queries than
# keys, and the first block of some rows is empty.
#
# The cure is not to invent a large negative number in place of $-\infty$. Try that, with a row that sees no
# key at all, whose output this course defines to be 0:

# %%
values = np.array([[1.0], [2.0], [6.0]])
nothing_visible = np.full((1, 3), -np.inf)
pretended = np.full((1, 3), -1e9)
print("with -inf:", (stable_softmax(nothing_visible) @ values).item())
print("with -1e9:", (stable_softmax(pretended) @ values).item(), "which is the mean of the values")

# %% [markdown]
# With $-10^9$ everywhere the masked keys are all equal, hence all equally visible. No NaN, no warning, a
# wrong number. The right cure is to say what is meant: subtract the maximum where there is one, and 0 where
# there is none. Then $e^{-\infty - 0} = 0$, both for the factor and for the masked scores, and the state
# stays the empty one. `merge_states` meets the same situation when both of its arguments are empty, and the
# final division meets it as $0/0$. You will write these guards in the exercise.
#
# ## How the maxima of a real model move
#
# For random scores we found that new maxima are rare. A trained model's scores are not random: it has learned
# to look at certain keys, and these may come late. Here is what the rows of a real head do when the keys arrive
# in blocks of 32. Before you run it: most queries of this head give their largest score to the token after
# them, as chapter 1 counted. Where in a map of queries and blocks do you expect the factors that are not 1?

# %%
def moves(s, block):
    """Running maxima and correction factors, (blocks, R) both, when the keys of s (R, N) arrive in blocks."""
    m = np.maximum.accumulate([s[:, j : j + block].max(axis=1) for j in range(0, s.shape[1], block)])
    old = np.vstack((np.full((1, len(s)), -np.inf), m[:-1]))
    return m, np.exp(old - m)


# %%
m, alpha = moves(s, 32)
moving_maxima(m, alpha, 32, rows=(20, 130, 250))

# %% [markdown]
# The map has a diagonal: a query's maximum jumps when its own block of keys arrives, sometimes by a factor
# close to 0, which wipes out nearly all that was added before. Queries at the end of the text carry a wrong
# maximum through most of the run, and it does them no harm.
#
# Are there more new maxima in this order than in a random one, or fewer? The next cells count them, for head 10
# of the same layer too, and for two other orders of the keys: shuffled, and reversed.

# %%
def new_maxima(s):
    return 1 + (moves(s, 32)[1][1:] < 1).sum(axis=0).mean()


# %%
n, random = len(layer.tokens), np.random.default_rng(3)
expected = sum(min(32, n - j) / min(j + 32, n) for j in range(0, n, 32))  # keys of the block / keys so far
rows = [("any order equally likely", "", f"{expected:.2f}", "", "")]
for head in (8, 10):
    s = layer.q[head] @ layer.k[head].T / np.sqrt(np.float32(32))
    shuffled = np.mean([new_maxima(s[:, random.permutation(n)]) for _ in range(50)])
    moved = new_maxima(s), shuffled, new_maxima(s[:, ::-1])
    rows.append((f"head {head}", *(f"{x:.2f}" for x in moved), f"{(s.argmax(axis=1) == 0).mean():.0%}"))
table(["", "in order", "shuffled", "reversed", f"queries that look most at {layer.tokens[0]}"], rows)

# %% [markdown]
# The numbers are new maxima for each row, in 9 blocks. The first line is what one expects when every order of
# the keys is equally likely: a block holds the largest score so far with a probability of its own keys over all
# keys so far, which is $1 + \frac12 + \dots + \frac18$ and a little for the last block, which is short.
# Shuffled, both heads behave like that. In order, there are *fewer* new maxima, and in head 10 there are hardly
# any: nearly all of its queries give their largest score to the very first token, a marker that BERT puts in
# front of every text. (Clark et al. 2019, section 3.2, suspect that a head of BERT looks at such markers where
# it finds nothing to do.) It comes in the first block, the maximum is right from the start, and all
# factors are 1.
#
# Read backwards, the same head is the worst case. The token that nearly every query wants comes last:

# %%
q, k, v = layer.q[10], layer.k[10], layer.v[10]
_, alpha = moves((q @ k.T / np.sqrt(np.float32(32)))[:, ::-1], 32)
print(f"last block: the maximum rises for {(alpha[-1] < 1).mean():.0%} of the queries")
print(f"the median factor is {np.median(alpha[-1]):.2f}")
bound, _ = attention_bounds(q, k, v, block_k=32)
print(f"error / bound: in order {bound.ratio(online_attention(q, k, v, 32)):.3f}, "
      f"reversed {bound.ratio(online_attention(q, k[::-1], v[::-1], 32)):.3f}")

# %% [markdown]
# And it makes no difference to the result, which is the point of this chapter.
#
# ## Whose idea this is
#
# Three papers, and each did something else.
#
# Milakov and Gimelshein (2018, NVIDIA) gave the running maximum and the running sum: softmax's normalizer in
# one pass instead of two, to save memory accesses. They also state the merge of two pairs $(m, l)$, and that
# it is associative and commutative. Their paper is about softmax, for instance over a large vocabulary, and
# not about attention: there is no $o$ in it.
#
# Rabe and Staats (2021, Google) brought it to attention: the output is accumulated undivided along with the
# sum, so that one query needs memory that does not grow with the number of keys. They showed that the
# quadratic memory of attention is unnecessary, and their implementation runs at about the speed of the
# ordinary one. They wanted memory, and they got memory.
#
# Dao, Fu, Ermon, Rudra and Ré (2022) saw that the same recurrence, arranged so that each block stays in a
# GPU's on-chip memory, also saves the *traffic* of chapter 1, and that this makes attention faster and not
# merely smaller. They wrote the kernel, counted its memory accesses, and did the backward pass. That is
# FlashAttention, and the next chapter builds it.
#
# ## What you can now explain
#
# Why a running maximum that turns out too small does no harm, and what repairs it. Why the output may be
# accumulated before the denominator is known. Why the pieces may be merged in any order, which laws hold to
# the bit and which up to rounding. What "exact" claims, how it is tested, and why a fixed tolerance tests
# something else. Why a masked first block is a trap and a masked last one is not.
#
# ## Now you
#
# Open [exercises/02_softmax_without_the_row](../exercises/02_softmax_without_the_row.ipynb). You write `update_normalizer`, `merge_states` and
# `online_attention`.
#
# ## Where to read more
#
# - Milakov, Gimelshein, *Online normalizer calculation for softmax*, 2018 (arXiv 1805.02867): section 3 and,
#   for the merge, 3.1.
# - Rabe, Staats, *Self-attention Does Not Need O(n²) Memory*, 2021 (arXiv 2112.05682): sections 2 and 3, and
#   section 4 for chunks that are merged.
# - Dao, Fu, Ermon, Rudra, Ré, *FlashAttention*, 2022 (arXiv 2205.14135): section 3.1.
# - Higham, Mary, *A New Approach to Probabilistic Rounding Error Analysis*, SIAM J. Sci. Comput. 2019, for the
#   square roots in the bound.
# - Clark, Khandelwal, Levy, Manning, *What Does BERT Look At?*, 2019 (arXiv 1906.04341): what heads do with
#   the markers.
