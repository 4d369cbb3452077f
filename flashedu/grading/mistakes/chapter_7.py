"""Mistakes of chapter 7. A row: slug, the check that rejects it, the sentence for the learner, then edits (right, wrong)."""

FLOPS, IO = "attention_flops(n_q, n_k, head_dim, heads)", "io_bytes = (2 * heads * n_q + 2 * kv_heads * n_k) * head_dim * itemsize"
CACHE = "2 * n * layers * kv_heads * head_dim * itemsize"
ATTENTION, PROJECTIONS = "attention_flops(n, n, head_dim, heads)", "2 * n * hidden * head_dim * (2 * heads + 2 * kv_heads)"
SHARE = "return attention / (attention + projections + feed_forward)"
BITS = "These are bits: an element has itemsize bytes."
WRAPPED = "The product does not fit into 32 bits and wrapped around. Python's own integers do not."
ADDITIONS = "The FLOPs of {} are half of what they are: a multiply-add counts as two."
HALF = "Half of attention's FLOPs are missing. There are two products, q k^T and P v, a multiply-add counts as two, and no mask makes them fewer."

ROWS = {
    "attention_intensity": (
        ("half-the-flops", "one head", HALF, (FLOPS, FLOPS + " / 2")),
        ("a-quarter-of-the-flops", "one head", "Only a quarter of the FLOPs is there: two products, q k^T and P v, and a multiply-add counts as two.", (FLOPS, FLOPS + " / 4")),
        ("causal-pairs", "as many queries as keys", "Only the pairs that a causal mask leaves were counted. Masks are ignored here: every query meets every key.",
         (FLOPS, "4 * (n_q * n_k - n_q * (n_q - 1) // 2) * head_dim * heads")),
        ("heads-forgotten", "several heads", "The FLOPs are those of one head, while the bytes are those of all.", (FLOPS, "attention_flops(n_q, n_k, head_dim)")),
        ("kv-heads-for-flops", "grouped queries", "Every query head multiplies by keys, also when several share one head of keys: the FLOPs grow with heads, not with kv_heads.",
         (FLOPS, "attention_flops(n_q, n_k, head_dim, kv_heads)")),
        ("heads-for-keys", "grouped queries", "k and v have kv_heads heads, and each of them is read once for its whole group, not once for every query head.", ("2 * kv_heads * n_k", "2 * heads * n_k")),
        ("kv-heads-for-queries", "grouped queries", "q and o have heads heads, not kv_heads.", ("2 * heads * n_q", "2 * kv_heads * n_q")),
        ("elements-for-bytes", "bytes, not elements", "The elements were counted; multiply by itemsize.", (" * itemsize", "")),
        ("bits-for-bytes", "one head", BITS, (" * itemsize", " * itemsize * 8")),
        ("output-forgotten", "one head", "The output is written once and counts too: q, k, v and o.", ("2 * heads * n_q", "heads * n_q")),
        ("values-forgotten", "one head", "v is read as well as k.", ("2 * kv_heads * n_k", "kv_heads * n_k")),
        ("query-rows-for-keys", "one head", "k and v have n_k rows, not n_q.", ("2 * kv_heads * n_k", "2 * kv_heads * n_q")),
        ("scores-in-memory", "one head", "S and P were counted. A fused kernel never writes them: q, k and v are read, o is written, and that is all.",
         (IO, IO + " + 4 * heads * n_q * n_k * itemsize")),
        ("scores-in-memory", "one head", "S and P were counted. A fused kernel never writes them: q, k and v are read, o is written, and that is all.",
         (IO, IO + " + 2 * heads * n_q * n_k * itemsize")),
        ("keys-for-every-query", "one head", "k and v were read once for every query. The kernel is perfect: it reads them once.", ("2 * kv_heads * n_k", "2 * kv_heads * n_k * n_q")),
        ("lse-counted", "one head", "lse was counted: a fused kernel may write it, but here only q, k, v and o count.", (IO, IO + " + heads * n_q * itemsize")),
        ("lse-counted", "one head", "lse was counted: a fused kernel may write it, but here only q, k, v and o count.", (IO, IO + " + heads * n_q * 4")),
        ("upside-down", "one head", "This is bytes per FLOP; FLOP per byte is wanted.", (FLOPS + " / io_bytes", "io_bytes / " + FLOPS)),
        ("rounded-down", "one head", "// rounds down. The intensity is no whole number: divide with /.", (" / io_bytes", " // io_bytes")),
    ),
    "kv_cache_bytes": (
        ("values-forgotten", "one token", "Only the keys were counted: a token leaves a key and a value.", (CACHE, CACHE.removeprefix("2 * "))),
        ("queries-too", "one token", "Queries were counted, too. Nobody needs those of earlier tokens: the cache holds keys and values.", ("2 * n", "3 * n")),
        ("elements-for-bytes", "bytes, not elements", "These are elements; multiply by itemsize.", (" * itemsize", "")),
        ("bits-for-bytes", "one token", BITS, (" * itemsize", " * itemsize * 8")),
        ("two-bytes-assumed", "one token", "An element was taken to have two bytes; it has itemsize.", (" * itemsize", " * 2")),
        ("one-layer", "several layers", "This is the cache of one layer: every layer has keys and values of its own.", (" * layers", "")),
        ("one-head", "several heads", "This is the cache of one head: there are kv_heads in every layer.", (" * kv_heads", "")),
        ("head-dim-forgotten", "one token", "A key has head_dim elements in each head.", (" * head_dim", "")),
        ("one-token", "several tokens", "This is what one token adds: multiply by n.", (" * n *", " *")),
        ("scores-for-keys", "several tokens", "This grows with n squared, as scores do. The cache holds no scores: it grows with n.", ("2 * n", "2 * n * n")),
        ("larger-units", "type", "The result is in larger units, as a fraction. Bytes are wanted, a whole number.", (CACHE, CACHE + " / 2**30")),
        ("larger-units", "type", "The result is in larger units, as a fraction. Bytes are wanted, a whole number.", (CACHE, CACHE + " / 2**20")),
        ("larger-units", "type", "The result is in larger units, as a fraction. Bytes are wanted, a whole number.", (CACHE, CACHE + " / 1e9")),
        ("larger-units", "type", "The result is in larger units, as a fraction. Bytes are wanted, a whole number.", (CACHE, CACHE + " / 1e6")),
        ("int32-overflow", "a million tokens", WRAPPED, ("return " + CACHE, "import numpy as np\n    return int(np.int32(2 * n) * np.int32(layers * kv_heads * head_dim * itemsize))")),
    ),
    "attention_flop_share": (
        ("half-of-attention", "one head", HALF, (ATTENTION, ATTENTION + " / 2")),
        ("a-quarter-of-attention", "one head", "Only a quarter of attention's FLOPs is there: two products, q k^T and P v, and a multiply-add counts as two.", (ATTENTION, ATTENTION + " / 4")),
        ("linear-attention", "one head", "Attention's FLOPs grow with n squared: each of n queries meets n keys.", (ATTENTION, "4 * n * head_dim * heads")),
        ("heads-forgotten", "several heads", "These are the products of one head: every query head has its own.", (ATTENTION, "attention_flops(n, n, head_dim)")),
        ("kv-heads-for-scores", "grouped queries", "q k^T and P v exist for every query head, also when several share one head of keys.", (ATTENTION, "attention_flops(n, n, head_dim, kv_heads)")),
        ("heads-for-keys", "grouped queries", "k and v have kv_heads heads, so their projections are narrower than that of q.", ("2 * heads + 2 * kv_heads", "4 * heads")),
        ("kv-heads-for-output", "grouped queries", "The output projection takes heads * head_dim numbers for a token, as many as that of q makes.", ("2 * heads + 2 * kv_heads", "heads + 3 * kv_heads")),
        ("output-projection-forgotten", "one head", "The output projection is missing: after attention a matrix takes the heads back to the model's width.", ("2 * heads +", "heads +")),
        ("value-projection-forgotten", "one head", "One of the projections of k and v is missing.", ("2 * kv_heads", "kv_heads")),
        ("projections-forgotten", "one head", "The projections of q, k, v and of the output are missing.", (PROJECTIONS, "0")),
        ("feed-forward-forgotten", "one head", "The feed-forward part is missing: three products.", ("2 * n * hidden * ffn * 3", "0")),
        ("two-feed-forward-products", "one head", "A SwiGLU feed-forward part has three products: gate, up and down.", ("ffn * 3", "ffn * 2")),
        ("one-feed-forward-product", "one head", "A SwiGLU feed-forward part has three products: gate, up and down.", ("ffn * 3", "ffn")),
        ("hidden-for-heads", "heads wider than the model", "heads * head_dim need not be the model's width, hidden: q has heads * head_dim numbers for a token.", ("head_dim * (2 * heads + 2 * kv_heads)", "(2 * hidden + 2 * kv_heads * head_dim)")),
        ("hidden-for-heads", "grouped queries", "The projections are not hidden x hidden: q makes heads * head_dim numbers for a token, k and v kv_heads * head_dim.", ("head_dim * (2 * heads + 2 * kv_heads)", "4 * hidden")),
        ("multiply-adds-as-one", "one head", ADDITIONS.format("projections and feed-forward products"), (PROJECTIONS, PROJECTIONS.removeprefix("2 * ")), ("2 * n * hidden * ffn", "n * hidden * ffn")),
        ("projections-multiply-adds-as-one", "one head", ADDITIONS.format("the projections"), (PROJECTIONS, PROJECTIONS.removeprefix("2 * "))),
        ("feed-forward-multiply-adds-as-one", "one head", ADDITIONS.format("the feed-forward products"), ("2 * n * hidden * ffn", "n * hidden * ffn")),
        ("projections-as-attention", "one head", "The projections were counted as attention. They are part of the whole; attention is q k^T and P v alone.", (SHARE, "return (attention + projections) / (attention + projections + feed_forward)")),
        ("part-by-rest", "one head", "Attention was divided by the rest. A share is the part divided by the whole, attention included.", (SHARE, "return attention / (projections + feed_forward)")),
        ("the-rest", "one head", "This is the share of everything but attention.", (SHARE, "return (projections + feed_forward) / (attention + projections + feed_forward)")),
        ("percent", "one head", "The share is a number between 0 and 1, not a percentage.", (SHARE, SHARE.replace("return", "return 100 *"))),
        ("upside-down", "one head", "The whole was divided by the part.", (SHARE, "return (attention + projections + feed_forward) / attention")),
        ("rounded-down", "one head", "// rounds down, and a share is always below 1: divide with /.", (SHARE, "return attention // (attention + projections + feed_forward)")),
    ),
}
