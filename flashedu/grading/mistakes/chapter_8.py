"""Mistakes of chapter 8. A row: slug, the check that rejects it, the sentence for the learner, then edits (right, wrong)."""

RUN = "slice(i * n_k // splits, (i + 1) * n_k // splits)"
SCORES, MAXIMUM, P = "q @ k[run].T * scale", "s.max(axis=1, initial=-np.inf)", "np.exp(s - m[:, None])"
APPEND = "states.append((m, p.sum(axis=1), p @ v[run]))"
MERGE, RETURN = "m, l, o = functools.reduce(merge_states, states)", "return o / l[:, None], m + np.log(l)"
STACK = "ms, ls, os = (np.stack(x) for x in zip(*states))\n    top = ms.max(axis=0)\n    w = np.exp(ms - top)\n    "  # how a merge may begin
MEANS = "m, l, o = functools.reduce(merge_states, states)\n    parts = [(o_i / np.where(l_i == 0, 1, l_i)[:, None], m_i + np.log(np.where(l_i == 0, 1, l_i))) for m_i, l_i, o_i in states]\n    "
LSE = "m + np.log(l)"

NO_SCALE = "The scores are not divided by sqrt(D)."
NAN = "A part without keys became NaN: its maximum and its lse are -inf, and -inf - (-inf) and 0 / 0 are NaN. It is the identity of the merge: leave it out, or guard."
ALL_SCORES = "All the scores exist at once. Work on one part after the other, and keep its state only."

