# %% [markdown]
# # 4. A real kernel in Triton
#
# You have the algorithm, and NumPy executes it one tile after the other. A GPU executes hundreds of tiles at
# the same time, in an order that nobody promises. **What has to be said in addition, so that a tile of the
# algorithm becomes a program of which a GPU can run thousands?**
#
# Begin with a small kernel, a softmax over the rows of a matrix. You need not know Triton to read it: it is
# the body of a loop over the rows, in which `tl` stands where NumPy's `np` would. The loop itself is gone.
# Many copies of the body, called *programs*, are started, and each asks for its number. (`first` and `step`
# are ours. They decide which program takes which row.) Rows have 6 elements, and a program works on 8 at
# once, because Triton wants powers of two; what lies beyond the row is loaded as $-\infty$, which `exp` turns
# into 0.
#
# (This chapter needs Triton, which exists for Linux only. It needs no GPU.)

# %%
import flashedu.kernels  # before Triton: without a GPU this switches Triton's interpreter on

DEVICE = flashedu.kernels.DEVICE
places = {"cuda": "on the GPU", "cpu": "on the CPU, in Triton's interpreter", None: "nowhere: Triton is not installed here, and this chapter needs it"}
print("kernels run", places[DEVICE])

# %%
import math

import numpy as np
import torch
import triton
import triton.language as tl

# %%
from flashedu.bench import contenders, speed
from flashedu.exactness import attention_bounds, softmax_bound
from flashedu.hardware import gpu
from flashedu.kernels import compiled, flash_attention
from flashedu.kernels.tiles import FORWARD, Tile, padded, pick, precision
from flashedu.results import load
from flashedu.viz.errors import against_bound
from flashedu.viz.kernels import CONTENDERS, memory_strip, speeds, what_fits
from flashedu.viz.table import table
from flashedu.viz.tiles import tile_map


# %%
@triton.jit
def careless_softmax(x_ptr, y_ptr, n, first, step, BLOCK: tl.constexpr):
    row = first + step * tl.program_id(0)  # the row of this program
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + columns, mask=columns < n, other=float("-inf"))
    p = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * n + columns, p / tl.sum(p, axis=0))


# %% [markdown]
# One line of it is wrong. The next cell runs five programs on five rows and judges the result by what
# rounding allows. Then it runs the same programs on the same rows, but program 0 takes the last row and
# program 4 the first. **What do you expect of the first run, and of the second?**

# %%
x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0)).to(DEVICE)
room = torch.full((38,), 7.0, device=DEVICE)
y, neighbour = room[:30].view(5, 6), room[30:]  # two tensors, side by side in memory
for order, first, step in (("upwards  ", 0, 1), ("downwards", 4, -1)):
    room.fill_(7.0)
    careless_softmax[(5,)](x, y, 6, first, step, BLOCK=8)
    ratio = softmax_bound(x.cpu().numpy()).ratio(y.cpu().numpy())
    print(f"{order}: {ratio:,.2f} of what rounding allows; the neighbour holds {neighbour.tolist()}")

# %%
print("the second result:")
print(y.cpu().numpy().round(3))

# %% [markdown]
# On a CPU, where the programs run one after the other, the first run is right in all of `y`, and the second
# is wrong far beyond anything that rounding could do, although not a line of the kernel has changed. The
# neighbouring tensor is damaged by both. The picture shows why.

# %%
memory_strip(5, 6, 8)

