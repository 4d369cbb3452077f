"""Mistakes of flash_backward. A row: slug, the check that rejects it, the sentence for the learner, then edits (right, wrong)."""
from flashedu.grading.mistakes.chapter_4 import (
              BASE,
              CAUSAL_IGNORED,
              CONTIGUOUS,
              LAST_STRIDE,
              NO_LOAD_MASK,
              NO_SCALE,
              NO_STORE_MASK,
              OTHER_DTYPE,
              PACKAGE_DOES_IT,
              PADDING_LOADED,
              PADDING_STORED,
              STRIDES_OF_K,
              TF32,
              TORCH_DOES_IT,
              VISIBLE,
)

DQ_DS, DK_DS = "ds = p * (dp - delta[:, None])", "ds = p * (dp - delta[None, :])"
BASE_2 = "mask=inside, other=0.0) * LOG2E"
DQ_OFFSET, DK_OFFSET = "i0 + tl.arange(0, BLOCK_Q), n_k - n_q", "j0 + tl.arange(0, BLOCK_K), n_k - n_q"
DQ_HIDE, DK_HIDE = "p = tl.where(visible, p, 0.0)\n", "p = tl.where(keys[:, None] <= rows[None, :] + offset, p, 0.0)\n"
DQ_DOT, DK_DOT, DV_DOT = "tl.dot(ds.to(k.dtype), k, dq, ", "tl.dot(ds.to(q.dtype), q, dk, ", "tl.dot(p.to(do.dtype), do, dv, "
DQ_STRIDES, DK_STRIDES = "*o.stride(), *do.stride()", "*v.stride(), *do.stride(), *dk.stride()"
START = "tl.maximum(0, j0 - offset) // BLOCK_Q * BLOCK_Q"
QUERY_HEAD = (("(h * group + g) * stride_qh", "(h + g * kv_heads) * stride_qh"), ("(h * group + g) * stride_doh", "(h + g * kv_heads) * stride_doh"),
              ("((b * kv_heads + h) * group + g) * n_q", "(b * kv_heads * group + h + g * kv_heads) * n_q"))
KEY_HEAD = (("h // group * stride_kh", "h % (heads // group) * stride_kh"), ("h // group * stride_vh", "h % (heads // group) * stride_vh"))

