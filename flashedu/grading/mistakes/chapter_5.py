"""Mistakes of chapter 5 in NumPy. A row: slug, the check that rejects it, the sentence for the learner, then edits (right, wrong)."""

SCORES, GAP = ("= q @ k.T * scale", "= q @ k.T"), "(dp - delta)"
TILE_SCORES = ("k[j0:j1].T * scale", "k[j0:j1].T")
MASK, KEYS = "keys <= rows + n_k - n_q", "keys <= rows + offset"
NEEDS_MASK = "if causal and j1 - 1 > i0 + offset:"
FIRST, VISIBLE = "max(0, j0 - offset) // block_q * block_q if causal else 0", "min(n_k, i1 + offset) if causal else n_k"
UNSEEN = "lse = np.where(lse == -np.inf, np.inf, lse)"
P = "p = np.exp(s - lse[i0:i1, None])"
ADD_DV, ADD_DK, ADD_DQ = "dv[j0:j1] += p.T @ do[i0:i1]", "dk[j0:j1] += ds.T @ q[i0:i1] * scale", "dq[i0:i1] += ds @ k[j0:j1] * scale"
FIRST_PASS, SECOND_PASS = "range(first, n_q, block_q)", "for i0 in range(0, n_q, block_q)"
KEY_TILES, KEYS_OF_A_QUERY = "for j0 in range(0, n_k, block_k)", "range(0, visible, block_k)"
WHOLE = "(j0 for j0 in range(0, {}, block_k) if j0 + block_k <= n_k)"

DELTA_FORGOTTEN = ("delta-forgotten", "The minus term is missing: dS = P * (dP - delta). A softmax row sums to 1, so raising one score lowers the other probabilities.", (GAP, "dp"))
SIGN = ("sign-flipped", "dS has the wrong sign: it is P * (dP - delta), not P * (delta - dP).", (GAP, "(delta - dp)"))
P_MISSING = "dS = P * (dP - delta): the factor P is missing. A key of no weight gets no gradient."
ELEMENTWISE = "P (1 - P) is the derivative of one probability by its own score; every score of a row changes them all. dS = P * (dP - delta)."
DV_DK = "dk and dv are returned in each other's place: the order is dq, dk, dv."
DQ_DK = "dq and dk are returned in each other's place: the order is dq, dk, dv."
NO_SCALE = "s = scale * q k^T, so dq and dk both get a factor scale = 1 / sqrt(D)."
NO_SCALE_IN_SCORES = "The recomputed scores are not multiplied by scale: P must be the forward pass's."
DV_SCALED = "dv has a factor scale that does not belong there: v is not part of the scores."
TWICE = "The factor scale stands in dq and dk twice: once in dS and once more in the products."
TOP_LEFT = "The mask is aligned at the top left. The last query must see every key: j <= i + Nk - Nq."
STRICT = "A query does not see its own position: the condition is j <= i + Nk - Nq, not <."
ONE_MORE = "Each query sees one key beyond its own position: the condition is j <= i + Nk - Nq."
CAUSAL_IGNORED = "The argument causal changes nothing: masked keys have P = 0 and get no gradient from that query."
DV_FROM_DP = "dv = P^T do, not dP^T do: o = P v, so v's gradient is weighted by P."
DP_FROM_O = "dP = do v^T: what comes in is the gradient of the output, not the output."
DV_FROM_DS = "dv is made of P, not of dS: v does not go through the softmax."
DK_FROM_P = "dk is made of dS, not of P: k goes through the softmax."
DTYPE = "The gradients must have the inputs' dtype: a new NumPy array, or np.sqrt of a whole number, is float64 unless told otherwise."
FLOAT32 = "float64 input keeps only 7 digits or so: something was computed in float32, or a small number such as 1e-6 was added to a divisor."
CHANGES = "An in-place operation changed the caller's array. q *= ... and lse[...] = ... write into it; q = q * ... makes a new one."
NAN = "A row that sees no key gives NaN: -inf - (-inf), or 0 / 0. Its P, and so its dq, is 0."

