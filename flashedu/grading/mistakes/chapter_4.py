"""Mistakes of chapter 4, as edits of the package's kernels. A row: slug, the check that rejects it, the sentence, then edits (right, wrong)."""

# tiles (kernels/memory.py)
LOAD, LOAD_FULL, STORE = "mask=in_rows & in_columns, other=0.0", "if D < BLOCK_D:", "element_ty), mask=in_rows & in_columns)"
NO_LOAD_MASK = ("no-mask-on-load", "ragged keys", "The last tile is loaded past the end of its tensor. Give tl.load a mask, and other=0.0: without it what is read there is anything, and NaN times 0 is NaN.",
                (LOAD, "mask=in_columns, other=0.0"))
NO_STORE_MASK = ("no-mask-on-store", "guard bands", "The last tile is stored past the end of its tensor. Give tl.store the mask of the rows that exist. If it has one: is the grid too large, or are its axes exchanged?", (STORE, "element_ty), mask=in_columns)"))
PADDING_LOADED = ("padding-not-masked", "any head dimension", "A tile is wider than D when D is no power of two, and the columns past D belong to the next row. Mask them when loading.",
                  (LOAD, "mask=in_rows, other=0.0"), (LOAD_FULL, "if False:"))
PADDING_STORED = ("padding-stored", "guard bands", "A tile is wider than D when D is no power of two, and the columns past D belong to the next row. Mask them when storing.", (STORE, "element_ty), mask=in_rows)"))
LAST_STRIDE = ("last-stride-ignored", "any strides", "The elements of a row need not lie side by side: multiply the column numbers by the last stride, or make the inputs contiguous.",
               ("columns[None, :] * stride_d)", "columns[None, :])"))
CONTIGUOUS = ("assumes-contiguous", "any strides", "The strides of the inputs are not used. A transposed view has others than its shape suggests: pass x.stride(), or make the inputs contiguous.")
STRIDES_OF_K = ("strides-of-k-for-v", "each its own strides", "v is read with the strides of k. Every tensor has strides of its own: pass v.stride(), too.")
OTHER_DTYPE = ("float32-output", "dtype", "The result is float32 whatever the inputs are. Allocate it in the inputs' dtype.")
TORCH_DOES_IT = ("torch-does-it", "own kernel", "The result comes from torch, not from a kernel of yours.")
PACKAGE_DOES_IT = ("package-does-it", "own kernel", "The result comes from the package's kernel, not from one of yours.")
NO_SCALE = ("no-scale", "one key", "The scores are not divided by sqrt(D).", ("scale * math.log2(math.e)", "math.log2(math.e)"))
BASE = ("exp2-without-log2e", "one key", "exp2(x) is 2**x. For e**x multiply x by log2(e), once, together with the scale.", ("scale * math.log2(math.e)", "scale"))
TF32 = ("tf32", "GPU: float32", 'On a GPU tl.dot rounds float32 inputs to TF32, which keeps 11 significant bits. Pass input_precision="ieee".', ("precision()", '"tf32"'))
NO_BATCH = ("batch-ignored", "batch", "Every batch entry reads the keys and values of the first. Add b * stride_kb and b * stride_vb to the pointers.", ("b * stride_kb", "0 * stride_kb"), ("b * stride_vb", "0 * stride_vb"))
CAUSAL_IGNORED = ("causal-ignored", "causal", "The argument causal changes nothing.", ("CAUSAL=causal", "CAUSAL=False"))
WRONG_GROUP = ("wrong-group", "grouped queries", "Query head h reads key head h % Hkv. Neighbours share one: the key head is h // (H // Hkv).", ("h // group * stride_kh", "h % (heads // group) * stride_kh"), ("h // group * stride_vh", "h % (heads // group) * stride_vh"))
NO_GROUP = ("groups-ignored", "grouped queries", "Query head h reads key head h, which does not exist when queries are grouped. The key head is h // (H // Hkv).", ("h // group * stride_kh", "h * stride_kh"), ("h // group * stride_vh", "h * stride_vh"))
FIRST_HEAD = ("first-key-head", "heads", "Every head reads the keys and values of the first. Add the head's stride to the pointers.", ("h // group * stride_kh", "0 * stride_kh"), ("h // group * stride_vh", "0 * stride_vh"))

# softmax
GUARD, X_LOAD = 'tl.where(m == float("-inf"), 0.0, m)', 'mask=inside, other=float("-inf")'
IN_MAXIMUM = ("padding-in-the-maximum", "very low logits", "What lies past the row's end counts in the maximum: it is loaded as a number, and the row's own may all be lower. Load -inf there.")
MATRIX_GUARD = ("nan-guard-missing", "a row of -inf", "In a row of -inf the maximum is -inf and the sum is 0: -inf - (-inf) and 0 / 0 are NaN. Subtract 0 and divide by 1 there.")
LAUNCH = "    softmax_kernel[(m,)](x, y, n, *x.stride(), *y.stride(), BLOCK_N=block_n, num_warps=num_warps)\n"