ROWS = {
    "flash_backward": (
        ("delta-forgotten", "one key", "delta = rowsum(dO * O) is missing from dS = P * (dP - delta).", (DQ_DS, "ds = p * dp"), (DK_DS, "ds = p * dp")),
        ("delta-forgotten-in-dk", "one key", "delta is missing from the dS of which dK is made: dS = P * (dP - delta).", (DK_DS, "ds = p * dp")),
        ("delta-forgotten-in-dq", "one key", "delta is missing from the dS of which dQ is made: dS = P * (dP - delta).", (DQ_DS, "ds = p * dp")),
        ("delta-added", "one key", "The sign of delta is wrong: dS = P * (dP - delta).", (DQ_DS, DQ_DS.replace("dp -", "dp +")), (DK_DS, DK_DS.replace("dp -", "dp +"))),
        ("scale-missing-in-dk", "one tile", "dK = scale dS^T Q: the scale is missing there.", ("dk * scale", "dk")),
        ("scale-missing-in-dq", "one tile", "dQ = scale dS K: the scale is missing there.", ("dq * scale", "dq")),
        ("scale-missing-in-gradients", "one tile", "dQ = scale dS K and dK = scale dS^T Q: the scale is missing in both.", ("dq * scale", "dq"), ("dk * scale", "dk")),
        NO_SCALE,
        BASE,
        ("lse-base-confused", "one key", "lse is a natural logarithm. Beside scores in base 2 it must be multiplied by log2(e).", (BASE_2, BASE_2.removesuffix(" * LOG2E"))),
        ("lse-ignored", "one key", "P = exp(S - lse). Without lse it is neither normalised nor safe from overflow.", (" - lse_2[:, None])", ")"), (" - lse_2[None, :])", ")")),
        ("dp-is-do-times-v", "one tile", "dP misses a transposition or an operand: dP = dO V^T, not dO K^T.", ("tl.dot(do, tl.trans(v)", "tl.dot(do, tl.trans(k)"), ("tl.dot(v, tl.trans(do)", "tl.dot(k, tl.trans(do)")),
        ("dv-from-ds", "one key", "dV = P^T dO: it is made of P, not of dS. v does not go through the softmax.", (DV_DOT, "tl.dot(ds.to(do.dtype), do, dv, ")),
        ("dq-not-accumulated", "several tiles", "dQ holds the last tile of keys only; add to the sum so far.", (DQ_DOT, "tl.dot(ds.to(k.dtype), k, ")),
        ("dk-not-accumulated", "several tiles", "dK holds the last tile of queries only; add to the sum so far.", (DK_DOT, "tl.dot(ds.to(q.dtype), q, ")),
        ("dv-not-accumulated", "several tiles", "dV holds the last tile of queries only; add to the sum so far.", (DV_DOT, "tl.dot(p.to(do.dtype), do, ")),
        ("one-head-of-the-group", "grouped queries", "dK and dV hold the first query head of each group only. Every query head that read a key head adds to its gradient.", ("range(group)", "range(1)")),
        ("wrong-group", "grouped queries", "Query head h belongs to key head h // (H // Hkv): neighbours share one.", *KEY_HEAD, *QUERY_HEAD),
        ("wrong-group-in-dk", "grouped queries", "The query heads of key head h are h * group ... h * group + group - 1: neighbours share one.", *QUERY_HEAD),
        ("wrong-group-in-dq", "grouped queries", "Query head h reads key head h // (H // Hkv): neighbours share one.", *KEY_HEAD),
        ("batch-ignored", "batch", "Every batch entry reads the keys and values of the first. Add b times the batch's stride to the pointers.",
         ("b * stride_kb + h // group", "0 * stride_kb + h // group"), ("b * stride_vb + h // group", "0 * stride_vb + h // group"), ("b * stride_kb + h * ", "0 * stride_kb + h * "), ("b * stride_vb + h * ", "0 * stride_vb + h * ")),
        CAUSAL_IGNORED,
        ("top-left-causal", "causal, more keys", "The mask is aligned at the top left. The last query must see every key: j <= i + Nk - Nq.", (DQ_OFFSET, DQ_OFFSET.replace("n_k - n_q", "n_k * 0")), (DK_OFFSET, DK_OFFSET.replace("n_k - n_q", "n_k * 0"))),
        ("mask-forgotten-in-dq", "causal", "The tiles that the diagonal crosses are not masked where dQ is made.", (VISIBLE, "pass")),
        ("mask-forgotten-in-dk", "causal", "The tiles that the diagonal crosses are not masked where dK and dV are made.", (DK_HIDE, "pass\n")),
        ("p-not-masked", "causal", "dS is masked, but the P of which dV is made is not.", (DK_HIDE, "pass\n"), (DK_DS, DK_DS + "\n            if CAUSAL:\n                ds = tl.where(keys[:, None] <= rows[None, :] + offset, ds, 0.0)")),
        ("diagonal-skipped-in-dq", "causal", "The loop over keys ends before the tile that holds the diagonal.", ("tl.minimum(n_k, i0 + BLOCK_Q + offset)", "tl.minimum(n_k, i0 + offset)")),
        ("queries-skipped", "causal, more keys", "The loop over queries begins too late: key j is seen by every query from j - (Nk - Nq) on.", (START, "tl.maximum(0, j0) // BLOCK_Q * BLOCK_Q")),
        ("masked-by-a-product", "rows that see no key", "Where a row sees no key, exp gives inf or NaN, and 0 times that is NaN. Choose with tl.where after the exp.", (DQ_HIDE, "p = p * tl.where(visible, 1.0, 0.0)\n")),
        ("masked-before-exp", "rows that see no key", "Scores were set to -inf before exp, and -inf - lse is NaN where lse is -inf. Set P and dS to 0 with tl.where after the exp.",
         (DQ_HIDE, "pass\n"), ("        p = tl.exp2(s * scale_log2 - lse_2[:, None])", '        if MASKED:\n            hidden = (j + tl.arange(0, BLOCK_K))[None, :] > (rows[:, None] + offset if CAUSAL else n_k - 1)\n            s = tl.where(hidden, float("-inf"), s)\n        p = tl.exp2(s * scale_log2 - lse_2[:, None])')),
        (*NO_LOAD_MASK[:1], "ragged queries", NO_LOAD_MASK[2], ("tl.load(ptr + rows, mask=rows < n, other=fill)", "tl.load(ptr + rows)")),
        NO_LOAD_MASK,
        NO_STORE_MASK,
        ("no-mask-on-delta", "guard bands", "delta of the last tile is stored past its end. Give that tl.store a mask, too.", ("delta, mask=inside)", "delta)")),
        PADDING_LOADED,
        PADDING_STORED,
        ("last-queries-dropped", "ragged queries", "When the tile does not divide Nq, dK and dV miss the last queries.", ("range(start, n_q, BLOCK_Q)", "range(start, n_q // BLOCK_Q * BLOCK_Q, BLOCK_Q)")),
        ("last-keys-dropped", "ragged keys", "When the tile does not divide Nk, dQ misses the last keys.", ("whole, stop = n_k // BLOCK_K * BLOCK_K, n_k", "whole, stop = n_k // BLOCK_K * BLOCK_K, n_k // BLOCK_K * BLOCK_K")),
        ("strides-of-do-ignored", "a gradient from .sum()", "do has strides of its own: those of a gradient from .sum() are all 0.", (DQ_STRIDES, "*o.stride(), *dq.stride()"), (DK_STRIDES, "*v.stride(), *dq.stride(), *dk.stride()")),
        LAST_STRIDE,
        (*CONTIGUOUS, ("*q.stride(), *k.stride(), *v.stride(), " + DQ_STRIDES, "*dq.stride(), *dk.stride(), *dv.stride(), *dq.stride(), *dq.stride()"), ("*q.stride(), *k.stride(), " + DK_STRIDES, "*dq.stride(), *dk.stride(), *dv.stride(), *dq.stride(), *dk.stride()")),
        (*STRIDES_OF_K, ("*v.stride(), *o.stride()", "*k.stride(), *o.stride()"), ("*v.stride(), *do.stride(), *dk", "*k.stride(), *do.stride(), *dk")),
        ("sums-by-many-programs", "the same bits", "Several programs add to the same elements of dQ, so that the bits depend on which comes first. Give dQ a kernel of its own, in which a program owns a tile of queries.",
         (f"            dk = {DK_DOT}", f"            columns = tl.arange(0, BLOCK_D)[None, :]\n            dq = tl.dot(tl.trans(ds.to(k.dtype)), k, input_precision=PRECISION) * scale\n            tl.atomic_add(dq_ptr + (row_0 + rows)[:, None] * D + columns, dq, mask=(rows < n_q)[:, None] & (columns < D))\n            dk = {DK_DOT}"),
         ("q_ptr, k_ptr, v_ptr, do_ptr, lse_2_ptr", "dq_ptr, q_ptr, k_ptr, v_ptr, do_ptr, lse_2_ptr"),
         ("q, k, v, do, lse_2, delta", "sums, q, k, v, do, lse_2, delta"), ("    tile = pick(DKDV, q)\n", "    sums = torch.zeros(q.shape, device=q.device)\n    tile = pick(DKDV, q)\n"),
         ("    return dq, dk, dv\n", "    return sums.to(q.dtype), dk, dv\n")),
        ("float16-accumulator", "float16", "dV was kept in float16: it overflows at 65504 and rounds after every tile. Accumulate in float32 and convert when storing.",
         (DV_DOT + "input_precision=PRECISION)", DV_DOT + "input_precision=PRECISION).to(do.dtype).to(tl.float32)")),
        ("p-in-float16", "one tile", "P was rounded to float16 although the inputs are float32. Convert it to the type of do, p.to(do.dtype).", ("p.to(do.dtype)", "p.to(tl.float16).to(do.dtype)")),
        (*OTHER_DTYPE, ("torch.float32 if wide else x.dtype", "torch.float32")),
        ("wrong-order", "one tile", "The gradients are returned in another order than dq, dk, dv.", ("    return dq, dk, dv\n", "    return dk, dq, dv\n")),
        ("dk-and-dv-swapped", "one key", "dK and dV are returned in each other's place: the order is dq, dk, dv.", ("    return dq, dk, dv\n", "    return dq, dv, dk\n")),
        ("materialises", "memory", "A tensor of Nq x Nk elements was made. P is recomputed tile by tile, and never stored.", ("    lse_2, delta =", "    p = torch.empty((batch, heads, n_q, n_k), device=q.device)\n    lse_2, delta =")),
        ("changes-input", "inputs unchanged", "lse *= ... works in place and changes the caller's tensor. Write lse = lse * ....", ("    lse, dlse =", "    lse *= math.log2(math.e)\n    lse, dlse ="), (BASE_2, BASE_2.removesuffix(" * LOG2E"))),
        (*PACKAGE_DOES_IT, ("    return dq, dk, dv\n", "    from flashedu.kernels.backward import flash_backward\n    return flash_backward(q, k, v, o, lse, do, causal)\n")),
        (*TORCH_DOES_IT, ("    return dq, dk, dv\n", "    return dq, dk, torch.exp(q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * scale - lse[..., None]).mT @ do\n")),
    ),
}
GPU_ROWS = {"flash_backward": (TF32,)}
