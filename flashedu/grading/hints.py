"""Three hints for each exercise: the idea, the plan, and almost the code."""

HINTS = {
    "stable_softmax": (
        "Subtracting the same number from every entry of a row changes nothing in exact arithmetic. Which number keeps exp from overflowing?",
        "Take the maximum over the last axis with keepdims=True, subtract, exp, sum with keepdims=True, divide. Then think about a row of -inf: which two steps give NaN?",
        "m = x.max(axis=-1, keepdims=True); where m is -inf use 0 instead; p = np.exp(x - m); divide by the sum, and where the sum is 0 divide by 1.",
    ),
    "naive_attention": (
        "Three steps: scores, softmax over the keys, weighted sum of the values. Your stable_softmax does the second.",
        "The scale is D ** -0.5 with D = q.shape[1]. For the mask compare a column of query numbers with a row of key numbers, and set hidden scores to -inf before the softmax.",
        "rows = np.arange(Nq)[:, None]; keys = np.arange(Nk); s = np.where(keys <= rows + Nk - Nq, s, -np.inf) if causal; then stable_softmax(s) @ v.",
    ),
    "naive_traffic": (
        "List every array that crosses between HBM and the chip: q, k, v, S, S, P, P, o. Which appear twice, and why?",
        "q and o have `heads` heads, k and v have `kv_heads`. S and P have n x n elements for each query head; each is written by one kernel and read by the next.",
        "io = (heads + kv_heads + kv_heads + heads) * n * head_dim * itemsize; intermediate = 4 * heads * n * n * itemsize.",
    ),
    "update_normalizer": (
        "l is a sum of exp(score - m). If m becomes larger, by which factor is every term of that sum too large?",
        "m_new = max(m, the block's maximum); l_new = l * exp(m - m_new) + sum of exp(scores - m_new). Each row has its own m.",
        "Where m_new is -inf nothing has been seen: subtract 0 instead of m_new there, so that exp(-inf - 0) = 0 and no NaN appears.",
    ),
    "merge_states": (
        "Both states are sums of exp(score - own maximum) times something. Bring them to one maximum; then they simply add.",
        "m = max(m_a, m_b); w_a = exp(m_a - m); w_b = exp(m_b - m); l and o follow the same rule, o with a column of weights.",
        "When both maxima are -inf, use 0 in place of m in the exponents. The output stays undivided.",
    ),
    "online_attention": (
        "Keep (m, l, o) for every query. A block of keys changes all three; the rule for o is the rule for l.",
        "In the loop: scores of this block, new maximum, alpha = exp(m - m_new), p = exp(s - m_new), then l = l * alpha + p.sum(axis=1) and o = o * alpha + p @ v. Divide once after the loop.",
        "Start with m = -inf, l = 0, o = 0 in the inputs' dtype: np.full(Nq, -np.inf, q.dtype). Slices k[start : start + block_size] may be short at the end; that is fine. The factor exp(m - m_new) needs [:, None] for o.",
    ),
    "tiled_attention": (
        "It is online_attention once more, for one tile of queries at a time. The state of a tile never leaves the loop over its keys; o and lse do, once.",
        "For causal, query i sees keys up to i + Nk - Nq. The tile's last row, i1 - 1, decides how far the loop over keys goes; only tiles that hold a key beyond what the first row sees need a mask.",
        "visible = min(Nk, i1 + Nk - Nq) if causal else Nk; for j0 in range(0, visible, block_k). Guard -inf - (-inf) as in update_normalizer; at the end rows whose m is above -inf get acc / l and m + log(l), the others keep 0 and -inf.",
    ),
    "block_sizes": (
        "What is M in the paper: bytes or elements?",
        "M = sram_bytes // itemsize. B_c is M / (4 D) rounded up; B_r is B_c, but at most D.",
        "-(-m // (4 * head_dim)) rounds up in whole numbers. Return (min(block_k, head_dim), block_k).",
    ),
    "tiled_on_machine": (
        "Take your tiled_attention and ask of every array: is it a tile in SRAM (load or alloc), and when is it no longer needed (free)?",
        "Per tile of queries: load q once, alloc m, l and the output. Per tile of keys: load k and v, alloc s, compute with s[:] = ..., free k, v and s. Then store o and lse, and free the rest.",
        "tile[:] = ... writes into SRAM; tile = ... leaves it. P may overwrite S, and lse may overwrite m. Tiles above the diagonal must not be loaded at all.",
    ),
    "attention_backward": (
        "Go through the forward pass backwards: o = P v, P = softmax(S), S = scale q k^T. A product a b with incoming gradient g gives g b^T to a and a^T g to b.",
        "dv = P^T do and dP = do v^T. Through the softmax, row by row: dS = P * (dP - delta), where delta is the row's sum of P * dP. Then dq = scale dS k and dk = scale dS^T q.",
        "p = stable_softmax(s) with masked scores at -inf, as in naive_attention; delta = (p * dp).sum(axis=1, keepdims=True); ds = p * (dp - delta); return ds @ k * scale, ds.T @ q * scale, p.T @ do.",
    ),
    "tiled_backward": (
        "P need not have been stored: exp(s - lse) is P, for any tile, without a maximum and without a sum. And delta, the row's sum of P * dP, equals the row's sum of do * o.",
        "Write the tile's P and dS once, for queries i0:i1 and keys j0:j1. Then two loops: for each tile of keys over the queries (dv += P^T do, dk += scale dS^T q), and for each tile of queries over the keys (dq += scale dS k).",
        "lse = np.where(lse == -np.inf, np.inf, lse) makes exp(s - lse) 0 in rows that see no key. Mask with -inf before exp. Causal: keys run to min(Nk, i1 + Nk - Nq); queries start at max(0, j0 - (Nk - Nq)), rounded down to a multiple of block_q.",
    ),
    "triton_softmax": (
        "One program does one row: its number is tl.program_id(0). It loads the row as one tile, whose length is a power of two, and masks what lies beyond the row.",
        "Pointers are x_ptr + row * stride_m + columns * stride_n. What is masked should come in as -inf: then neither the maximum nor the sum notices. Compute in float32, and convert when storing.",
        "x = tl.load(..., mask=columns < n, other=float('-inf')).to(tl.float32); m = tl.max(x, axis=0), 0 in its place where it is -inf; p = tl.exp(x - m); l = tl.sum(p, axis=0), 1 in its place where it is 0; tl.store(..., mask=columns < n).",
    ),
    "flash_forward": (
        "It is tiled_attention once more. The loop over tiles of queries has become the grid: a program owns one tile of one head, and only the loop over keys is left.",
        "From program_id get the tile, the head h and the batch entry b; the key head is h // (H // Hkv). Before the loop m = -inf, l = 0, acc = 0, all float32. In it: s = tl.dot(q, tl.trans(k)), hide keys past Nk and past the diagonal, then the update you know. After it: o = acc / l, lse = m + log(l).",
        "Tiles are powers of two: mask every load by row < N and column < D with other=0.0, and every store. p.to(v.dtype) for the second tl.dot; input_precision=\"ieee\" in both. With exp2, multiply s by scale * log2(e), and lse by ln(2). Where m is -inf subtract 0, where l is 0 divide by 1.",
    ),
    "flash_backward": (
        "tiled_backward has two loops, and each becomes a kernel: one program for each tile of keys sums dK and dV, one for each tile of queries sums dQ. Then nobody adds to what another program writes.",
        "Delta, the row sums of do * o, can be computed in torch. Both kernels rebuild p = exp(s - lse), and set it to 0 with tl.where after the exp wherever a key is hidden. The kernel of dK and dV also loops over the query heads of the group.",
        "dV += dot(trans(p).to(do.dtype), do); dp = dot(do, trans(v)); ds = p * (dp - delta); dK += dot(trans(ds).to(q.dtype), q) and dQ += dot(ds.to(k.dtype), k), both times scale at the end. Use do.stride(), which may be all 0. Queries past Nq: load lse with other=float('inf').",
    ),
    "fa1_on_machine": (
        "It is tiled_on_machine with the loops exchanged. A tile of keys now meets all the queries before the next one comes. So what do the queries have to leave in HBM when they make room for the next tile of queries?",
        "Per tile of keys: load k and v once. Per tile of queries: load q, o, m and l, alloc s, update, store o, m and l, free them. The o that you load has been divided by its l already: multiply it by that l before you rescale and add to it, then divide by the new l. lse is stored with the last tile of keys.",
        "m_new = np.maximum(m, s.max(axis=1)); kept = l * np.exp(m - m_new); s[:] = np.exp(s - m_new[:, None]); l[:] = kept + s.sum(axis=1); o[:] = (o * kept[:, None] + s @ v) / l[:, None]; m[:] = m_new. For lse: m[:] = m + np.log(l), after m itself has been stored.",
    ),
    "lazy_attention": (
        "l and o are sums of exp(s - m). Nothing in that asks m to be the maximum: any number will do that is the same for l, o and the next block, as long as exp(s - m) does not overflow. So when must m move?",
        "It is online_attention with another rule for m. For each row compare the block's maximum with m. Where it is larger by more than the threshold, m becomes the block's maximum, and l and o are multiplied by exp(m_old - m_new); elsewhere m stays, and that factor is 1. Count the rows that moved, but not when m was still -inf.",
        "top = s.max(axis=1); moves = top > m + threshold; count += int((moves & (m > -np.inf)).sum()); m_new = np.where(moves, top, m); the rest is as in online_attention, with m_new. Return o / l[:, None], count.",
    ),
    "rotate": (
        "If R is a matrix with R R^T = 1, then (q R)(k R)^T = q k^T. Which R makes one large element small, by adding and subtracting it everywhere? And how do you keep a row of equal elements from becoming one large element?",
        "Multiply each row by D random signs, the same for all rows of q and k. Then, with runs of length 1, 2, 4, ... up to D / 2: neighbouring runs a and b become a + b and a - b. In the end divide by sqrt(D).",
        "signs = np.random.default_rng(seed).choice([-1, 1], D).astype(q.dtype). One pass: y = y.reshape(N, -1, 2, run); a, b = y[:, :, 0], y[:, :, 1]; y = np.stack([a + b, a - b], axis=2). After the last pass y.reshape(N, D) * D ** -0.5. Do this to both q and k.",
    ),
    "attention_intensity": (
        "FLOPs divided by bytes. A perfect fused kernel reads and writes nothing but what it is given and what it returns, each once. Which arrays are that, and how many heads has each?",
        "FLOPs: two products for each of `heads` query heads, each n_q x n_k x head_dim multiply-adds, and a multiply-add counts as two. Bytes: q and o have heads * n_q rows, k and v kv_heads * n_k, all of head_dim elements.",
        "4 * n_q * n_k * head_dim * heads / ((2 * heads * n_q + 2 * kv_heads * n_k) * head_dim * itemsize). For n_q = 1 and a long cache in 16 bits it is about heads / kv_heads: why?",
    ),
    "kv_cache_bytes": (
        "What of an earlier token does the next one need? Its query is never used again.",
        "For each token, in each layer, each of kv_heads heads keeps one key and one value, of head_dim elements each.",
        "2 * n * layers * kv_heads * head_dim * itemsize, in whole numbers.",
    ),
    "attention_flop_share": (
        "List the matrix products of one block: which of them grow with n, which with n squared?",
        "A product of (a, b) by (b, c) is 2 a b c FLOPs. Projections: hidden to heads * head_dim for q, to kv_heads * head_dim for k and for v, and heads * head_dim back to hidden. SwiGLU: three products between hidden and ffn. Attention: q k^T and P v for each query head.",
        "attention = 4 * n * n * head_dim * heads; projections = 2 * n * hidden * head_dim * (heads + kv_heads + kv_heads + heads); feed_forward = 3 * 2 * n * hidden * ffn. Return attention / (attention + projections + feed_forward).",
    ),
    "split_kv_attention": (
        "A part of the keys, seen alone, gives a state (m, l, o), as in chapter 2. Your merge_states does the rest, in any order. What is the state of a part that has no key?",
        "Part i has the keys from i * Nk // splits up to (i + 1) * Nk // splits. For each part: its scores, their maximum m, p = exp(s - m), the state (m, p.sum(axis=1), p @ v of these keys). Merge all states. Only then divide: o / l, and lse = m + log(l).",
        "s.max(axis=1, initial=-np.inf) is -inf for an empty part; with it p.sum and p @ v come out as 0, the identity. functools.reduce(merge_states, states) merges a list. If you divide each part by its own l, its weight in the end is exp of its lse: take care of 0 / 0.",
    ),
}
