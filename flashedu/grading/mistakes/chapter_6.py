"""Mistakes of chapter 6. A row: slug, the check that rejects it, the sentence for the learner, then edits (right, wrong)."""

NO_SCALE = "The scores are not divided by sqrt(D)."
FLOAT32 = "float64 input was computed in float32: the result keeps only 7 digits."

# fa1_on_machine
SCORES = "s[:] = q @ k.T * d**-0.5"
KEPT = "kept = l * np.exp(m - m_new)"
UPDATE = "o[:] = (o * kept[:, None] + s @ v) / l[:, None]"
RUNNING = "np.maximum(m, s.max(axis=1))"
LOAD_KEYS = 'k, v = machine.load("k", j0, j1), machine.load("v", j0, j1)'
LOAD_STATE = 'q, o, m, l = (machine.load(name, i0, i1) for name in ("q", "o", "m", "l"))'
STORED = '(("o", o), ("m", m), ("l", l))'
LAST = "if j1 == n_k:"
LSE = "m[:] = m + np.log(l)"
FREE = "for tile in (q, o, m, l, s):\n                machine.free(tile)"
FREE_KEYS = "        machine.free(k)\n        machine.free(v)\n"
HEAD = f"""for j0 in range(0, n_k, block_k):
        j1 = min(j0 + block_k, n_k)
        {LOAD_KEYS}
        for i0 in range(0, n_q, block_q):
            i1 = min(i0 + block_q, n_q)
            {LOAD_STATE}
"""
QUERIES_OUTSIDE = f"""for i0 in range(0, n_q, block_q):
        i1 = min(i0 + block_q, n_q)
        {LOAD_STATE}
        for j0 in range(0, n_k, block_k):
            j1 = min(j0 + block_k, n_k)
            {LOAD_KEYS}
"""
QUERIES_TAIL = """for tile in (k, v, s):
                machine.free(tile)"""

# lazy_attention
MOVES = "moves = top > m + threshold"
COUNT = "int((moves & (m > -np.inf)).sum())"
KEEP_SUM, KEEP_OUTPUT = ("l * alpha", "l"), ("o * alpha[:, None]", "o")
P = "np.exp(s - m_new[:, None])"

# rotate
SIGNS = "np.random.default_rng(seed).choice([-1, 1], d).astype(q.dtype)"
SIGNED = "y, half = x * signs, 1"
RESULT = "return y.reshape(len(x), d) * d**-0.5"
BOTH = "return transform(q), transform(k)"
WIDENED = "Something turned float32 into float64: signs of another dtype (convert them to that of q), or np.sqrt(D), which is a float64 scalar; D ** 0.5 is a Python number and is not."
OWN_SIGNS = ("signs = " + SIGNS, "rng = np.random.default_rng(seed)")