# forward
RUNNING, SAFE, L_SAFE = "tl.maximum(m, tl.max(s, axis=1) * scale_log2)", 'tl.where(m_new == float("-inf"), 0.0, m_new)', "tl.where(l == 0.0, 1.0, l)"
KEEP_SUM, KEEP_OUTPUT = ("l * alpha + tl.sum", "l + tl.sum"), ("acc * alpha[:, None]", "acc")
VISIBLE = "visible = visible & (keys[None, :] <= rows[:, None] + offset)"
HIDE = 's = tl.where(visible, s, float("-inf"))'
STOP, WHOLE = "tl.minimum(n_k, i0 + BLOCK_Q + offset)", "i0 + offset + 1"
LSE = "(m + tl.log2(l_safe)) * LN2"
LSE_SIZE = "(batch, heads, n_q), dtype=torch.float32, device=q.device)"
ENDS_EARLY = ("loop-ends-early", "causal, more keys", "The loop over keys ends one key too early. The tile's last row is i0 + BLOCK_Q - 1, and it sees key i0 + BLOCK_Q - 1 + Nk - Nq itself, too.",
              (STOP, "tl.minimum(n_k, i0 + BLOCK_Q + offset - 1)"))
NOT_MASKED = ("tile-not-masked", "rows that see no key", "A tile with a hidden key was taken for one that needs no mask: without one go only tiles that end with key i0 + Nk - Nq, which the first row sees, or before it.",
              (WHOLE, "i0 + offset + 2"))