ROWS = {
    "attention_backward": (
        (*DELTA_FORGOTTEN[:1], "random", *DELTA_FORGOTTEN[1:]),
        (*SIGN[:1], "random", *SIGN[1:]),
        ("factor-p-missing", "random", P_MISSING, ("ds = p * (dp - delta)", "ds = dp - delta")),
        ("elementwise-derivative", "random", ELEMENTWISE, ("ds = p * (dp - delta)", "ds = p * (1 - p) * dp")),
        ("delta-not-weighted", "random", "delta is the sum of P * dP over the keys, not that of dP alone.", ("(p * dp).sum", "dp.sum")),
        ("delta-is-mean", "random", "delta is the mean of dP with the weights P, not the plain mean.", ("(p * dp).sum", "dp.mean")),
        ("delta-over-queries", "random", "delta is one number for each query: sum P * dP over the keys, axis 1, not over the queries.", ("delta = (p * dp).sum(axis=1", "delta = (p * dp).sum(axis=0")),
        ("one-delta-for-all-rows", "random", "delta is one number for each query, not one for all of them.", ("(p * dp).sum(axis=1, keepdims=True)", "(p * dp).sum()")),
        ("delta-without-keepdims", "random", "delta has shape (Nq,), which NumPy lays along the keys. It belongs to the rows: keepdims=True, or delta[:, None].", ("(p * dp).sum(axis=1, keepdims=True)", "(p * dp).sum(axis=1)")),
        ("no-scale-in-dq", "random", NO_SCALE, ("ds @ k * scale", "ds @ k")),
        ("no-scale-in-dk", "random", NO_SCALE, ("ds.T @ q * scale", "ds.T @ q")),
        ("no-scale-in-gradients", "random", NO_SCALE, ("ds @ k * scale", "ds @ k"), ("ds.T @ q * scale", "ds.T @ q")),
        ("no-scale-in-scores", "random", NO_SCALE_IN_SCORES, SCORES),
        ("scale-in-dv", "random", DV_SCALED, ("p.T @ do", "p.T @ do * scale")),
        ("scale-twice", "random", TWICE, ("ds = p * (dp - delta)", "ds = p * (dp - delta) * scale")),
        ("dk-and-dv-swapped", "random", DV_DK, ("return dq, dk, dv", "return dq, dv, dk")),
        ("dq-and-dk-swapped", "square", DQ_DK, ("return dq, dk, dv", "return dk, dq, dv")),
        ("dv-missing", "type", "Three gradients are asked for: return dq, dk, dv.", ("return dq, dk, dv", "return dq, dk")),
        ("dv-from-dp", "random", DV_FROM_DP, ("dv = p.T @ do", "dv = (do @ v.T).T @ do")),
        ("dv-from-ds", "square", DV_FROM_DS, ("return dq, dk, dv", "return dq, dk, ds.T @ do")),
        ("dk-from-p", "square", DK_FROM_P, ("ds.T @ q", "p.T @ q")),
        ("dp-from-o", "random", DP_FROM_O, ("dp = do @ v.T", "dp = (p @ v) @ v.T")),
        ("p-not-transposed", "square", "dv = P^T do: a key collects from all queries, so P is transposed.", ("p.T @ do", "p @ do")),
        ("ds-not-transposed", "square", "dk = dS^T q: a key collects from all queries, so dS is transposed.", ("ds.T @ q", "ds @ q")),
        ("dq-transposed", "square", "dq = dS k: a query collects from all keys, so dS is not transposed here.", ("ds @ k", "ds.T @ k")),
        ("dq-from-values", "random", "dq = dS k: the scores' derivative by q is k, not v.", ("ds @ k * scale", "ds @ v * scale")),
        ("softmax-over-queries", "random", "The softmax runs over the keys, the last axis of S, not over the queries.", ("stable_softmax(s)", "stable_softmax(s.T).T")),
        ("no-maximum", "overflow", "P is exp(s) over its sum without the maximum, so exp overflows.", ("stable_softmax(s)", "np.exp(s) / np.exp(s).sum(axis=1, keepdims=True)")),
        ("nan-guard-missing", "rows that see no key", NAN, ("stable_softmax(s)", "np.exp(s - s.max(axis=1, keepdims=True)) / np.exp(s - s.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True)")),
        ("nan-replaced-at-the-end", "rows that see no key", "A row that sees no key gave NaN, which was replaced only in the gradients. There a sum over the queries had already carried it into rows of dk and dv. Set that row's P to 0.",
         ("stable_softmax(s)", "np.exp(s - s.max(axis=1, keepdims=True)) / np.exp(s - s.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True)"), ("return dq, dk, dv", "return tuple(np.nan_to_num(x) for x in (dq, dk, dv))")),
        ("finite-mask", "rows that see no key", "A large negative number instead of -inf gives a row that sees no key the same weight for all keys. Its P must be 0: mask with -inf.", ("s, -np.inf)", "s, q.dtype.type(-1e9))")),
        ("causal-ignored", "causal", CAUSAL_IGNORED, ("if causal:", "if False:")),
        ("mask-after-softmax", "causal", "Masked keys were taken out after the softmax, so the others do not sum to 1. Set their scores to -inf before it.",
         ("s = np.where(keys <= rows + n_k - n_q, s, -np.inf)", "visible = keys <= rows + n_k - n_q"), ("stable_softmax(s)", "stable_softmax(s) * (visible if causal else 1)")),
        ("masked-with-zero", "causal", "A masked score was set to 0, which still has weight exp(0). Set it to -inf.", ("s, -np.inf)", "s, q.dtype.type(0))")),
        ("top-left-causal", "causal, more keys", TOP_LEFT, (MASK, "keys <= rows")),
        ("strictly-causal", "causal", STRICT, (MASK, "keys < rows + n_k - n_q")),
        ("sees-one-key-too-many", "causal", ONE_MORE, (MASK, "keys <= rows + n_k - n_q + 1")),
        ("changes-input", "inputs unchanged", CHANGES, ("    s = q @ k.T * scale", "    q *= scale\n    s = q @ k.T"), ("ds.T @ q * scale", "ds.T @ q")),
        ("changes-input", "inputs unchanged", CHANGES, ("    dp = do @ v.T", "    do *= scale\n    dp = do @ v.T"), ("ds @ k * scale", "ds @ k"), ("ds.T @ q * scale", "ds.T @ q")),
        ("float64-result", "dtype", DTYPE, ("p = stable_softmax(s)", "p = stable_softmax(s).astype(np.float64)")),
        ("float32-inside", "float64", FLOAT32, ("stable_softmax(s)", "stable_softmax(s).astype(np.float32).astype(q.dtype)")),
    ),
    "tiled_backward": (
        (*DELTA_FORGOTTEN[:1], "several tiles", *DELTA_FORGOTTEN[1:2], (" - delta[i0:i1, None]", "")),
        (*SIGN[:1], "several tiles", *SIGN[1:2], ("(dp - delta[i0:i1, None])", "(delta[i0:i1, None] - dp)")),
        ("factor-p-missing", "several tiles", P_MISSING, ("p * (dp - delta[i0:i1, None])", "dp - delta[i0:i1, None]")),
        ("elementwise-derivative", "several tiles", ELEMENTWISE, ("p * (dp - delta[i0:i1, None])", "p * (1 - p) * dp")),
        ("delta-per-tile", "several tiles", "delta was summed over one tile of keys. It belongs to the whole row; do * o, summed over Dv, gives it at once.", ("delta[i0:i1, None])", "(p * dp).sum(axis=1, keepdims=True))")),
        ("delta-without-do", "several tiles", "delta is the sum of do * o over Dv, not of o * o.", ("= (do * o)", "= (o * o)")),
        ("delta-without-o", "several tiles", "delta is the sum of do * o over Dv, not of do * do.", ("= (do * o)", "= (do * do)")),
        ("one-delta-for-all-rows", "several tiles", "delta is one number for each query: sum do * o along axis 1 only.", ("(do * o).sum(axis=1)", "np.full(n_q, (do * o).sum(), q.dtype)")),
        ("no-scale-in-dq", "several tiles", NO_SCALE, (ADD_DQ, ADD_DQ.replace(" * scale", ""))),
        ("no-scale-in-dk", "several tiles", NO_SCALE, (ADD_DK, ADD_DK.replace(" * scale", ""))),
        ("no-scale-in-gradients", "several tiles", NO_SCALE, (ADD_DQ, ADD_DQ.replace(" * scale", "")), (ADD_DK, ADD_DK.replace(" * scale", ""))),
        ("no-scale-in-scores", "several tiles", NO_SCALE_IN_SCORES, TILE_SCORES),
        ("scale-in-dv", "several tiles", DV_SCALED, (ADD_DV, ADD_DV + " * scale")),
        ("scale-twice", "several tiles", TWICE, ("p * (dp - delta[i0:i1, None])", "p * (dp - delta[i0:i1, None]) * scale")),
        ("dk-and-dv-swapped", "several tiles", DV_DK, ("return dq, dk, dv", "return dq, dv, dk")),
        ("dv-from-ds", "several tiles", DV_FROM_DS, (ADD_DV, ADD_DV.replace("p.T", "ds.T"))),
        ("dk-from-p", "several tiles", DK_FROM_P, (ADD_DK, ADD_DK.replace("ds.T", "p.T"))),
        ("dp-from-o", "several tiles", DP_FROM_O, ("do[i0:i1] @ v[j0:j1].T", "o[i0:i1] @ v[j0:j1].T")),
        ("dv-from-dp", "several tiles", DV_FROM_DP, (ADD_DV, "dv[j0:j1] += (do[i0:i1] @ v[j0:j1].T).T @ do[i0:i1]")),
        ("dq-from-values", "several tiles", "dq = dS k: the scores' derivative by q is k, not v.", (ADD_DQ, ADD_DQ.replace("k[j0", "v[j0"))),
        ("lse-added", "several tiles", "P = exp(s - lse): dividing by the sum is subtracting its logarithm, not adding it.", ("s - lse[i0:i1, None]", "s + lse[i0:i1, None]")),
        ("lse-in-base-2", "several tiles", "lse is a natural logarithm, so exp belongs to it. For exp2, multiply s - lse by log2(e) first.", ("np.exp(s -", "np.exp2(s -")),
        ("lse-not-converted", "several tiles", "Only the scores were multiplied by log2(e) for exp2; lse is a natural logarithm and needs the factor too.", ("np.exp(s -", "np.exp2(s * 1.4426950408889634 -")),
        ("lse-divided", "several tiles", "P is exp(s) divided by exp(lse), not by lse: P = exp(s - lse).", (P, "p = np.exp(s) / lse[i0:i1, None]")),
        ("lse-not-used", "several tiles", "P is exp(s) without the row's lse, so nothing is normalised: P = exp(s - lse).", (P, "p = np.exp(s)")),
        ("exp-overflows", "overflow", "exp(s) / exp(lse) overflows where exp(s - lse) does not: subtract before exp.", (P, "p = np.exp(s) / np.exp(lse[i0:i1, None])")),
        ("softmax-of-the-tile", "several tiles", "P was normalised within one tile of keys. The whole row's sum is in lse: P = exp(s - lse), nothing else.", (P, "p = stable_softmax(s)")),
        ("divided-by-the-sum-again", "several tiles", "exp(s - lse) is P already; it was divided by its sum over the tile once more.", (P, P + "\n        p = p / np.maximum(p.sum(axis=1, keepdims=True), 1e-30)")),
        ("maximum-instead-of-lse", "several tiles", "The tile's maximum was subtracted, not the row's lse: P = exp(s - lse) needs no maximum.", (P, "p = np.exp(s - np.maximum(s.max(axis=1, keepdims=True), -1e30))")),
        ("dv-not-accumulated", "several tiles", "dv keeps the last tile of queries only: every query that sees a key adds to it, +=.", (ADD_DV, ADD_DV.replace("+=", "="))),
        ("dk-not-accumulated", "several tiles", "dk keeps the last tile of queries only: every query that sees a key adds to it, +=.", (ADD_DK, ADD_DK.replace("+=", "="))),
        ("dq-not-accumulated", "several tiles", "dq keeps the last tile of keys only: every key that a query sees adds to it, +=.", (ADD_DQ, ADD_DQ.replace("+=", "="))),
        ("nothing-accumulated", "several tiles", "The gradients keep the last tile only. Each is a sum over tiles: +=.", (ADD_DV, ADD_DV.replace("+=", "=")), (ADD_DK, ADD_DK.replace("+=", "=")), (ADD_DQ, ADD_DQ.replace("+=", "="))),
        ("last-queries-dropped", "ragged tiles", "When block_q does not divide Nq, the last queries are left out.", (FIRST_PASS, "range(first, n_q - block_q + 1, block_q)"), (SECOND_PASS, "for i0 in range(0, n_q - block_q + 1, block_q)")),
        ("last-queries-dropped", "ragged tiles", "When block_q does not divide Nq, dk and dv lack the last queries.", (FIRST_PASS, "range(first, n_q - block_q + 1, block_q)")),
        ("last-keys-dropped", "ragged tiles", "When block_k does not divide Nk, the last keys are left out.", (KEY_TILES, f"for j0 in {WHOLE.format('n_k')}"), (KEYS_OF_A_QUERY, WHOLE.format("visible"))),
        ("last-keys-dropped", "ragged tiles", "When block_k does not divide Nk, dq lacks the last keys.", (KEYS_OF_A_QUERY, WHOLE.format("visible"))),
        ("causal-ignored", "causal", CAUSAL_IGNORED, (NEEDS_MASK, "if False:"), (FIRST, "0"), (VISIBLE, "n_k")),
        ("mask-forgotten", "causal", "Tiles above the diagonal are skipped, but the tiles that it crosses are not masked.", (NEEDS_MASK, "if False:")),
        ("mask-counts-from-tile", "causal", "The mask compares row and column numbers within the tile. They must count from the beginning of the arrays.",
         ("np.arange(i0, i1)[:, None], np.arange(j0, j1)", "np.arange(i1 - i0)[:, None], np.arange(j1 - j0)"), (NEEDS_MASK, "if causal:")),
        ("mask-on-corners-only", "causal, unequal tiles", "Only tiles that start on the diagonal are masked. With unequal block sizes it crosses others too.", (NEEDS_MASK, "if causal and j0 == i0 + offset:")),
        ("mask-multiplied", "causal, rising", "exp of a masked score may be infinite, and infinity times 0 is NaN. Set the score to -inf before exp, or use np.where after it.",
         ("s = np.where(keys <= rows + offset, s, -np.inf)", "visible = keys <= rows + offset"), (P, "p = np.exp(s - lse[i0:i1, None]) * (visible if causal and j1 - 1 > i0 + offset else 1)")),
        ("top-left-causal", "causal, more keys", TOP_LEFT, ("n_k - n_q", "0")),
        ("strictly-causal", "causal", STRICT, (KEYS, "keys < rows + offset"), (NEEDS_MASK, "if causal:")),
        ("sees-one-key-too-many", "causal", ONE_MORE, (KEYS, "keys <= rows + offset + 1"), (NEEDS_MASK, "if causal:")),
        ("first-tile-skipped", "causal, unequal tiles", "The loop over queries starts too late: the tile that holds the first query that sees key j0, j0 + Nq - Nk, counts, too. Round down to a multiple of block_q.",
         (FIRST, "-(-max(0, j0 - offset) // block_q) * block_q if causal else 0")),
        ("diagonal-skipped", "causal", "The loop over keys ends before the tile that holds the diagonal: the tile's last row, i1 - 1, sees keys up to i1 - 1 + Nk - Nq.", (VISIBLE, "min(n_k, i0 + offset) if causal else n_k")),
        ("offset-forgotten-in-loop", "causal, more keys", "The loop over queries starts at query j0, but key j0 is seen from query j0 + Nq - Nk on.", (FIRST, "j0 // block_q * block_q if causal else 0")),
        ("offset-forgotten-in-loop", "causal, more keys", "The mask knows of Nk - Nq, but the test that skips tiles does not: the tile's last row, i1 - 1, sees keys up to i1 - 1 + Nk - Nq.",
         (FIRST, "(j0 // block_q * block_q if j0 < n_q else n_q) if causal else 0"), (VISIBLE, "min(n_k, i1) if causal else n_k")),
        ("break-for-continue", "causal", "The loop over queries ends at the first tile that sees none of these keys. Later queries do see them: continue, not break.",
         (FIRST_PASS, "range(0 if first == 0 else n_q, n_q, block_q)"), (VISIBLE, "min(n_k, i1 + offset, min(block_q, n_q) + offset) if causal else n_k")),
        ("negative-start", "causal, more keys", "The loop over queries starts below 0, at j0 + Nq - Nk: NumPy counts negative rows from the end. Start at max(0, ...).",
         (FIRST, "(j0 - offset) // block_q * block_q if causal else 0")),
        ("nan-guard-missing", "rows that see no key", NAN, (UNSEEN, "pass")),
        ("changes-input", "inputs unchanged", CHANGES, (UNSEEN, "lse[lse == -np.inf] = np.inf")),
        ("changes-input", "inputs unchanged", CHANGES, ("    dq, dk, dv = (", "    q *= scale\n    dq, dk, dv = ("), TILE_SCORES, (ADD_DK, ADD_DK.replace(" * scale", ""))),
        ("float64-result", "dtype", DTYPE, ("np.zeros(x.shape, x.dtype)", "np.zeros(x.shape)")),
        ("float32-inside", "float64", FLOAT32, ("np.zeros(x.shape, x.dtype)", "np.zeros(x.shape, np.float32)"),
         ("return dq, dk, dv", "return tuple(x.astype(q.dtype) for x in (dq, dk, dv))")),
        ("materialises", "memory", "All the scores, a mask for all of them, or the results of all tiles exist at once. Keep one tile at a time.", ("    scale, offset", "    block_q, block_k = n_q, n_k\n    scale, offset")),
    ),
}
