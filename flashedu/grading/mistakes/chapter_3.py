"""Mistakes of chapter 3. A row: slug, the check that rejects it, the sentence for the learner, then edits (right, wrong)."""

RUNNING, GUARD = "np.maximum(m, s.max(axis=1))", "np.where(m_new == -np.inf, 0, m_new)"
LSE = "m[seen] + np.log(l[seen])"
QUERY_LOOP, KEY_LOOP = "range(0, n_q, block_q)", "range(0, visible, block_k)"
NEEDS_MASK = "if causal and j1 - 1 > i0 + offset:"
OFFSET = ("n_k - n_q", "0")
VISIBLE = "min(n_k, i1 + offset) if causal else n_k"
KEEP_SUM, KEEP_OUTPUT = ("l * alpha", "l"), ("acc * alpha[:, None]", "acc")
LOAD_KEYS = 'k, v = machine.load("k", j0, j1), machine.load("v", j0, j1)'
FREE_KEYS = "for tile in (k, v, s):\n                machine.free(tile)"

NO_RESCALE = ("no-rescale", "rising maxima", "When the maximum rises, what was summed under the old one is too large: multiply l and the output by exp(m_old - m_new).")
TOP_LEFT = ("top-left-causal", "causal, more keys", "The mask is aligned at the top left. The last query must see every key: j <= i + Nk - Nq.", OFFSET)
LSE_SUM_ONLY = ("lse-without-maximum", "one tile", "lse is m + log(l): l was summed relative to the maximum, so the maximum must come back.", (LSE, "np.log(l[seen])"))
FROM_ZERO = ("maximum-starts-at-0", "very low logits", "The running maximum starts at 0, so when every score is far below 0, exp gives nothing but 0. Start at -inf.")
NO_KEY_TAIL = ("last-keys-dropped", "ragged tiles", "When block_k does not divide Nk, the last keys are left out.", (KEY_LOOP, "[j for j in range(0, visible, block_k) if j + block_k <= n_k]"))
DIAGONAL_SKIPPED = ("diagonal-skipped", "causal", "The loop over keys ends before the tile that holds the diagonal: the tile's last row, i1 - 1, sees keys up to i1 - 1 + Nk - Nq.",
                    (VISIBLE, "min(n_k, i0 + offset) if causal else n_k"))