ROWS = {
    "triton_softmax": (
        ("no-mask-on-load", "ragged rows", "The row is loaded past its end. A tile is a power of two long, so mask what lies beyond the row, with other=-inf.", (X_LOAD + ")", "mask=columns >= 0)")),
        ("padded-with-0", "ragged rows", "What lies past the row's end is loaded as 0, and exp of it is counted. Load -inf there, which exp turns into 0.", (X_LOAD, "mask=inside, other=0.0")),
        (*IN_MAXIMUM, (X_LOAD, "mask=inside, other=0.0"), (f"p = tl.exp(x - {GUARD})", f"p = tl.where(inside, tl.exp(x - {GUARD}), 0.0)")),
        (*IN_MAXIMUM, (X_LOAD, "mask=inside, other=-1.0e4")),
        ("no-mask-on-store", "guard bands", "The tile is stored past the end of the row. tl.store needs a mask as tl.load does: columns < n.", (", mask=inside)\n\n", ")\n\n")),
        ("no-maximum", "large logits", "No maximum is subtracted, so exp overflows.", (f"x - {GUARD}", "x")),
        (*MATRIX_GUARD, (GUARD, "m")),
        (*MATRIX_GUARD, ("p / tl.where(l == 0.0, 1.0, l)", "p / l")),
        ("never-divided", "rows", "The exponentials were never divided by their sum.", ("p / tl.where(l == 0.0, 1.0, l)", "p")),
        ("exp2-without-log2e", "rows", "exp2(x) is 2**x. For e**x multiply x by log2(e).", ("tl.exp(", "tl.exp2(")),
        ("row-stride-ignored", "any strides", "A row need not begin n elements after the one before. Use x.stride(0), or make the input contiguous.", ("row * stride_xm", "row * n")),
        ("last-stride-ignored", "any strides", "The elements of a row need not lie side by side. Use x.stride(1), or make the input contiguous.", ("columns * stride_xn", "columns")),
        (*CONTIGUOUS, ("*x.stride()", "*y.stride()")),
        ("strides-of-the-input", "guard bands", "The result has strides of its own: those of the input do not fit it.", ("*y.stride()", "*x.stride()")),
        ("float16-inside", "float16", "float16 was not widened before exp and the sum: every term is rounded to 11 bits. Convert with .to(tl.float32) after the load.", ("tl.sum(p, axis=0)", "tl.sum(p.to(x_ptr.dtype.element_ty), axis=0)"), ("y = p /", "y = p.to(x_ptr.dtype.element_ty) /")),
        (*OTHER_DTYPE, ("dtype=x.dtype", "dtype=torch.float32")),
        ("one-program", "rows", "Only the first row is computed. The grid needs one program for each row.", ("[(m,)]", "[(1,)]")),
        ("fixed-width", "wide rows", "Rows longer than the tile are cut off. Choose the tile with triton.next_power_of_2(n), or loop over the row.", ("BLOCK_N=block_n", "BLOCK_N=min(block_n, 1024)")),
        ("over-columns", "rows", "The softmax runs down the columns. It must run along the last axis.", ("m, n = x.shape", "n, m = x.shape"), ("(m, n), dtype", "(n, m), dtype"), ("*x.stride(), *y.stride()", "*x.stride()[::-1], *y.stride()[::-1]")),
        ("changes-input", "inputs unchanged", "The result is written into the input. Allocate a tensor for it with torch.empty.", ("y = torch.empty((m, n), dtype=x.dtype, device=x.device)", "y = x")),
        (*TORCH_DOES_IT, ("    return y\n", "    return torch.softmax(x, -1)\n")),
        (*PACKAGE_DOES_IT, ("    return y\n", "    from flashedu.kernels.softmax import triton_softmax\n    return triton_softmax(x)\n")),
        ("kernel-for-show", "own kernel", "A kernel is launched, but the result comes from torch's element-wise functions.", ("    return y\n", "    y = torch.exp(x - x.amax(1, keepdim=True))\n    return y / y.sum(1, keepdim=True)\n")),
        ("no-kernel", "own kernel", "Nothing was launched: the result comes from torch's element-wise functions.", (LAUNCH, "    y = torch.exp(x - x.amax(1, keepdim=True))\n    y = y / y.sum(1, keepdim=True)\n")),
    ),
    "flash_forward": (
        NO_LOAD_MASK,
        NO_STORE_MASK,
        ("no-mask-on-lse", "guard bands", "The last tile's lse is stored past its end. Give that tl.store a mask, too.", (f"{LSE}, mask=rows < n_q", LSE)),
        PADDING_LOADED,
        PADDING_STORED,
        ("padded-keys-counted", "ragged keys", "Keys past the end are loaded as 0, which is a score and not a hidden key. Set their scores to -inf.", ("(keys < n_k)[None, :]", "(keys >= 0)[None, :]")),
        ("last-keys-dropped", "ragged keys", "When the tile does not divide Nk, the last keys are left out.", ("n_k // BLOCK_K * BLOCK_K, n_k", "n_k // BLOCK_K * BLOCK_K, n_k // BLOCK_K * BLOCK_K")),
        ("last-queries-dropped", "ragged queries", "When the tile does not divide Nq, the last queries are left out: round the grid up, with triton.cdiv.", ("tl.cdiv(n_q, BLOCK_Q)", "tl.maximum(n_q // BLOCK_Q, 1)"), ("triton.cdiv(n_q, tile.block_q)", "max(n_q // tile.block_q, 1)")),
        ("no-rescale", "rising maxima", "When the maximum rises, what was summed under the old one is too large: multiply l and acc by exp2(m_old - m_new), before m is overwritten.", KEEP_SUM, KEEP_OUTPUT),
        ("output-not-rescaled", "rising maxima", "The sum l is rescaled, but acc is not; it follows the same rule.", KEEP_OUTPUT),
        ("sum-not-rescaled", "rising maxima", "acc is rescaled, but the sum l is not; it follows the same rule.", KEEP_SUM),
        ("block-maximum", "falling maxima", "The maximum is that of the tile alone. When it falls, exp2(m_old - m_new) overflows; the running maximum never falls.", (RUNNING, "tl.max(s, axis=1) * scale_log2")),
        ("no-maximum", "overflow", "No maximum is subtracted, so exp2 overflows.", (RUNNING, "tl.zeros_like(m)")),
        ("maximum-starts-at-0", "very low logits", "The running maximum starts at 0, so when every score is far below 0, exp2 gives nothing but 0. Start at -inf.", ('tl.full([BLOCK_Q], float("-inf"), tl.float32)', "tl.zeros([BLOCK_Q], tl.float32)")),
        ("maximum-never-updated", "several tiles", "m keeps its first value. Store the new maximum at the end of the loop.", ("        m = m_new\n", ""), ("return acc, l, m\n", "return acc, l, m_new if start < stop else m\n")),
        ("sum-not-accumulated", "several tiles", "l holds the sum of the last tile only; add to the rescaled sum so far.", ("l * alpha + tl.sum", "tl.sum")),
        ("output-not-accumulated", "several tiles", "acc holds the last tile only; add to the rescaled output so far.", ("acc * alpha[:, None]", "acc * 0.0")),
        NO_SCALE,
        ("scale-of-the-tile", "any head dimension", "The scale is 1 / sqrt(D) for the head dimension D, not for the width of the tile, which is larger when D is no power of two.", ("scale = d**-0.5", "scale = padded(d)**-0.5")),
        BASE,
        ("lse-base-2", "one key", "lse is in base 2; the course's is the natural logarithm. Multiply by ln(2).", (LSE, "m + tl.log2(l_safe)")),
        ("lse-half-base-2", "one key", "m is in base 2 and log(l) is not: bring both to the natural logarithm before adding.", (LSE, "m + tl.log2(l_safe) * LN2")),
        ("lse-without-maximum", "one key", "lse is m + log(l): l was summed relative to the maximum, so the maximum must come back.", (LSE, "tl.log2(l_safe) * LN2")),
        ("never-divided", "one tile", "acc was never divided by the sum l.", ("acc / l_safe[:, None]", "acc")),
        ("top-left-causal", "causal, more keys", "The mask is aligned at the top left. The last query must see every key: j <= i + Nk - Nq.", ("n_k - n_q", "n_k * 0")),
        ("strictly-causal", "causal", "A query does not see its own position: the condition is j <= i + Nk - Nq, not <.", (VISIBLE, VISIBLE.replace("<=", "<")), (WHOLE, "i0 + offset")),
        CAUSAL_IGNORED,
        ("mask-forgotten", "causal", "Tiles past the diagonal are skipped, but those that it crosses are not masked.", (VISIBLE, "pass")),
        ("diagonal-skipped", "causal", "The loop over keys ends before the tile that holds the diagonal. The tile's last row, i0 + BLOCK_Q - 1, decides how far it goes.", (STOP, "tl.minimum(n_k, i0 + offset)")),
        ENDS_EARLY,
        NOT_MASKED,
        ("mask-counts-from-tile", "causal", "The mask's column numbers count from the tile's first key. They must count from the beginning of the tensor.", (VISIBLE, VISIBLE.replace("keys[None, :]", "(keys - j)[None, :]"))),
        ("maximum-of-hidden-keys", "causal, rising", "The maximum was taken over hidden keys, too, and when one of them is large, everything visible underflows. Hide the scores first.", (HIDE, "pass"), ("        l = l * alpha", "        if MASKED:\n            p = tl.where(visible, p, 0.0)\n        l = l * alpha")),
        ("nan-guard-missing", "rows that see no key", "A row that has seen no key yet gives -inf - (-inf) = NaN. Subtract 0 there instead.", (SAFE, "m_new")),
        ("zero-sum-divided", "rows that see no key", "The sum of a row that sees no key is 0, and 0 / 0 is NaN. Divide by 1 there.", (L_SAFE, "l")),
        ("finite-mask", "rows that see no key", "A large negative number instead of -inf gives rows that see no key a mean of the values; o must be 0 and lse -inf.", (HIDE, HIDE.replace('float("-inf")', "-1.0e6"))),
        NO_BATCH,
        FIRST_HEAD,
        WRONG_GROUP,
        NO_GROUP,
        LAST_STRIDE,
        (*CONTIGUOUS, ("*q.stride(), *k.stride(), *v.stride()", "*o.stride(), *torch.empty(k.shape).stride(), *torch.empty(v.shape).stride()")),
        (*STRIDES_OF_K, ("*v.stride()", "*k.stride()")),
        ("float16-accumulator", "float16", "acc was kept in float16: it overflows at 65504 and rounds after every tile. Accumulate in float32 and convert when storing.",
         ("acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision=PRECISION)", "acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision=PRECISION).to(v.dtype)")),
        ("p-in-float16", "several tiles", "P was rounded to float16 although the inputs are float32. Convert it to the type of v, p.to(v.dtype).", ("p.to(v.dtype)", "p.to(tl.float16).to(v.dtype)")),
        (*OTHER_DTYPE, ("dtype=q.dtype", "dtype=torch.float32")),
        ("lse-in-float16", "dtype", "lse must be float32 for inputs of every dtype: its error comes back in the backward pass.", (LSE_SIZE, LSE_SIZE.replace("torch.float32", "q.dtype"))),
        ("materialises", "memory", "A tensor of Nq x Nk elements was made. All that leaves the kernel is o and lse.", ("    lse = torch.empty", "    scores = torch.empty((batch, heads, n_q, n_k), device=q.device)\n    lse = torch.empty")),
        ("changes-input", "inputs unchanged", "q *= ... works in place and changes the caller's tensor. Write q = q * ....", ("    tile = pick", "    q *= scale\n    scale = 1.0\n    tile = pick")),
        (*PACKAGE_DOES_IT, ("    return o, lse\n", "    from flashedu.kernels.forward import flash_forward\n    return flash_forward(q, k, v, causal)\n")),
        (*TORCH_DOES_IT, ("    return o, lse\n", "    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))\n    return torch.softmax(q @ k.mT * scale, -1) @ v, lse\n")),
    ),
}
GPU_ROWS = {"flash_forward": (TF32,)}