# %% [markdown]
# The load has a mask and the store has none. Each program writes 8 elements, the last two of which belong to
# the next row; they are the zeros from the padding. Upwards, the next program comes later and writes its own
# row over them, so that the damage is repaired by the victim, except behind the last row. Downwards, the
# victim has been there before, and stays damaged.
#
# On a GPU both orders happen, and neither can be relied on. Programs run in parallel, their writes arrive
# when they arrive, and such a kernel may be right in a hundred runs and wrong in the next. That is a *race*.
# An interpreter that runs programs in one fixed order cannot show it. (The checks of this course put your
# tensors between guard bands. There the damage behind the last row shows, in whatever order the programs
# ran.) The rest of this chapter makes the kernel of chapter 3 in such a way that no program ever needs to
# know what the others do.
#
# ## Program, tile, pointer, mask
#
# Four words, and you have met all of them. A *program* is one copy of the body; `tl.program_id(0)` is its
# number, and the launch `kernel[grid](x, y, ...)` says how many there are. A *tile* is what it computes with,
# an array whose shape is known when the kernel is compiled and whose sides are powers of two. Triton decides
# which thread of the GPU holds which element, and you never see a thread. A *pointer* is an address: the
# kernel gets the address of a tensor's first element, and `x_ptr + row * n + columns` is a whole tile of
# addresses, one for each element. And a *mask* says which of them may be touched. A masked load gives `other`
# where the mask is false. A masked store leaves memory alone there.
#
# The interpreter cannot do much for a program without masks: a load from an address that does not exist ends
# the Python process, as it would end any C program. So the experiment above kept its mistake inside of
# `room`.
#
# Here is the package's softmax. Three things distinguish it from the careless one, besides its mask: the
# arithmetic is float32, whatever the type of `x`; a row of $-\infty$ gives zeros instead of NaN, as in
# chapter 1; and there are strides.

# %%
# include: flashedu.kernels.softmax:softmax_kernel


# %%
# include: flashedu.kernels.softmax:triton_softmax


# %% [markdown]
# The function that starts the kernel, the *launcher*, is ordinary Python. It allocates the result, chooses
# the tile, and sets the grid: one program a row. `BLOCK_N` is a `tl.constexpr`, a number that must be known
# when the kernel is compiled; for another value the kernel is compiled anew. `num_warps` says how many
# groups of 32 threads, called *warps*, share a program.
#
# *Strides* are how torch finds an element: `x[i, j]` lies `i * x.stride(0) + j * x.stride(1)` elements behind
# `x[0, 0]`. A transposed view has the same memory and other strides, so a kernel that uses them needs no copy
# of anything. Below, `x.T` is a matrix of columns as far as memory is concerned.

# %%
x = torch.randn(40, 300, generator=torch.Generator().manual_seed(1)).to(DEVICE)
x[3] = float("-inf")
for name, z in (("x", x), ("every third column", x[:, ::3]), ("x.T", x.T), ("x.T in float16", x.T.half())):
    u = {torch.float32: 2.0**-24, torch.float16: 2.0**-11}[z.dtype]
    bound = softmax_bound(z.float().cpu().numpy(), u=u)
    ratio = bound.ratio(triton_softmax(z).float().cpu().numpy())
    print(f"{name:20} strides {z.stride()!s:9}: {ratio:.3f} of what rounding allows")

# %% [markdown]
# ## A tile of a matrix
#
# Attention needs tiles with two sides: rows of Q, K or V, which are `D` numbers wide. Three small functions
# do all the traffic between GPU memory and programs. A function under `@triton.jit` can be called by another
# one, and is then compiled into it. The first makes addresses, and says which of them are inside the matrix:

# %%
# include: flashedu.kernels.memory:tile_pointers


# %% [markdown]
# `[:, None]` makes a column and `[None, :]` a row, as in NumPy, and their sum is the tile of addresses. With
# these, load and store are short.

# %%
# include: flashedu.kernels.memory:load_tile


# %%
# include: flashedu.kernels.memory:store_tile


# %% [markdown]
# Two masks, for two kinds of raggedness. The last tile of *rows* reaches past `n` when the length is not a
# multiple of the tile. What is loaded there is 0, and that is not politeness. A probability of 0 times
# whatever was in memory should be 0; but if it was NaN or infinite, then it is NaN. The *columns* reach past
# `D` when the head dimension is no power of two. There the zeros add nothing to a score, but they are
# multiplied all the same, and that is wasted work. How much?

# %%
dims = (8, 16, 40, 64, 80, 96, 128, 160, 256)
table(["head dimension", *dims], [("width of the tile", *(padded(d) for d in dims)),
                                  ("multiplications wasted", *(f"{1 - d / padded(d):.0%}" for d in dims))])

# %% [markdown]
# (At least 16, because that is the least number of terms over which Triton lets a product of 16-bit numbers
# sum.) A kernel could do better by cutting 80 into 64 and 16. This one does not.
#
# The comments mention 64 bits. An offset is a product of a number and a stride, and Triton gives integer
# arguments that fit into 32 bits the type int32. What is $60000 \cdot 60000$? Guess the first digit.