ROWS = {
    "fa1_on_machine": (
        ("no-rescale", "rising maxima", "When the maximum rises, what was summed under the old one is too large: multiply l by exp(m_old - m_new), taken before m is overwritten, and o follows.", (KEPT, "kept = l + 0")),
        ("output-not-rescaled", "rising maxima", "The sum l is rescaled, but the output is not: what the earlier keys gave it counts less, too, when the maximum rises.",
         (KEPT, "old = l + 0\n            " + KEPT), (UPDATE, UPDATE.replace("kept", "old"))),
        ("sum-not-rescaled", "rising maxima", "The output is rescaled, but the sum l is not; it follows the same rule.", (KEPT, "old = l + 0\n            " + KEPT), ("l[:] = kept + s", "l[:] = old + s")),
        ("rescale-inverted", "one tile", "The factor is upside down: what was summed before is multiplied by exp(m_old - m_new), at most 1. exp(m_new - m_old) is infinite where nothing was seen, and 0 times that is NaN.",
         (KEPT, "kept = l * np.exp(m_new - m)")),
        ("sum-overwritten", "several tiles", "l was overwritten before o was brought back by it. The o in HBM was divided by the old l: keep that until o has been updated.",
         (KEPT, "alpha = np.exp(m - m_new)"), ("l[:] = kept + s", "l[:] = l * alpha + s"), (UPDATE, UPDATE.replace("kept[", "(l * alpha)["))),
        ("normalised-as-if-not", "several tiles", "The o that comes from HBM has been divided by its l. Multiply it by that l again before you add to it, or the earlier keys count too little.",
         (KEPT, "alpha = np.exp(m - m_new)\n            " + KEPT), (UPDATE, UPDATE.replace("kept", "alpha"))),
        ("never-divided", "one tile", "The output was never divided by the sum l.", (KEPT, "alpha = np.exp(m - m_new)\n            " + KEPT), (UPDATE, "o[:] = o * alpha[:, None] + s @ v")),
        ("block-maximum", "falling maxima", "The maximum is that of the tile alone. When it falls, exp(m_old - m_new) overflows; the running maximum never falls.", (RUNNING, "s.max(axis=1)")),
        ("no-maximum", "overflow", "No maximum is subtracted, so exp overflows.", (RUNNING, "np.zeros_like(m)")),
        ("one-maximum-for-all-rows", "rows far apart", "One maximum was taken for all rows of a tile, so rows far below it underflow. Each row has its own.", (RUNNING, "np.maximum(m, s.max())")),
        ("maximum-not-written", "several tiles", "The new maximum was never written into m, so HBM still says that nothing was seen: m[:] = m_new before it is stored.", ("m[:] = m_new", "pass")),
        ("statistics-not-stored", "several tiles", "m is not stored for the next tile of keys, which finds -inf there and forgets all that came before; l belongs there, too.", (STORED, '(("o", o),)')),
        ("sum-not-stored", "several tiles", "l is not stored for the next tile of keys, which finds 0 there.", (STORED, '(("o", o), ("m", m))')),
        ("output-not-stored", "one tile", "o was not stored in HBM.", (STORED, '(("m", m), ("l", l))')),
        ("output-not-accumulated", "several tiles", "The output of the last tile only is kept; the earlier keys' o belongs to it.", ("o * kept[:, None] + s @ v", "s @ v")),
        ("no-scale", "one tile", NO_SCALE, (" * d**-0.5", "")),
        ("last-keys-dropped", "ragged tiles", "When block_k does not divide Nk, the last keys are left out.", ("range(0, n_k, block_k)", "[j for j in range(0, n_k, block_k) if j + block_k <= n_k]")),
        ("last-queries-dropped", "ragged tiles", "When block_q does not divide Nq, the last queries are left out.", ("range(0, n_q, block_q)", "range(0, n_q - block_q + 1, block_q)")),
        ("lse-without-maximum", "one tile", "lse is m + log(l): l was summed relative to the maximum, so the maximum must come back.", (LSE, "m[:] = np.log(l)")),
        ("lse-is-maximum", "one tile", "lse is m + log(l), not the maximum alone.", (LSE, "pass")),
        ("lse-of-first-keys", "several tiles", "lse was stored after the first tile of keys; it is known only after the last.", (LAST, "if j0 == 0:"), (LSE, "m[:] = m + np.log(l)")),
        ("lse-not-stored", "one tile", "lse was not stored in HBM.", ('machine.store("lse", i0, i1, m)', "pass")),
        ("freed-too-early", "one tile", "A tile was used after it had been freed, and a freed tile holds NaN.", (SCORES, "machine.free(q)\n            " + SCORES), (FREE, FREE.replace("(q, o", "(o"))),
        ("freed-too-early", "several tiles", "A tile was used after it had been freed, and a freed tile holds NaN: k and v serve all tiles of queries.",
         (FREE_KEYS, ""), (FREE, FREE + "\n            if i0 == 0:\n                machine.free(k)\n                machine.free(v)")),
        ("assigned-not-written", "one tile", "store was given an array outside SRAM. o = ... makes a new one; write into the tile, o[:] = ..., and store that.", (UPDATE, UPDATE.replace("o[:] =", "o ="))),
        ("assigned-not-written", "one tile", "tile = ... makes a new array outside SRAM, and the allocated tile stays behind. Write into it: tile[:] = ....", (SCORES, SCORES.replace("s[:] =", "s ="))),
        ("never-freed", "capacity", "A tile that is no longer needed stays in SRAM until it is full; the message names what is resident.", (FREE, "pass")),
        ("never-freed", "capacity", "Tiles of keys and values that are no longer needed stay in SRAM until it is full; the message names what is resident.", (FREE_KEYS, "")),
        ("keys-reloaded", "bytes", "k and v are loaded again for every tile of queries. One tile of them stays in SRAM while all queries pass by.",
         (LOAD_STATE, "machine.free(k)\n            machine.free(v)\n            " + LOAD_KEYS + "\n            " + LOAD_STATE)),
        ("lse-every-tile", "bytes", "lse is stored after every tile of keys; it is known after the last, and then stored once.", (LAST, "old = m + 0\n            if True:"), ('machine.store("lse", i0, i1, m)', 'machine.store("lse", i0, i1, m)\n                m[:] = old')),
        ("queries-outside", "bytes", "The queries are outside, so their state never leaves SRAM: that is version 2. Here the keys are outside.",
         (HEAD, QUERIES_OUTSIDE), ("for name, tile in " + STORED, "for name, tile in " + STORED + " if j1 == n_k else ()"), (FREE, QUERIES_TAIL), (FREE_KEYS, "        for tile in (q, o, m, l):\n            machine.free(tile)\n")),
        ("state-outside-sram", "bytes", "o, m and l wait in arrays of your own from one tile of keys to the next, outside SRAM, where nobody counts them. Store them, and load them again.",
         (LOAD_STATE, 'q = machine.load("q", i0, i1)\n            o, m, l = state.setdefault(i0, (np.zeros((i1 - i0, machine.shape("o")[1]), q.dtype), np.full(i1 - i0, -np.inf, q.dtype), np.zeros(i1 - i0, q.dtype)))'),
         ("    for j0", "    state = {}\n    for j0"),
         ("for name, tile in " + STORED + ":\n                machine.store(name, i0, i1, tile)\n", 'if j1 == n_k:\n                for name, held in (("o", o), ("m", m), ("l", l)):\n                    tile = machine.alloc(held.shape)\n                    tile[:] = held\n                    machine.store(name, i0, i1, tile)\n                    machine.free(tile)\n'),
         (LSE + "  # now the row's lse\n                machine.store(\"lse\", i0, i1, m)", "tile = machine.alloc(m.shape)\n                tile[:] = m + np.log(l)\n                machine.store(\"lse\", i0, i1, tile)\n                machine.free(tile)"),
         (FREE, FREE.replace("(q, o, m, l, s)", "(q, s)"))),
        ("scores-outside-sram", "SRAM use", "The scores are a NumPy array of your own, outside SRAM. Take room for them with alloc and write into it.",
         ("s = machine.alloc((i1 - i0, j1 - j0))", "s = np.empty((i1 - i0, j1 - j0), machine.dtype)"), (FREE, FREE.replace("(q, o, m, l, s)", "(q, o, m, l)"))),
        ("looked-into-hbm", "bytes", "The scores come from machine.hbm and not from the loaded tile, so nobody counted those bytes.", ("q @ k.T", 'q @ machine.hbm["k"][j0:j1].T')),
        ("read-past-the-machine", "bytes", "Rows were read from machine.hbm without load, so nobody counted them.", (LOAD_STATE, LOAD_STATE.replace("q, o, m, l", "o, m, l").replace('"q", ', "") + '\n            q = machine.hbm["q"][i0:i1]'), (FREE, FREE.replace("(q, o", "(o"))),
        ("float32-inside", "float64", FLOAT32, (SCORES, SCORES.replace("q @ k.T", "q.astype(np.float32) @ k.T.astype(np.float32)"))),
    ),
    "lazy_attention": (
        ("first-block-counted", "one block", "The first block of a row was counted. There was nothing to rescale yet: count only where the reference was above -inf.", (COUNT, "int(moves.sum())")),
        ("blocks-counted", "rises above the threshold", "Blocks were counted in which some row was rescaled. Count every row that was.", (COUNT, "int((moves & (m > -np.inf)).any())")),
        ("every-rise-counted", "several blocks", "Every rise of the maximum was counted. Those that the threshold lets pass are not rescaled, and that is the point.", (COUNT, "int(((top > m) & (m > -np.inf)).sum())")),
        ("threshold-ignored", "several blocks", "Every rise rescales, as in ordinary online softmax. Either the threshold is not used, or the reference moves to the maximum minus the threshold, and not to the maximum itself.", (MOVES, "moves = top > m")),
        ("count-for-each-row", "shape", "The count is one number for all rows together: take the sum.", (COUNT, "(moves & (m > -np.inf)).astype(int)")),
        ("count-missing", "type", "Only o was returned. The number of rescalings belongs to the result: return o, rescalings.", ("return o / l[:, None], rescalings", "return o / l[:, None]")),
        ("threshold-in-base-2", "creeping maxima", "The threshold was taken in powers of 2. It is in natural log units, those of the scores: exp(threshold) is how large exp(s - m) may become.", (MOVES, "moves = (top - m) * 1.4426950408889634 > threshold")),
        ("threshold-as-a-factor", "creeping maxima", "exp of the rise was compared with the threshold. Compare the rise itself: the threshold is in natural log units.", (MOVES, "moves = np.exp(np.minimum(top - m, 80)) > threshold")),
        ("threshold-before-scaling", "creeping maxima", "The threshold was compared with products q k^T before their division by sqrt(D). It is in units of the scores.", (MOVES, "moves = (top - m) > threshold * scale")),
        ("at-least-the-threshold", "exactly the threshold", "A rise by exactly the threshold does not rescale: more than the threshold, not at least.", (MOVES, "moves = top >= m + threshold")),
        ("falls-too", "falling maxima", "The reference also moved down, when the block's maximum was far below it. It never falls, or exp(m_old - m_new) overflows.", (MOVES, "moves = np.abs(top - m) > threshold")),
        ("compared-with-true-maximum", "creeping maxima", "The block's maximum was compared with the largest so far, but it is the reference that must not fall behind: many small rises add up to a large one.",
         ("    rescalings = 0", "    rescalings, largest = 0, m"), (MOVES, "moves = top > largest + threshold\n        largest = np.maximum(largest, top)")),
        ("compared-with-last-block", "creeping maxima", "The block's maximum was compared with that of the block before, but it is the reference that must not fall behind: many small rises add up to a large one.",
         ("    rescalings = 0", "    rescalings, last = 0, m"), (MOVES, "moves = top > np.where(m > -np.inf, last, m) + threshold\n        last = top")),
        ("rescaled-to-true-maximum", "creeping maxima", "The block's exponentials were taken relative to the true maximum, while l and o are relative to the reference. All three need the same.", (P, "np.exp(s - np.maximum(m_new, top)[:, None])")),
        ("moved-by-threshold", "rises above the threshold", "The reference moved up by the threshold only. It moves to the block's maximum.", ("np.where(moves, top, m)", "np.where(moves, np.where(m > -np.inf, m + threshold, top), m)")),
        ("no-rescale", "rises above the threshold", "The reference moved, but l and o are still relative to the old one: multiply both by exp(m_old - m_new), taken before m is overwritten.", KEEP_SUM, KEEP_OUTPUT),
        ("rescale-inverted", "rises above the threshold", "The factor is upside down: l and o are multiplied by exp(m_old - m_new), at most 1.", ("np.exp(m - m_new)", "np.where(m > -np.inf, np.exp(np.minimum(m_new - m, 80)), 0)")),
        ("quiet-blocks-skipped", "rises below the threshold", "Blocks in which no row's reference moves were left out, or rows of them. Only the rescaling is saved: what a block adds to l and o is added all the same.",
         ("p = " + P, "p = np.where(moves.any(), " + P + ", q.dtype.type(0))")),
        ("quiet-blocks-skipped", "rises below the threshold", "Rows whose reference does not move were left out. Only the rescaling is saved: what a block adds to l and o is added all the same.",
         ("p = " + P, "p = np.where(moves[:, None], " + P + ", q.dtype.type(0))")),
        ("output-not-rescaled", "rises above the threshold", "The sum l is rescaled, but the output o is not; it follows the same rule.", KEEP_OUTPUT),
        ("sum-not-rescaled", "rises above the threshold", "The output o is rescaled, but the sum l is not; it follows the same rule.", KEEP_SUM),
        ("never-moves", "rises above the threshold", "The reference stays at the first block's maximum however far the maximum rises, and exp overflows in the end.", (MOVES, "moves = m == -np.inf")),
        ("reference-not-kept", "several blocks", "m keeps its first value, so the factor wipes out everything before the current block. Store the reference at the end of the loop.", ("        m = m_new\n", "")),
        ("all-rows-together", "several blocks", "One row above the threshold moved all rows. Each row decides for itself, and has a reference of its own.", (MOVES, "moves = (top > m) & (top > m + threshold).any()")),
        ("maximum-starts-at-0", "very low logits", "The reference starts at 0, so when every score is far below 0, exp gives nothing but 0. Start at -inf.", ("np.full(n_q, -np.inf, q.dtype)", "np.zeros(n_q, q.dtype)")),
        ("one-maximum-for-all-rows", "rows far apart", "One maximum was taken for all rows, so rows far below it underflow to 0 / 0. Each row has its own.", ("top = s.max(axis=1)", "top = np.full(n_q, s.max())")),
        ("never-divided", "one block", "The output was never divided by the sum l.", ("return o / l[:, None], rescalings", "return o, rescalings")),
        ("no-scale", "one block", NO_SCALE, (" * scale  # (Nq, B)", "")),
        ("last-block-dropped", "ragged last block", "When block_size does not divide Nk, the last keys are left out.", ("range(0, n_k, block_size)", "range(0, n_k - block_size + 1, block_size)")),
        ("materialises", "memory", "All the scores exist at once. Keep one block at a time.", ("    for start", "    whole = q @ k.T * scale\n    for start"), ("s = q @ k_j.T * scale", "s = whole[:, start : start + block_size]")),
        ("changes-input", "inputs unchanged", "q *= ... works in place and changes the caller's array. Write q = q * ....", ("    m = np.full", "    q *= scale\n    m = np.full"), (" * scale  # (Nq, B)", "")),
        ("float64-result", "dtype", "A state without a dtype is float64, and turns float32 results into float64: np.zeros(n, q.dtype).", ("l = np.zeros(n_q, q.dtype)", "l = np.zeros(n_q)")),
        ("float32-inside", "float64", FLOAT32,
         ("    m = np.full", "    dtype, q, k, v = q.dtype, *(x.astype(np.float32) for x in (q, k, v))\n    m = np.full"), ("return o / l[:, None], rescalings", "return (o / l[:, None]).astype(dtype), rescalings")),
    ),
    "rotate": (
        ("not-normalised", "products and lengths", "The sums and differences make every row sqrt(D) times as long. Divide by sqrt(D), and the transform is orthonormal.", (RESULT, "return y.reshape(len(x), d)")),
        ("divided-by-d", "products and lengths", "Rows came out too short: q' and k' are divided by sqrt(D) each, not by D.", (RESULT, "return y.reshape(len(x), d) / d")),
        ("keys-not-rotated", "products and lengths", "q was rotated and k was not, so their products have changed. Both need the same transform.", (BOTH, "return transform(q), k.copy()")),
        ("other-signs-for-keys", "products and lengths", "q and k got different random signs: those of k were drawn after those of q. Draw once.", OWN_SIGNS, ("x * signs", "x * rng.choice([-1, 1], d).astype(q.dtype)")),
        ("signs-for-each-element", "products and lengths", "Every row got signs of its own, so products between rows have changed. There are D signs, one for each column.", OWN_SIGNS, ("x * signs", "x * rng.choice([-1, 1], x.shape).astype(q.dtype)")),
        ("signs-for-each-element", "products and lengths", "Every row got a sign of its own, so products between rows have changed. There are D signs, one for each column.", OWN_SIGNS, ("x * signs", "x * rng.choice([-1, 1], (len(x), 1)).astype(q.dtype)")),
        ("normal-numbers-for-signs", "products and lengths", "The rows were multiplied by random numbers that are not +1 or -1, which stretches some columns and shrinks others.", (SIGNS, "np.random.default_rng(seed).standard_normal(d).astype(q.dtype)")),
        ("zero-among-the-signs", "products and lengths", "Some of the random signs are 0 and delete their columns. There are only +1 and -1: rng.choice([-1, 1], D).", (SIGNS, "np.random.default_rng(seed).integers(-1, 2, d).astype(q.dtype)")),
        ("zero-among-the-signs", "products and lengths", "Some of the random signs are 0 and delete their columns. There are only +1 and -1: rng.choice([-1, 1], D).", (SIGNS, "np.random.default_rng(seed).integers(0, 2, d).astype(q.dtype)")),
        ("stage-missing", "products and lengths", "The last pass is missing: runs of D / 2 elements have to meet, too. Go on while the run is shorter than D.", ("half < d:", "half < d // 2:")),
        ("sum-used-for-difference", "products and lengths", "The difference was taken after the sum had overwritten its first part. Both need the old values: take a + b and a - b, then write.", ("[a + b, a - b]", "[a + b, a + b - b]")),
        ("over-the-rows", "products and lengths", "The transform runs over the rows and mixes tokens. It belongs on the D elements within a row.",
         ("half < d", "half < len(x)"), ("y.reshape(len(x), -1, 2, half)", "y.reshape(-1, 2, half, d)"), ("y[:, :, 0], y[:, :, 1]", "y[:, 0], y[:, 1]"), ("axis=2", "axis=1")),
        ("signs-only", "outliers are spread", "Signs alone do not spread anything: an outlier is still the only large element of its row. The Hadamard transform is missing.", (SIGNED, "return x * signs")),
        ("same-pairs-every-pass", "outliers are spread", "Every pass pairs the same neighbours, so that an outlier never gets beyond two elements. The distance of partners doubles from pass to pass.", ("-1, 2, half)", "-1, 2, 1)")),
        ("nothing-done", "outliers are spread", "q and k came back as they were: nothing was spread.", (BOTH, "return q.copy(), k.copy()")),
        ("no-signs", "equal elements are spread", "Without random signs a row of equal elements becomes one huge element: the transform makes outliers where there were none. Multiply by the signs first.", (SIGNED, "y, half = x, 1")),
        ("signs-after", "equal elements are spread", "A row of equal elements has become one huge element. Random signs prevent that when they come first; after the transform they change no size, and a permutation changes nothing in such a row.", (SIGNED, "y, half = x, 1"), (RESULT, RESULT + " * signs")),
        ("dense-orthogonal", "as evenly as can be", "The products are kept, but one element among zeros does not become D elements of one size. "
         "Asked for are random signs, then a Hadamard matrix. Either this is another matrix, such as a random orthogonal one, which costs D products an element, or the passes of sums and differences pair the wrong elements.",
         (SIGNS, "np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))[0].astype(q.dtype)"), (SIGNED, "return x @ signs")),
        ("new-signs-each-call", "the same seed again", "The same seed gave other signs the second time: the seed is not used. np.random.default_rng(seed) starts from it.", ("default_rng(seed)", "default_rng()")),
        ("seed-ignored", "another seed", "Another seed gives the same signs: the generator does not get the seed.", ("default_rng(seed)", "default_rng(0)")),
        ("swapped", "shape", "The two results are in the wrong order: q' comes first.", (BOTH, "return transform(k), transform(q)")),
        ("float64-result", "dtype", WIDENED, (".astype(q.dtype)", "")),
        ("float64-result", "dtype", WIDENED, (RESULT, "return y.reshape(len(x), d) / np.sqrt(d)")),
        ("changes-input", "inputs unchanged", "x *= ... works in place and changes the caller's array. Write x = x * ....", (SIGNED, "x *= signs\n        y, half = x, 1")),
        ("float32-inside", "float64", FLOAT32, (SIGNED, "y, half = (x * signs).astype(np.float32), 1"), (RESULT, "return (y.reshape(len(x), d) * d**-0.5).astype(q.dtype)")),
    ),
}