ROWS = {
    "split_kv_attention": (
        ("outputs-added", "two parts", "The parts' outputs were added up. Each of them is a mean already: they must be averaged, with the parts' weights.", (MERGE, MEANS + "means = sum(x for x, _ in parts)"), (RETURN, "return means, m + np.log(l)")),
        ("outputs-averaged", "two parts", "The parts' outputs were averaged as if all parts weighed the same. A part's weight is its sum of exp(scores), exp(lse of the part).",
         (MERGE, MEANS + "means = sum(x for x, _ in parts) / splits"), (RETURN, "return means.astype(q.dtype), m + np.log(l)")),
        ("weighted-by-length", "unequal parts", "The parts were weighted by their numbers of keys. A part's weight is its sum of exp(scores), exp(lse of the part).",
         (MERGE, MEANS + "means = sum(x * (((i + 1) * n_k // splits - i * n_k // splits) / n_k) for i, (x, _) in enumerate(parts))"), (RETURN, "return means, m + np.log(l)")),
        ("weighted-by-maximum", "two parts", "The parts were weighted by exp of their maxima. That is the weight of one key in each; a part's weight is its sum of exp(scores), exp(lse of the part).",
         (MERGE, MEANS + STACK + "means = sum(w_i[:, None] * x for w_i, (x, _) in zip(w, parts)) / w.sum(axis=0)[:, None]"), (RETURN, "return means, m + np.log(l)")),
        ("divided-before-the-merge", "one part", "The parts' outputs were divided by their sums l and then merged or weighted as if they were sums, so they were divided twice. Merge o as it is, and divide once in the end.",
         (APPEND, "states.append((m, p.sum(axis=1), p @ v[run] / np.maximum(p.sum(axis=1), 1e-30)[:, None]))")),
        ("weights-not-normalised", "two parts", "The weights of the parts do not sum to 1: divide by their sum, or take exp(lse of the part - lse of all).",
         (MERGE, MEANS + "top = np.max([x for _, x in parts], axis=0)\n    means = sum(np.exp(x - top)[:, None] * y for y, x in parts)"), (RETURN, "return means, m + np.log(l)")),
        ("states-added", "two parts", "The parts' sums were added up as they are, though each was taken under its own maximum. Bring them to one maximum first: that is what merge_states does.",
         (MERGE, STACK + "m, l, o = top, ls.sum(axis=0), os.sum(axis=0)")),
        ("output-not-rescaled", "two parts", "The sums l are brought to one maximum before they are added, the outputs o are not; they follow the same rule.", (MERGE, STACK + "m, l, o = top, (w * ls).sum(axis=0), os.sum(axis=0)")),
        ("sum-not-rescaled", "two parts", "The outputs o are brought to one maximum before they are added, the sums l are not; they follow the same rule.", (MERGE, STACK + "m, l, o = top, ls.sum(axis=0), (w[..., None] * os).sum(axis=0)")),
        ("rescale-inverted", "two parts", "The factor is upside down: a part's sums are multiplied by exp(its maximum - the common one), at most 1.",
         (MERGE, STACK + "w = np.exp(np.minimum(top - ms, 80))\n    m, l, o = top, (w * ls).sum(axis=0), (w[..., None] * os).sum(axis=0)")),
        ("last-part-only", "two parts", "Only one part is left: what the others found was overwritten.", (MERGE, "m, l, o = next(state for state in states[::-1] if state[1].any())")),
        ("lse-is-the-maximum", "two parts", "lse is the largest of the parts' lse. It is the log of the sum of their exp.", (MERGE, MEANS + "lse = np.max([x for _, x in parts], axis=0)"), (RETURN, "return o / l[:, None], lse")),
        ("lses-added", "two parts", "The parts' lse were added up. What adds up is exp of them.", (MERGE, MEANS + "lse = sum(x for _, x in parts if np.isfinite(x).all())"), (RETURN, "return o / l[:, None], lse")),
        ("lse-without-maximum", "one key", "lse is the log of the sum under the maximum: add the maximum.", (LSE, "np.log(l)")),
        ("lse-without-sum", "one part", "The rows' maxima were returned for lse: add log(l).", (LSE, "m")),
        ("sum-for-lse", "one key", "l was returned for lse: it is m + log(l).", (LSE, "l")),
        ("lse-in-base-2", "one key", "lse is in powers of 2. It is a natural logarithm.", (LSE, "(m + np.log(l)) * 1.4426950408889634")),
        ("lse-in-base-2", "one part", "lse is in powers of 2. It is a natural logarithm.", (LSE, "m + np.log2(l)")),
        ("lse-missing", "type", "Only o was returned: return o, lse.", (RETURN, "return o / l[:, None]")),
        ("swapped", "shape", "The two results are in the wrong order: o comes first.", (RETURN, "return m + np.log(l), o / l[:, None]")),
        ("empty-part-nan", "more parts than keys", NAN, (MERGE, "m, l, o = states[0]\n    for m_i, l_i, o_i in states[1:]:\n        top = np.maximum(m, m_i)\n        a, b = np.exp(m - top), np.exp(m_i - top)\n"
         "        m, l, o = top, a * l + b * l_i, a[:, None] * o + b[:, None] * o_i")),
        ("empty-part-nan", "more parts than keys", NAN, (MERGE, STACK + "outputs = os / ls[..., None]\n    m, l, o = top, (w * ls).sum(axis=0), (w[..., None] * ls[..., None] * outputs).sum(axis=0)")),
        ("empty-part-maximum-0", "more parts than keys", "The maximum of a part without keys is -inf and not 0: beside scores far below 0 it makes all weights 0.",
         (APPEND, "states.append((np.where(np.isneginf(m), 0, m), p.sum(axis=1), p @ v[run]))")),
        ("empty-part-refused", "more parts than keys", "The maximum of no scores is refused by NumPy. A part may be empty: leave it out, or give max initial=-np.inf.", (MAXIMUM, "s.max(axis=1)")),
        ("last-keys-dropped", "unequal parts", "When splits does not divide Nk, the last keys are in no part.", (RUN, "slice(i * (n_k // splits), (i + 1) * (n_k // splits))"), ("    for i", "    k, v = (k, v) if n_k >= splits else (k[:0], v[:0])\n    for i")),
        ("last-keys-dropped", "unequal parts", "When splits does not divide Nk, the last keys are in no part.", (RUN, "slice(i * max(1, n_k // splits), (i + 1) * max(1, n_k // splits))")),
        ("keys-twice", "two parts", "The key at the border of two parts is in both.", (RUN, "slice(i * n_k // splits, (i + 1) * n_k // splits + 1)")),
        ("border-keys-dropped", "two parts", "The last key of every part is left out: a slice ends before its stop.", (RUN, "slice(i * n_k // splits, (i + 1) * n_k // splits - 1 if (i + 1) * n_k // splits > i * n_k // splits else 0)")),
        ("values-not-split", "several parts", "Each part multiplies its weights by the values of the first keys. A part's values are those of its own keys.", ("p @ v[run]", "p @ v[: p.shape[1]]")),
        ("no-maximum", "overflow", "exp overflows, because a maximum is not subtracted: in a part that of its rows, and where the parts' lse are put together the largest of them.", (MAXIMUM, "np.zeros(len(q), q.dtype)")),
        ("maximum-starts-at-0", "very low logits", "The maximum is at least 0, so when every score is far below 0, exp gives nothing but 0. Start at -inf.", ("initial=-np.inf", "initial=0")),
        ("one-maximum-for-all-rows", "rows far apart", "One maximum was taken for all rows, so rows far below it underflow to 0. Each row has its own.", (MAXIMUM, "np.full(len(q), s.max(initial=-np.inf), q.dtype)")),
        ("no-scale", "one part", NO_SCALE, (SCORES, "q @ k[run].T")),
        ("never-divided", "one part", "The output was never divided by the sum l.", ("o / l[:, None]", "o")),
        ("materialises", "memory", ALL_SCORES, ("    for i", "    whole = q @ k.T * scale\n    for i"), (SCORES, "whole[:, run]")),
        ("materialises", "memory", ALL_SCORES, ("range(splits)", "range(1)"), (RUN, "slice(0, n_k)")),
        ("changes-input", "inputs unchanged", "q *= ... works in place and changes the caller's array. Write q = q * ....", ("    states = []", "    q *= scale\n    states = []"), (SCORES, "q @ k[run].T")),
        ("float64-result", "dtype", "np.sqrt of a whole number is a float64 scalar, and it turns float32 arrays into float64. A Python number does not: D ** 0.5.", ("q.shape[1] ** -0.5", "1 / np.sqrt(q.shape[1])")),
        ("float32-inside", "float64", "float64 input was computed in float32: the result keeps only 7 digits.",
         ("    states = []", "    dtype, q, k, v = q.dtype, *(x.astype(np.float32) for x in (q, k, v))\n    states = []"), (RETURN, "return (o / l[:, None]).astype(dtype), (m + np.log(l)).astype(dtype)")),
    ),
}