# %%
@triton.jit
def offsets(out_ptr, row, stride):
    tl.store(out_ptr, row * stride)
    tl.store(out_ptr + 1, row.to(tl.int64) * stride)


# %%
out = torch.zeros(2, dtype=torch.int64, device=DEVICE)
offsets[(1,)](out, 60000, 60000)
print("in 32 bits {:,}, in 64 bits {:,}".format(*out.tolist()))
row_stride = 3 * 32 * 128  # q, k and v of 32 heads of 128, as one projection makes them, token after token
print(f"with {row_stride:,} elements a token, an int32 offset fails at token {-(-(2**31) // row_stride):,}")

# %% [markdown]
# The sign is the first digit. Nothing complains: the product wraps around, the kernel adds a negative offset
# to a pointer, and reads or writes memory hundreds of millions of elements *before* the tensor. Such a
# mistake passes every test with small tensors and waits for a long context or a large batch. So starts of
# rows, heads and batch entries are made int64 before they are multiplied.
#
# ## One program of flash attention
#
# One program owns a tile of queries, walks over the keys and keeps the state $(m, l, o)$ of its rows. That
# is chapter 3's inner loop; $o$, as long as it has not been divided by $l$, is again called `acc`, the
# *accumulator*. Two changes have to do with hardware.
#
# A GPU has an instruction for powers of two and none for powers of $e$. Since
#
# $$e^{x} = 2^{x \log_2 e},$$
#
# `exp` is a multiplication and an `exp2`. Every score is multiplied by `scale` anyway, so $\log_2 e$ goes
# into that factor and costs nothing. From then on $m$ is a maximum in base 2, and it is multiplied by $\ln 2$
# once, at the end, when lse is written.
#
# The other change concerns types. With 16-bit inputs $P$ is rounded to 16 bits, because the matrix units
# multiply 16-bit tiles, and the second product is $P V$. But its sums, and $l$ and $m$, are float32. Here is
# a program in NumPy, in the symbols of the kernel, with two things left open: how tiles are multiplied, and
# the type in which the output is accumulated.


# %%
def one_program(q, k, v, product=np.matmul, accumulator=np.float32, block_k=64):
    scale_log2 = np.float32(q.shape[1] ** -0.5 * math.log2(math.e))
    m, l, acc = np.float32(-np.inf), np.float32(0), np.zeros((len(q), v.shape[1]), accumulator)
    for j in range(0, len(k), block_k):
        s = product(q, k[j : j + block_k].T)  # (block_q, block_k)
        m_new = np.maximum(m, s.max(axis=1, keepdims=True) * scale_log2)
        alpha, p = np.exp2(m - m_new), np.exp2(s * scale_log2 - m_new)
        l = l * alpha + p.sum(axis=1, keepdims=True)
        acc = (acc * alpha + product(p, v[j : j + block_k])).astype(accumulator)
        m = m_new
    return acc / l


# %% [markdown]
# What happens if the output is accumulated in float16? Each tile of keys then rounds it to 11 significant
# bits. One program, a tile of 64 queries; the values have a mean of 1. First everything else is float32. Then
# q, k, v and $P$ are rounded to float16 before each product, as on a matrix unit, and the error is compared
# with what *that* rounding allows, which is a lot more. In which of the two cases will the check notice?


# %%
def in_float16(a, b):
    return a.astype(np.float16).astype(np.float32) @ b.astype(np.float16).astype(np.float32)


# %%
rows = []
for n in (256, 1024, 4096):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((m, 64), dtype=np.float32) for m in (64, n, n))
    v += 1
    row = [f"{n:,} keys"]
    for dtype, product in (("float32", np.matmul), ("float16", in_float16)):
        bound, _ = attention_bounds(*(x.astype(dtype).astype(np.float32) for x in (q, k, v)), dtype=dtype)
        for kind in (np.float32, np.float16):
            row.append(f"{bound.ratio(one_program(q, k, v, product, kind).astype(dtype)):.2f}")
    rows.append(row)
table(["", *(f"{t} inputs, {acc} sums" for t in ("float32", "float16") for acc in ("float32", "float16"))], rows)