ROWS = {
    "tiled_attention": (
        (*NO_RESCALE, KEEP_SUM, KEEP_OUTPUT),
        ("output-not-rescaled", "rising maxima", "The sum l is rescaled, but the output is not; it follows the same rule.", KEEP_OUTPUT),
        ("sum-not-rescaled", "rising maxima", "The output is rescaled, but the sum l is not; it follows the same rule.", KEEP_SUM),
        ("block-maximum", "falling maxima", "The maximum is that of the tile alone. When it falls, exp(m_old - m_new) overflows; the running maximum never falls.", (RUNNING, "s.max(axis=1)")),
        ("one-maximum-for-all-rows", "rows far apart", "One maximum was taken for all rows of a tile, so rows far below it underflow. Each row has its own.", ("s.max(axis=1)", "s.max()")),
        ("one-maximum-for-all-rows", "rows far apart", "One maximum was taken for all rows of a tile, so rows far below it underflow. Each row has its own.", ("s.max(axis=1)", "s.max()"), ("m > -np.inf", "l > 0")),
        (*FROM_ZERO, ("np.full(i1 - i0, -np.inf, q.dtype)", "np.zeros(i1 - i0, q.dtype)")),
        ("no-maximum", "overflow", "No maximum is subtracted, so exp overflows.", (RUNNING, "np.zeros_like(m)")),
        ("sum-not-accumulated", "several tiles", "l holds the sum of the last tile only; add to the rescaled sum so far.", ("l * alpha + ", "")),
        ("output-not-accumulated", "several tiles", "The output of the last tile only is kept; add to the rescaled output so far.", ("acc * alpha[:, None] + ", "")),
        ("no-scale", "one tile", "The scores are not divided by sqrt(D).", (" * scale", "")),
        ("lse-base-2", "one tile", "lse is in base 2; the course's is the natural logarithm.", (LSE, "(m[seen] + np.log(l[seen])) * 1.4426950408889634")),
        LSE_SUM_ONLY,
        ("lse-is-maximum", "several tiles", "lse is m + log(l), not the maximum alone.", (LSE, "m[seen]")),
        ("lse-of-empty-row", "rows that see no key", "The lse of a row that sees no key is -inf, the log of an empty sum.", ("np.full(n_q, -np.inf, q.dtype)", "np.zeros(n_q, q.dtype)")),
        NO_KEY_TAIL,
        ("last-queries-dropped", "ragged tiles", "When block_q does not divide Nq, the last queries are left out.", (QUERY_LOOP, "range(0, n_q - block_q + 1, block_q)")),
        TOP_LEFT,
        ("strictly-causal", "causal", "A query does not see its own position: the condition is j <= i + Nk - Nq, not <.", ("keys <= rows", "keys < rows")),
        ("strictly-causal", "causal", "A query does not see its own position: the condition is j <= i + Nk - Nq, not <.", ("keys <= rows", "keys < rows"), (NEEDS_MASK, "if causal:")),
        DIAGONAL_SKIPPED,
        ("maximum-of-hidden-keys", "causal, rising", "The maximum was taken over hidden keys too, and when one of them is large, everything visible underflows. Mask the scores first.",
         ("s = np.where(keys <= rows + offset, s, -np.inf)", "pass"),
         ("p = np.exp(s - safe[:, None])", "p = np.exp(s - safe[:, None])\n            if causal:\n                p = np.where(np.arange(j0, j1) <= np.arange(i0, i1)[:, None] + offset, p, 0)")),
        ("mask-forgotten", "causal", "Tiles above the diagonal are skipped, but the tiles that it crosses are not masked.", (NEEDS_MASK, "if False:")),
        ("causal-ignored", "causal", "The argument causal changes nothing.", (VISIBLE, "n_k"), (NEEDS_MASK, "if False:")),
        ("mask-counts-from-tile", "causal, unequal tiles", "The mask compares row and column numbers within the tile. They must count from the beginning of the arrays.",
         ("np.arange(i0, i1)[:, None], np.arange(j0, j1)", "np.arange(i1 - i0)[:, None], np.arange(j1 - j0)")),
        ("sees-one-key-too-many", "causal", "Each query sees one key beyond its own position: the condition is j <= i + Nk - Nq.", ("keys <= rows +", "keys <= 1 + rows +"), (NEEDS_MASK, "if causal:")),
        ("mask-on-corners-only", "causal, unequal tiles", "Only tiles that start on the diagonal are masked. With unequal block sizes it crosses others too.", (NEEDS_MASK, "if causal and j0 == i0 + offset:")),
        ("nan-guard-missing", "rows that see no key", "A row that has seen no key yet gives -inf - (-inf) = NaN. Subtract 0 there instead.", (GUARD, "m_new"), ("o[i0:i1][seen] = acc[seen] / l[seen, None]", "o[i0:i1] = acc / l[:, None]")),
        ("nan-guard-missing", "rows that see no key", "A row that has seen no key yet gives -inf - (-inf) = NaN. Subtract 0 there instead.", (GUARD, "m_new"),
         ("o[i0:i1][seen] = acc[seen] / l[seen, None]", "o[i0:i1] = acc / l[:, None]"), ("lse[i0:i1][seen] = m[seen] + np.log(l[seen])", "lse[i0:i1] = m + np.log(l)")),
        ("materialises", "memory", "All the scores, a mask for all of them, or the results of all tiles exist at once. Keep one tile at a time.", ("    scale, offset", "    block_q, block_k = n_q, n_k\n    scale, offset")),
        ("changes-input", "inputs unchanged", "q *= ... works in place and changes the caller's array. Write q = q * ....", ("    o = np.zeros", "    q *= scale\n    o = np.zeros"), (".T * scale", ".T")),
        ("float32-inside", "float64", "float64 input was computed in float32: the result keeps only 7 digits.", (".T * scale", ".T.astype(np.float32) * scale"), ("q[i0:i1] @", "q[i0:i1].astype(np.float32) @")),
    ),
    "block_sizes": (
        ("bytes-for-elements", "two bytes an element", "M counts elements, not bytes: in 16 bits the tiles come out twice too large.", ("m = sram_bytes // itemsize", "m = sram_bytes")),
        ("part-of-an-element", "half an element left over", "M is a whole number of elements: sram_bytes // itemsize, before anything else is divided.",
         ("m = sram_bytes // itemsize", "m = sram_bytes / itemsize"), ("-(-m // (4 * head_dim))", "int(-(-m // (4 * head_dim)))")),
        ("itemsize-twice", "two bytes an element", "itemsize divides twice; M is sram_bytes // itemsize.", ("m = sram_bytes // itemsize", "m = sram_bytes // itemsize // itemsize")),
        ("rounded-down", "rounding up", "M / (4 D) must be rounded up.", ("-(-m // (4 * head_dim))", "m // (4 * head_dim)")),
        ("power-of-two", "rounding up", "The paper's formula does not round to a power of two.", ("return min", "block_k = 1 << (block_k - 1).bit_length()\n    return min")),
        ("swapped", "bytes are elements", "The two numbers are in the wrong order: block_q comes first.", ("return min(block_k, head_dim), block_k", "return block_k, min(block_k, head_dim)")),
        ("not-quartered", "bytes are elements", "The SRAM is shared by four tiles, q, k, v and o: divide by 4 D.", ("4 * head_dim", "head_dim")),
        ("three-tiles", "bytes are elements", "The SRAM is shared by four tiles, q, k, v and o: divide by 4 D, not 3 D.", ("4 * head_dim", "3 * head_dim")),
        ("not-capped", "small head dimension", "block_q is at most the head dimension: min(ceil(M / 4D), D).", ("return min(block_k, head_dim), block_k", "return block_k, block_k")),
        ("both-capped", "small head dimension", "Only block_q is capped at the head dimension; block_k is not.", ("return min(block_k, head_dim), block_k", "return min(block_k, head_dim), min(block_k, head_dim)")),
        ("larger-of-the-two", "small head dimension", "block_q is the smaller of ceil(M / 4D) and D, not the larger.", ("min(block_k, head_dim), block_k", "max(block_k, head_dim), block_k")),
        ("floats", "type", "A block size is a whole number: use // or math.ceil, not / or np.ceil.", ("-(-m // (4 * head_dim))", "float(-(-m // (4 * head_dim)))")),
    ),
    "tiled_on_machine": (
        (*NO_RESCALE, KEEP_SUM, KEEP_OUTPUT),
        (*FROM_ZERO, ("m = machine.alloc((i1 - i0,), fill=-np.inf)", "m = machine.alloc((i1 - i0,))")),
        ("never-divided", "one tile", "The output was never divided by the sum l.", ("acc[seen] = acc[seen] / l[seen, None]", "pass")),
        LSE_SUM_ONLY,
        ("lse-not-stored", "one tile", "lse was not stored in HBM.", ('machine.store("lse", i0, i1, m)', "pass")),
        NO_KEY_TAIL,
        TOP_LEFT,
        DIAGONAL_SKIPPED,
        ("causal-ignored", "causal", "The argument causal changes nothing.", (VISIBLE, "n_k"), (NEEDS_MASK, "if False:")),
        ("assigned-not-written", "one tile", "tile = ... makes a new array outside SRAM, and the allocated tile stays behind. Write into it: tile[:] = ....", ("s[:] = q @ k.T", "s = q @ k.T")),
        ("never-freed", "capacity", "A tile that is no longer needed stays in SRAM until it is full; the message names what is resident.", (FREE_KEYS, "pass")),
        ("nothing-skipped", "bytes, causal", "Tiles above the diagonal are loaded, although no query of the tile sees them.", (VISIBLE, "n_k")),
        ("query-reloaded", "bytes", "The query tile is loaded again for every tile of keys. It can stay in SRAM.", ('        q = machine.load("q", i0, i1)\n', ""),
         (LOAD_KEYS, LOAD_KEYS + '\n            q = machine.load("q", i0, i1)'), ("for tile in (k, v, s):", "for tile in (k, v, s, q):"), ("for tile in (q, m, l, acc):", "for tile in (m, l, acc):")),
        ("keys-loaded-twice", "bytes", "A tile of keys is loaded twice; once is enough for both products.", (LOAD_KEYS, 'machine.free(machine.load("k", j0, j1))\n            ' + LOAD_KEYS)),
        ("output-stored-every-tile", "bytes", "The output is stored after every tile of keys. Keep it in SRAM and store it once.", ("m[:] = m_new", 'm[:] = m_new\n            machine.store("o", i0, i1, acc)')),
        ("scores-outside-sram", "SRAM use", "The scores are a NumPy array of your own, outside SRAM. Take room for them with alloc and write into it.",
         ("s = machine.alloc((i1 - i0, j1 - j0))", "s = np.empty((i1 - i0, j1 - j0), machine.dtype)"), ("for tile in (k, v, s):", "for tile in (k, v):")),
        ("looked-into-hbm", "bytes", "The scores come from machine.hbm and not from the loaded tile, so nobody counted those bytes.", ("q @ k.T", 'q @ machine.hbm["k"][j0:j1].T')),
        ("read-past-the-machine", "bytes", "Rows were read from machine.hbm without load, so nobody counted them.", (LOAD_KEYS, 'k, v = machine.hbm["k"][j0:j1], machine.hbm["v"][j0:j1]'), (FREE_KEYS, "machine.free(s)")),
    ),
}
