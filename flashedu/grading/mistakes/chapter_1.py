"""Mistakes of chapter 1. A row: slug, the check that rejects it, the sentence for the learner, then edits (right, wrong)."""

MAX, GUARD, SUM = "x.max(axis=-1, keepdims=True)", "np.where(m == -np.inf, 0, m)", "p.sum(axis=-1, keepdims=True)"
DIVIDE = "return p / np.where(total == 0, 1, total)"
MASK = "s = np.where(keys <= rows + n_k - n_q, s, -np.inf)"
SCALE = "q.shape[1] ** -0.5"

ROWS = {
    "stable_softmax": (
        ("no-maximum", "large logits", "The maximum is not subtracted, so exp overflows to inf, and inf / inf is NaN.", ("np.exp(x - m)", "np.exp(x)")),
        ("one-maximum-for-all-rows", "rows far apart", "One maximum is taken for all rows, so exp underflows to 0 in rows far below it. Each row needs its own.",
         (MAX, "x.max(keepdims=True)")),
        ("first-entry", "wide rows", "The first entry of a row was subtracted, not its maximum; a larger one still overflows.", (MAX, "x[..., :1]")),
        ("mean", "wide rows", "The mean of a row was subtracted, not its maximum; an entry far above the mean still overflows.", (MAX, "x.mean(axis=-1, keepdims=True)")),
        ("first-axis", "rows", "The softmax runs over the first axis; it belongs on the last: axis=-1.", (MAX, "x.max(axis=0, keepdims=True)"), (SUM, "p.sum(axis=0, keepdims=True)")),
        ("keepdims-missing", "square", "The row sums have lost their axis, so they divide columns instead of rows (a square input hides the shape error). Use keepdims=True.",
         (SUM, "p.sum(axis=-1)")),
        ("nan-guard-missing", "a row of -inf", "A row of nothing but -inf becomes NaN, since -inf - (-inf) is NaN. Replace its maximum by 0 and its sum by 1.", (GUARD, "m")),
        ("finite-mask", "a row of -inf", "-inf was replaced by a large negative number, so a fully masked row comes out uniform instead of zero.",
         ("m = " + MAX, "x = np.maximum(x, x.dtype.type(-1e9))\n    m = " + MAX)),
        ("not-normalised", "rows", "The exponentials are not divided by their sum.", (DIVIDE, "return p")),
        ("epsilon", "float64", "A small number was added to the denominator; it changes every probability. Only an empty row needs care.", ("np.where(total == 0, 1, total)", "(total + 1e-6)")),
        ("logarithm", "rows", "This is log-softmax: the probabilities themselves are wanted.", (DIVIDE, "return x - m - np.log(total)")),
        ("changes-input", "inputs unchanged", "x -= ... works in place and changes the caller's array. Write x = x - ....", ("p = np.exp(x - m)", "x -= m\n    p = np.exp(x)")),
        ("float32-inside", "float64", "float64 input was computed in float32: the result keeps only 7 digits.",
         ("m = " + MAX, "dtype, x = x.dtype, x.astype(np.float32)\n    m = " + MAX), (DIVIDE, "return (p / np.where(total == 0, 1, total)).astype(dtype)")),
    ),
    "naive_attention": (
        ("no-scale", "random", "The scores are not divided by sqrt(D).", (" * scale", "")),
        ("scale-without-root", "random", "The scores are divided by D; it must be its square root.", (SCALE, "1 / q.shape[1]")),
        ("scale-from-values", "Dv differs from D", "The scale uses the width of v; it is the length of the dot product, q.shape[1].", (SCALE, "v.shape[1] ** -0.5")),
        ("float64-scale", "dtype", "np.sqrt of a whole number is a float64 scalar, and it turns float32 arrays into float64. A Python number does not: D ** 0.5.", (SCALE, "1 / np.sqrt(q.shape[1])")),
        ("softmax-over-queries", "random", "The softmax runs over the queries; each query's weights over the keys must sum to 1 (axis 1).", ("stable_softmax(s)", "stable_softmax(s.T).T")),
        ("no-maximum", "overflow", "exp overflows, because the row's maximum is not subtracted. Your stable_softmax does that.", ("stable_softmax(s)", "np.exp(s) / np.exp(s).sum(axis=1, keepdims=True)")),
        ("one-maximum-for-all-rows", "rows far apart", "One maximum is taken for all rows, so exp underflows to 0 in rows far below it. Each row needs its own.",
         ("stable_softmax(s)", "np.exp(s - s.max())\n    p = p / p.sum(axis=1, keepdims=True)")),
        ("causal-ignored", "causal", "The argument causal changes nothing.", ("if causal:", "if False:")),
        ("top-left-causal", "causal, more keys", "The mask is aligned at the top left. The last query must see every key: j <= i + Nk - Nq.", (" + n_k - n_q", "")),
        ("sees-one-key-too-many", "causal", "Each query sees one key beyond its own position: the condition is j <= i + Nk - Nq.", ("keys <= rows +", "keys <= 1 + rows +")),
        ("strictly-causal", "causal", "A query does not see its own position: the condition is j <= i + Nk - Nq, not <.", ("keys <= rows", "keys < rows")),
        ("mask-reversed", "causal", "The mask hides the past and shows the future.", ("keys <= rows", "keys >= rows")),
        ("masked-with-zero", "causal", "Masked scores were set to 0, which is an ordinary score with weight exp(0) = 1. Use -inf.", ("s, -np.inf)", "s, 0)")),
        ("masked-after-softmax", "causal", "The mask came after the softmax, so the remaining weights no longer sum to 1. Mask the scores.",
         (MASK + "\n    p = stable_softmax(s)", "pass\n    p = stable_softmax(s)\n    if causal:\n        p = np.where(keys <= rows + n_k - n_q, p, 0)")),
        ("finite-mask", "rows that see no key", "A large negative number instead of -inf makes a row that sees no key uniform; it must be 0.", ("s, -np.inf)", "s, -1e9)")),
        ("nan-guard-missing", "rows that see no key", "A row that sees no key is NaN, since -inf - (-inf) is NaN; it must be 0.",
         ("stable_softmax(s)", "np.exp(s - s.max(axis=1, keepdims=True))\n    p = p / p.sum(axis=1, keepdims=True)")),
    ),
    "naive_traffic": (
        ("stored-but-not-read", "one head", "S and P are each written and then read again: four passes over n x n elements, not two.", ("4 * heads", "2 * heads")),
        ("kv-heads-for-scores", "grouped queries", "S and P exist for every query head, also when several share one head of keys.", ("4 * heads", "4 * kv_heads")),
        ("heads-for-keys", "grouped queries", "k and v have kv_heads heads, not heads.", ("2 * kv_heads", "2 * heads")),
        ("kv-heads-for-output", "grouped queries", "o has as many heads as q.", ("2 * heads + 2 * kv_heads", "heads + 3 * kv_heads")),
        ("elements-for-bytes", "bytes, not elements", "These are elements; multiply by itemsize.", ("head_dim * itemsize", "head_dim"), ("n * n * itemsize", "n * n")),
        ("elements-for-bytes", "bytes, not elements", "The second number is in elements; multiply it by itemsize, too.", ("n * n * itemsize", "n * n")),
        ("bits-for-bytes", "one head", "These are bits: an element has itemsize bytes.", ("head_dim * itemsize", "head_dim * itemsize * 8"), ("n * n * itemsize", "n * n * itemsize * 8")),
        ("output-forgotten", "one head", "The output is written once and counts as traffic too: q, k, v and o.", ("2 * heads + 2", "heads + 2")),
        ("heads-forgotten", "several heads", "Each query head has its own S and P.", ("4 * heads * n", "4 * n")),
        ("head-dim-in-scores", "one head", "S and P have n x n elements; the head dimension is summed over.", ("4 * heads", "4 * head_dim * heads")),
        ("swapped", "one head", "The two numbers are in the wrong order: io_bytes comes first.", ("return io_bytes, intermediate_bytes", "return intermediate_bytes, io_bytes")),
        ("int32-overflow", "a million tokens", "The product does not fit into 32 bits and wrapped around. Python's own integers do not.",
         ("intermediate_bytes = 4 * heads * n * n * itemsize", "import numpy as np\n    intermediate_bytes = int(np.int32(n) * np.int32(n) * np.int32(4 * heads * itemsize))")),
    ),
}