# %% [markdown]
# With float32 inputs the mistake stands out at any length. With float16 inputs it hides behind the rounding
# of $P$ for a while, and is found when there are tiles enough. (Take `v += 1` away and run the cell again:
# then it hides altogether.) That is a rule for testing kernels: look for mistakes of logic and of
# accumulation with float32 inputs, where rounding leaves them nowhere to hide, and use 16-bit inputs to
# test what only they have. With float32 sums the error stays well below 1 in both.
#
# Now the real one. `attend` takes the keys from `start` to `stop` into the state. Read it next to
# `one_program`. What is new is `MASKED`, a constant again: the compiler makes two versions of the loop, one
# of which has no comparison in it at all.

# %%
# include: flashedu.kernels.forward:attend


# %% [markdown]
# `p.to(v.dtype)` is the rounding of $P$. The third argument of the second `tl.dot` is what the product is
# added to, `acc * alpha`, in float32. `safe` is chapter 2's NaN trap: as long as a row has seen no key, its
# maximum is $-\infty$, and $-\infty - (-\infty)$ is NaN. It can happen in masked tiles only, so the unmasked
# loop does not pay for it. And what is `num_stages`? The compiler starts loads some rounds of a loop ahead,
# so that they arrive while the present tile is being multiplied. That takes shared memory for several tiles,
# and is not worth it in a loop of two or three rounds.
#
# The kernel around it finds out which tile of which head it is, loads its queries, and decides how far to
# walk.

# %%
LN2 = tl.constexpr(math.log(2))  # a kernel reads a global variable only if it is such a constant


# %%
# include: flashedu.kernels.forward:forward_kernel


# %% [markdown]
# Follow the pointers first. The program's number gives the head and the first row, `i0`. Moving `q_ptr` to
# the head is one addition, and from there on the rest of the kernel deals with one matrix. With *grouped
# queries* `group` query heads read the same keys. That is the division `h // group`, and nothing else. No
# key is copied. (The strides within a matrix are constants: from them `tile_pointers` decides, when the
# kernel is compiled, how wide its offsets must be.)
#
# Then the bounds. Keys before `whole` are visible to every row and need no mask, keys after `stop` are
# visible to none. In between, a mask decides. Here are both for a ragged causal example: 200 queries and 300
# keys in tiles of 64. How many tiles does each program visit, and how many of those in the masked loop?

