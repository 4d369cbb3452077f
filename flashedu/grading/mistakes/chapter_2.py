"""Mistakes of chapter 2. A row: slug, the check that rejects it, the sentence for the learner, then edits (right, wrong)."""

WEIGHTS = "w_a, w_b = np.exp(m_a - safe), np.exp(m_b - safe)"
WEIGHTED = "w_a[:, None] * o_a + w_b[:, None] * o_b"
RUNNING = "np.maximum(m, s.max(axis=1))"
KEEP_SUM, KEEP_OUTPUT = ("l * alpha", "l"), ("o * alpha[:, None]", "o")

ROWS = {
    "update_normalizer": (
        ("no-rescale", "rising maxima", "The old sum was taken under the old maximum; multiply it by exp(m_old - m_new) before adding.", ("l * np.exp(m - safe)", "l")),
        ("rescale-inverted", "rising maxima", "The factor is upside down: it is exp(m_old - m_new), at most 1.", ("np.exp(m - safe)", "np.exp(safe - m)")),
        ("stale-maximum", "rising maxima", "The block's exponentials were taken under the old maximum; use the new one.", ("l * np.exp(m - safe)", "l"), ("scores - safe[:, None]", "scores - m[:, None]")),
        ("everything-rescaled", "rising maxima", "The new block's sum was rescaled too; only what was summed under the old maximum needs it.",
         ("l * np.exp(m - safe) + np.exp(scores - safe[:, None]).sum(axis=1)", "(l + np.exp(scores - safe[:, None]).sum(axis=1)) * np.exp(m - safe)")),
        ("block-maximum", "falling maxima", "The maximum is that of the block alone; it must never fall: max(m, block).", ("np.maximum(m, scores.max(axis=1))", "scores.max(axis=1)")),
        ("one-maximum-for-all-rows", "several rows", "One maximum was taken for all rows; each row has its own.", ("scores.max(axis=1)", "scores.max()")),
        ("wrong-axis", "square", "The maximum runs over the rows; a row's maximum is over its keys, axis 1.", ("scores.max(axis=1)", "scores.max(axis=0)")),
        ("old-sum-lost", "one row", "The sum so far was replaced by the block's; add to it.", ("l * np.exp(m - safe) + ", "")),
        ("no-maximum", "overflow", "The maximum is not subtracted from the block's scores.", ("scores - safe[:, None]", "scores")),
        ("nan-guard-missing", "nothing seen yet", "While a row has seen only -inf, m_old - m_new is -inf - (-inf) = NaN. Subtract 0 there instead.", ("np.where(m_new == -np.inf, 0, m_new)", "m_new")),
        ("changes-input", "inputs unchanged", "m and l were overwritten in place; return new arrays.", ("return m_new, l_new", "m[:], l[:] = m_new, l_new\n    return m, l")),
        ("float32-inside", "float64", "float64 input was computed in float32: the result keeps only 7 digits.", ("return m_new, l_new", "return m_new, l_new.astype(np.float32).astype(l.dtype)")),
    ),
    "merge_states": (
        ("no-weights", "b is larger", "Sums and outputs under different maxima were simply added; bring both to the common maximum first.", (WEIGHTS, "w_a, w_b = np.ones_like(m), np.ones_like(m)")),
        ("output-not-weighted", "b is larger", "The sums are rescaled, but the outputs are not; o follows the same rule as l.", (WEIGHTED, "o_a + o_b")),
        ("sum-not-weighted", "b is larger", "The outputs are rescaled, but the sums are not; l follows the same rule as o.", ("w_a * l_a + w_b * l_b", "l_a + l_b")),
        ("weights-swapped", "b is larger", "The weights are exchanged: a must be multiplied by exp(m_a - m).", (WEIGHTS, "w_b, w_a = np.exp(m_a - safe), np.exp(m_b - safe)")),
        ("weights-inverted", "b is larger", "The weights are upside down: they are exp(m_a - m) and exp(m_b - m), at most 1.", (WEIGHTS, "w_a, w_b = np.exp(safe - m_a), np.exp(safe - m_b)")),
        ("only-a-rescaled", "a is larger", "Only a is rescaled, as if b always held the maximum. Either may.", (WEIGHTS, "w_a, w_b = np.exp(m_a - safe), np.ones_like(m)")),
        ("maximum-of-a", "b is larger", "The maximum of a was kept; the common one is the larger of the two.", ("m = np.maximum(m_a, m_b)", "m = m_a.copy()")),
        ("one-maximum-for-all-rows", "several rows", "One maximum was taken for all rows; each row has its own.", ("m = np.maximum(m_a, m_b)", "m = np.full_like(m_a, max(m_a.max(), m_b.max()))")),
        ("averaged", "one row", "The outputs were averaged. They are unnormalised sums: add them, and divide by l only at the very end.", (WEIGHTED, f"({WEIGHTED}) / 2")),
        ("divided-too-early", "one row", "The output was divided by l. A state keeps it unnormalised, or it could not be merged again.", ("return m, l, o", "return m, l, o / l[:, None]")),
        ("weighted-by-sum", "one row", "The outputs were multiplied by l as if they were normalised; in a state they are not.", (WEIGHTED, "(w_a * l_a)[:, None] * o_a + (w_b * l_b)[:, None] * o_b")),
        ("nan-guard-missing", "both are empty", "Two empty states give NaN, since -inf - (-inf) is NaN; the result is empty as well.", ("np.where(m == -np.inf, 0, m)", "m")),
        ("changes-input", "inputs unchanged", "A state was overwritten in place; return new arrays.", ("return m, l, o", "l_a[:] = l\n    return m, l, o")),
        ("float32-inside", "float64", "float64 input was computed in float32: the result keeps only 7 digits.", ("return m, l, o", "return m, l.astype(np.float32).astype(l.dtype), o")),
    ),
    "online_attention": (
        ("no-rescale", "rising maxima", "When the maximum rises, what was summed under the old one is too large: multiply l and o by exp(m_old - m_new).", KEEP_SUM, KEEP_OUTPUT),
        ("output-not-rescaled", "rising maxima", "The sum l is rescaled, but the output o is not; it follows the same rule.", KEEP_OUTPUT),
        ("sum-not-rescaled", "rising maxima", "The output o is rescaled, but the sum l is not; it follows the same rule.", KEEP_SUM),
        ("rescale-inverted", "rising maxima", "The factor is upside down: it is exp(m_old - m_new), at most 1.", ("np.exp(m - m_new)", "np.exp(m_new - m)")),
        ("stale-maximum", "rising maxima", "The maximum of the first block was kept, and exp overflows when a later block is larger.", (RUNNING, "s.max(axis=1) if start == 0 else m")),
        ("block-maximum", "falling maxima", "The maximum is that of the block alone. When it falls, exp(m_old - m_new) overflows; the running maximum never falls.", (RUNNING, "s.max(axis=1)")),
        ("one-maximum-for-all-rows", "rows far apart", "One maximum was taken for all rows, so rows far below it underflow to 0 / 0. Each row has its own.", ("s.max(axis=1)", "s.max()")),
        ("no-maximum", "overflow", "No maximum is subtracted, so exp overflows.", (RUNNING, "np.zeros_like(m)")),
        ("averaged-blocks", "several blocks", "Each block got a softmax of its own and the results were averaged. Blocks with small scores then weigh as much as blocks with large ones.",
         (RUNNING, "s.max(axis=1)"), ("l * alpha + p.sum(axis=1)", "l + 1"), ("o * alpha[:, None] + p @ v_j", "o + p @ v_j / p.sum(axis=1)[:, None]")),
        ("summed-blocks", "several blocks", "Each block got a softmax of its own and the results were added, so the weights sum to the number of blocks.",
         (RUNNING, "s.max(axis=1)"), ("l * alpha + p.sum(axis=1)", "np.ones_like(l)"), ("o * alpha[:, None] + p @ v_j", "o + p @ v_j / p.sum(axis=1)[:, None]")),
        ("divided-too-early", "several blocks", "Each block was divided by the sum so far, which is not yet the whole sum. Divide once, at the end.", ("p @ v_j", "p @ v_j / l[:, None]"), ("return o / l[:, None]", "return o")),
        ("never-divided", "one block", "The output was never divided by the sum l.", ("return o / l[:, None]", "return o")),
        ("no-scale", "one block", "The scores are not divided by sqrt(D).", (" * scale", "")),
        ("last-block-dropped", "ragged last block", "When block_size does not divide Nk, the last keys are left out.", ("range(0, n_k, block_size)", "range(0, n_k - block_size + 1, block_size)")),
        ("materialises", "memory", "All the scores exist at once. Take the keys block by block.", ("    for start", "    block_size = n_k\n    for start")),
        ("changes-input", "inputs unchanged", "q *= ... works in place and changes the caller's array. Write q = q * ....", ("    m = np.full", "    q *= scale\n    m = np.full"), (" * scale  # (Nq, B)", "")),
        ("float32-inside", "float64", "float64 input was computed in float32: the result keeps only 7 digits.",
         ("    m = np.full", "    dtype, q, k, v = q.dtype, *(x.astype(np.float32) for x in (q, k, v))\n    m = np.full"), ("return o / l[:, None]", "return (o / l[:, None]).astype(dtype)")),
    ),
}