# %%
n_q, n_k, block_q, block_k = 200, 300, 64, 64
rows = []
for i0 in range(0, n_q, block_q):
    whole = min(n_k // block_k, max(0, i0 + n_k - n_q + 1) // block_k)  # in tiles
    stop = -(-min(n_k, i0 + block_q + n_k - n_q) // block_k)
    rows.append((f"{i0} to {min(i0 + block_q, n_q) - 1}", whole, stop - whole, -(-n_k // block_k) - stop))
table(["queries", "whole tiles", "masked tiles", "skipped tiles"], rows)

# %%
tile_map(n_q, n_k, block_q, block_k, causal=True)

# %% [markdown]
# The picture and the table agree, and the skipped tiles are where a causal mask saves time. (The picture
# marks the tiles that the diagonal crosses. The kernel also masks the last, ragged tile of keys, whether or
# not the diagonal crosses it.) Kernels with the right mask and the wrong bounds are a common mistake, and an
# insidious one: if `stop` is too large the result is right and the time is wasted; if it is too small, keys
# are missing.
#
# The last tiles of a head see the most keys, so they are started first. On a GPU the programs with little to
# do then fill the gaps at the end, instead of everybody waiting for one that began late.
#
# ## Three layers
#
# The kernel is the first layer. The second, its launcher, has nothing to compute. It allocates, chooses a
# tile from a table, and passes on strides.

# %%
# include: flashedu.kernels.forward:flash_forward


# %% [markdown]
# Does it work? The next cells define inputs, and the ratio that everything in this course is judged by, on
# torch's layout (batch, heads, tokens, head dimension). Sizes are small in the interpreter, where a tile
# takes milliseconds, and larger on a GPU.

# %%
n = 2048 if DEVICE == "cuda" else 256


# %%
def inputs(n_q, n_k, d, heads=2, kv_heads=1, dtype=torch.float32):
    random = torch.Generator().manual_seed(0)
    shapes = (1, heads, n_q, d), (1, kv_heads, n_k, d), (1, kv_heads, n_k, d)
    return [torch.randn(shape, generator=random).to(DEVICE, dtype) for shape in shapes]


# %%
def used(o, q, k, v, causal=False):
    """The largest error of o, as a part of what rounding allows."""
    bound, _ = attention_bounds(*(x.float().cpu().numpy() for x in (q, k, v)), causal=causal, dtype=q.dtype)
    return bound.ratio(o.float().cpu().numpy())


# %%
cases = [
    ("square", (n, n, 64), {}, False),
    ("causal", (n, n, 64), {}, True),
    ("ragged, causal, more keys than queries", (n - 57, n + 45, 64), {}, True),
    ("one query", (1, n, 64), {}, True),
    ("rows that see no key", (100, 30, 64), {}, True),
    ("head dimension 80", (100, 100, 80), {}, False),
    ("8 query heads, 2 key heads", (64, 64, 64), {"heads": 8, "kv_heads": 2}, False),
    ("float16", (n, n, 64), {"dtype": torch.float16}, True),
]

# %%
rows = []
for name, sizes, more, causal in cases:
    q, k, v = inputs(*sizes, **more)
    o, lse = flash_forward(q, k, v, causal)
    empty = int((lse == -math.inf).sum())
    rows.append((name, *sizes, f"{used(o, q, k, v, causal):.3f}", empty))
table(["case", "queries", "keys", "D", "error / bound", "rows with lse = -inf"], rows)

# %% [markdown]
# Every error is explained by rounding, and with float32 inputs it stays far from that limit. (The 140 rows
# are those of two heads: of 100 queries only the last 30 see a key.) And strides? In a model q, k and v are
# slices of the output of one linear layer, which has the heads *inside* of a token. Nothing is copied to
# make them look like (batch, heads, tokens, D):

# %%
qkv = torch.randn(1, 100, 3, 2, 64, generator=torch.Generator().manual_seed(0)).to(DEVICE)
q, k, v = qkv.transpose(1, 3).unbind(2)  # (1, 2, 100, 64) each
o, _ = flash_forward(q, k, v)
print(f"strides of k {k.stride()}, contiguous: {k.is_contiguous()}")
print(f"same memory as qkv: {k.untyped_storage().data_ptr() == qkv.untyped_storage().data_ptr()}")
print(f"{used(o, q, k, v):.3f} of what rounding allows")

# %% [markdown]
# The third layer teaches torch what the gradient is. Without it the kernel would be a dead end: torch
# cannot see into it, so nothing before it could be trained. It is a `torch.autograd.Function`, a pair of
# functions, forward and backward. Between the two it keeps q, k, v, o and lse: no matrix of scores, and no
# probabilities. How the gradients can be had without them is the subject of chapter 5, which shows this
# layer.
#
# What users call is `flash_attention`, which checks its arguments, says in one sentence what is wrong with
# them, and chooses where to compute.

# %%
q, k, v = inputs(64, 64, 32)
print(f"{used(flash_attention(q, k, v, backend='triton'), q, k, v):.3f} of what rounding allows")
try:
    flash_attention(q, k[..., :16], v)
except ValueError as error:
    print(f"ValueError: {error}")

# %% [markdown]
# ## float32 that is not float32
#
# One argument of the kernel has not been mentioned. `input_precision` says how float32 tiles are multiplied,
# and Triton's default is not what you would expect. The matrix units of a GPU, the *tensor cores*, do not
# take float32. What they take is called TF32: it has the exponent of float32, but of its 23 bits of fraction
# only the first 10. That is as many as float16 has. Unless it is told otherwise, `tl.dot` gives float32 tiles
# to the tensor cores as TF32.
#
# The interpreter ignores the argument and multiplies in float32, so we imitate it. To round to 10 bits of 23,
# add half of the last bit that is kept, and clear the 13 others. (A GPU may also simply cut them off, which
# is no better.) What would a test say that compares outputs with a tolerance of 0.01, as many do? And what
# does ours?


# %%
def tf32(x):
    bits = x.view(np.uint32) + np.uint32(2**12)
    return (bits & np.uint32(2**32 - 2**13)).view(np.float32)


# %%
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((m, 64), dtype=np.float32) for m in (64, 256, 256))
bound, _ = attention_bounds(q, k, v)
ways = {"ieee": np.matmul, "tf32": lambda a, b: tf32(a) @ tf32(b)}
outputs = {name: one_program(q, k, v, product) for name, product in ways.items()}
for name, o in outputs.items():
    error = np.abs(o - bound.exact).max()
    print(f"{name}: largest error {error:.1e}, {bound.ratio(o):.2f} of what rounding allows")
against_bound({name: bound.errors(o) for name, o in outputs.items()})

# %% [markdown]
# A tolerance of 0.01 does not notice. The bound does, since it asks what float32 could have done. The cure is
# `input_precision="ieee"`, which the package takes unless torch has been told that TF32 is welcome, by
# `torch.set_float32_matmul_precision("high")`. On a GPU you can see the real thing:

# %%
if DEVICE == "cuda":
    q, k, v = inputs(256, 256, 64)
    for setting in ("high", "highest"):  # TF32 is allowed; it is not
        torch.set_float32_matmul_precision(setting)
        ratio = used(flash_attention(q, k, v, backend="triton"), q, k, v)
        print(f"{setting:7}: {ratio:.2f} of what rounding allows")
else:
    print("this cell needs a GPU: the interpreter multiplies in float32 whatever it is told")

# %% [markdown]
# ## What the interpreter cannot show
#
# If you have no GPU, all of the above ran in the interpreter, where each operation of each program is a call
# of NumPy. It is the right tool for logic: masks, bounds, offsets, types, the order of things. Know what it
# hides. Races, because programs run one after the other. TF32, because products are float32. bfloat16
# products are simply wrong in it, in all versions that we tried (3.6 to 3.9), so `flash_attention` widens
# bfloat16 to float32 there. A masked load without `other` gives 0, where a GPU may give anything. A `break`
# in a loop works, and the compiler refuses it. And nothing in it is about speed, registers or shared memory.
#
# The last point can be had without a GPU all the same.
#
# ## What the kernel becomes
#
# What decides whether a kernel can be launched, and much of what decides its speed, is settled by two
# compilers: Triton's own, and NVIDIA's assembler. Both run on any Linux machine, with or without a GPU.
# `compiled.forward` asks them what `forward_kernel` becomes on a GPU of a given *compute capability*: 8.0 is
# the A100 (sm_80), 9.0 the H100 and H200, 10.0 the B200. The question takes a few seconds. Inputs are
# bfloat16, $D = 128$, with a causal mask.

# %%
def report(kernel):
    tile = f"{kernel.constants['BLOCK_Q']}&nbsp;x&nbsp;{kernel.constants['BLOCK_K']}"
    shared = f"{kernel.shared_bytes:,} of {kernel.shared_limit_bytes:,}"
    return tile, kernel.num_warps, kernel.num_stages, shared, kernel.registers, f"{kernel.spill_bytes:,}"


# %%
COLUMNS = ["tile", "warps", "stages", "shared bytes of a block", "registers of a thread", "spilled bytes"]
kernels = {name: compiled.forward(capability, causal=True)
           for name, capability in (("A100 (sm_80)", 80), ("H100, H200 (sm_90)", 90), ("B200 (sm_100)", 100))}
rows = [(name, *report(kernel), f"`{kernel.matrix_instruction}`") for name, kernel in kernels.items()]
table(["", *COLUMNS, "products became"], rows)

# %% [markdown]
# One Python function, three machine programs. The same `tl.dot` has become three different instructions.
# `mma.sync` belongs to a warp of 32 threads, and takes its operands from registers. `wgmma` belongs to four
# warps, reads its operands, or at least the second, from shared memory, and works in the background. With
# `tcgen05` even the accumulator has left the registers and lives in a memory of its own. The tiles differ,
# too: the package has a table of them, by the size of an element, the head dimension and the shared memory.
#
# *Registers* are where a thread keeps its numbers. A thread can have 255 at the most, and all threads of a
# multiprocessor share 65,536 of them. Do the accounts for a tile of 128 queries and 128 keys with $D = 128$
# and 8 warps. The accumulator and the scores have $128 \cdot 128$ elements each, and 256 threads hold them:

# %%
for warps in (4, 8):
    each = 128 * 128 // (32 * warps)
    print(f"{warps} warps: {each} registers a thread for acc, {each} for s, {255 - 2 * each} left for all else")

# %% [markdown]
# When there are not enough registers, numbers are parked in memory and fetched again. This is called
# *spilling*, and in an inner loop it is poison. Here are five tiles for an H100. Which of them will spill,
# and what would you change about it?

# %%
tiles = [Tile(64, 64, 4, 2), Tile(128, 64, 8, 2), Tile(128, 128, 4, 2), Tile(128, 128, 8, 2), Tile(128, 128, 8, 3)]
moved = [compiled.forward(90, causal=True, **tile._asdict()) for tile in tiles]
table(COLUMNS, [report(kernel) for kernel in moved])

# %%
print(*(warning for kernel in moved for warning in kernel.warnings), sep="\n")

# %% [markdown]
# The tile of 128 x 128 with 4 warps is the one that the accounts rule out. It spills, and the assembler warns
# that its matrix instructions must wait for each other. With 8 warps twice as many threads share the same
# tile. A further stage costs shared memory: one more tile of keys and one of values on their way.
#
# A tall tile of queries means fewer passes over the keys, as chapter 3 has counted; its size is limited by
# registers and by shared memory, and the second limit depends on the GPU. Which of the kernels in the next
# cell can be launched? The T4 has compute capability
# 7.5 and no bfloat16, so this is float16. For it we take one stage, the least there can be, and many warps.
# (On a T4 every multiplication is written out for each thread, and with few threads the compiler would need
# minutes.)

# %%
asked = [
    *(("T4", 75, tile) for tile in (Tile(64, 32, 16, 1), Tile(128, 64, 32, 1))),
    *(("RTX 4090", 89, tile) for tile in (Tile(128, 64, 8, 2), Tile(128, 128, 8, 3))),
    ("A100", 80, Tile(128, 128, 8, 3)),
    ("H100", 90, Tile(128, 128, 8, 3)),
]
found = [(name, compiled.forward(capability, dtype="float16", causal=True, **tile._asdict()))
         for name, capability, tile in asked]
what_fits(found)

# %%
rows = [(name, *report(kernel), f"`{kernel.matrix_instruction}`") for name, kernel in found]
table(["GPU", *COLUMNS, "products became"], rows)

# %% [markdown]
# A tile of 128 x 64 asks a T4 for more shared memory than it has, and the launch would fail, with an error that
# names the two numbers. But look at the last columns as well. The tile that fits is multiplied with `fma`, one
# number at a time, and it spills. The T4 does have tensor cores, but since version 3.3
# Triton's compiler uses them from compute capability 8.0 on only. Therefore the package has a tile for the
# T4 that runs, and no claim that it is fast.
#
# `fma` is also the price of `"ieee"`. Float32 products that are really float32 do not run on tensor cores:

# %%
exact = compiled.forward(80, dtype="float32")
print(f"float32 on sm_80: {exact.counts['fma']:,} fma, {exact.counts['mma.sync']} mma.sync in the code")

# %% [markdown]
# ## How fast is it?
#
# Compilers do not tell. This takes a GPU, and care in comparing. A GPU that works hard gets hot, reaches
# its power limit and slows down, so a time from one day says little beside a time from another.
# `python -m flashedu bench` therefore times all contenders in turn, in several rounds, and in the same
# rounds a plain product of two large bfloat16 matrices. What is plotted is the share of *that* rate: what
# this GPU can do with its matrix units under the same conditions.
#
# The contenders are the kernel of this chapter (through `flash_attention`), torch's three fused backends
# (its FlashAttention-2, cuDNN's attention, and the "memory-efficient" one), naive attention in separate
# operations, and on the H200, at two lengths, FlexAttention, for which torch generates a kernel. bfloat16,
# $D = 128$, a batch of 16,384 tokens in all, 16 heads. Without a GPU you see what was measured on an H200;
# with one, the next cells measure yours, which takes a few minutes at most. **Order them before you look,
# and guess which share of the matrix rate a kernel of a hundred lines of Python gets.**


# %%
def on_this_gpu(n, causal):
    product = contenders.matmul()
    names = [name for name in contenders.NAMES if name != "flex"]  # it would be compiled, for long
    return speed.measure_problem(n, 128, causal, names, 3, product, contenders.device_clock(product))


# %%
if DEVICE == "cuda":
    sizes = [(n, causal) for n in (1024, 4096, 16384) for causal in (False, True)]
    place, measured = torch.cuda.get_device_name(), [row for size in sizes for row in on_this_gpu(*size)]
else:
    result = load("h200_attention_speed")
    place, measured = result["environment"]["device"], result["rows"]
forward = [row for row in measured if row["direction"] == "forward" and row["head_dim"] == 128]
speeds(forward, f"{place}, forward, D = 128, bfloat16")

# %%
for causal in (False, True):
    longest = {row["contender"]: row for row in forward if row["n"] == 16384 and row["causal"] == causal}
    ours = longest["flashedu"]
    mask = "causal" if causal else "full"
    print(f"{mask}, 16,384 tokens: {ours['time_ms']:.2f} ms, {ours['of_matmul']:.0%} of the matrix rate")
    for name, row in longest.items():
        if name not in ("flashedu", "matmul"):
            ratio = f"{row['time_ms'] / ours['time_ms']:.2f} times our time" if "time_ms" in row else "could not run"
            print(f"    {CONTENDERS[name][0]:18}{ratio}")

# %% [markdown]
# (For a causal mask the FLOPs of the visible half are counted, for everybody, also for naive attention,
# which computes the other half too. At this length our kernel saves that half. On the H200 its time falls by
# slightly more than half, and rounds of the longer one differ by more than that. In short sequences it saves less,
# as chapter 3 counted.)
#
# On the H200 the kernel is well ahead of FlashAttention-2, which was written for the A100, and behind
# cuDNN's, which was written for the generation of the H200, Hopper. Naive attention is where chapter 1 left
# it, with S and P in memory. Our kernel has no such excuse: its traffic is small, and yet it does not reach the
# rate of a plain product. What is it waiting for? Count what it does besides multiplying. Each score needs
# an exponential, and an SM has far fewer units for these than for products.

# %%
h200 = gpu("H200")
for d in (64, 128, 256):
    exponentials, products = 1 / h200.exp_rate, 4 * d / h200.matmul_flops  # seconds for one score, nominal
    print(f"D = {d:3}: exponentials take {exponentials / products:.2f} of the time that the products take")

# %% [markdown]
# At the nominal rates of an H200 the exponentials alone take as long as both products at $D = 64$, and half
# as long at $D = 128$. In our loop a product, a softmax and a product follow one another, and each needs the
# result of the one before. While a program computes exponentials, its matrix units have nothing to do, unless
# another program on the same multiprocessor happens to need them; and a tile that takes nearly all shared
# memory leaves no room for another program. So it takes a kernel that computes the softmax of one tile
# *while* the products of the next are running. That is what the third FlashAttention does, and chapter 6
# writes it.
#
# ## What you can now explain
#
# What a program, a tile, a pointer and a mask are, and why a kernel whose store lacks a mask can pass every
# test in the interpreter. Where the two masks of a tile come from. What `exp2` has to do with $e$. Which sums
# must be float32, and with which inputs one finds out. How a causal kernel knows where to stop. Why a key
# head is not copied for its group, and a transposed tensor not copied at all. What TF32 is, and why a
# tolerance does not see it. What registers, spills and shared memory have to say about a tile.
#
# ## Now you
#
# Open [exercises/04_a_real_kernel](../exercises/04_a_real_kernel.ipynb). You write `triton_softmax` and
# `flash_forward`, kernel and launcher.
#
# ## Where to read more
#
# - Tillet, Kung, Cox, *Triton: an intermediate language and compiler for tiled neural network
#   computations*, MAPL 2019: sections 1 to 3.
# - The Triton documentation, *Tutorials*: *Vector Addition* and *Fused Softmax*, for the programming model.
# - Dao, *FlashAttention-2*, 2023 (arXiv 2307.08691): sections 3.1 and 3.2, the loop and its parallelism.
# - Dao, Fu, Ermon, Rudra, Ré, *FlashAttention*, 2022 (arXiv 2205.14135): appendix B, the same on paper, in full.
# - NVIDIA, *CUDA C++ Programming Guide*, *Compute Capabilities*: registers and shared memory, by capability.
