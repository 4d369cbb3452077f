"""Closed forms: FLOPs, bytes, tiles. What `flashedu.machine` counts must equal these exactly.

A multiply-add counts as two FLOPs. Bytes are HBM bytes; an element counts `itemsize` bytes. Masks are ignored unless
`causal` is an argument.
"""
from flashedu.arguments import validated


@validated
def naive_traffic(n, head_dim, heads, kv_heads, itemsize):
    """HBM bytes of attention as three kernels on n tokens: (io_bytes, intermediate_bytes).

    io_bytes: q and o with `heads` heads and k and v with `kv_heads` heads, each (n, head_dim),
    moved once. intermediate_bytes: S and P, (n, n) for each of `heads` query heads, each
    written once and read once. In the package it raises TypeError or ValueError unless all are
    positive whole numbers and heads a multiple of kv_heads. Source: Dao et al. 2022, section 2.2
    (algorithm 0).
    """
    io_bytes = (2 * heads + 2 * kv_heads) * n * head_dim * itemsize
    intermediate_bytes = 4 * heads * n * n * itemsize
    return io_bytes, intermediate_bytes


@validated
def attention_flops(n_q, n_k, head_dim, heads=1):
    """FLOPs of the two matrix products, q k^T and P v: 4 * n_q * n_k * head_dim * heads.

    Raises TypeError for a size that is no whole number, ValueError for one below 1.
    """
    return 4 * n_q * n_k * head_dim * heads


@validated
def block_sizes(sram_bytes, head_dim, itemsize):
    """The paper's tile sizes in rows, (block_q, block_k) = (B_r, B_c).

    B_c = ceil(M / (4 D)) and B_r = min(B_c, D).

    M = sram_bytes // itemsize is the SRAM's capacity in elements, not bytes; it holds at least
    one. In the package it raises ValueError for a smaller SRAM, and TypeError or ValueError for
    what is no positive whole number. Source: Dao et al. 2022, algorithm 1, line 1.
    """
    m = sram_bytes // itemsize
    block_k = -(-m // (4 * head_dim))  # ceiling division
    return min(block_k, head_dim), block_k


def _sum_of_quotients(n, start, step, size):
    """The sum of max(0, start + step i) // size over i = 0 .. n - 1, in as many steps as Euclid's algorithm takes."""
    negative = max(0, -(start // step))  # terms, which count as 0
    n, start, total = n - negative, start + negative * step, 0
    while n > 0:
        total += n * (n - 1) // 2 * (step // size) + n * (start // size)
        start, step = start % size, step % size
        n, start = divmod(n * step + start, size)
        step, size = size, step  # the points below a line were counted by columns; what is left is counted by rows
    return total


def _visible_tiles(n_q, n_k, block_q, block_k, causal):
    """How many tiles of keys each tile of queries sees, added up over the tiles of queries, the last of which sees all."""
    query_tiles, key_tiles = -(-n_q // block_q), -(-n_k // block_k)
    if not causal:
        return query_tiles * key_tiles
    return _sum_of_quotients(query_tiles - 1, block_q + n_k - n_q + block_k - 1, block_q, block_k) + key_tiles


@validated
def tile_counts(n_q, n_k, block_q, block_k, causal=False):
    """How many tiles of the (n_q, n_k) square are (full, diagonal, skipped).

    Skipped tiles lie wholly above the diagonal and cost nothing, diagonal ones need a mask, full ones do not. Raises
    TypeError or ValueError unless sizes are positive whole numbers and causal True or False.
    """
    query_tiles, key_tiles = -(-n_q // block_q), -(-n_k // block_k)
    full = visible = _visible_tiles(n_q, n_k, block_q, block_k, causal)
    if causal:
        full = _sum_of_quotients(query_tiles, n_k - n_q + 1, block_q, block_k)  # whole tiles that even a tile's first row sees
        if (n_q - 1) % block_q == 0:  # the last tile has one row: a ragged tile of keys is full there, too
            full += key_tiles - n_k // block_k
    return full, visible - full, query_tiles * key_tiles - visible


@validated
def tiled_traffic(n_q, n_k, head_dim, block_q, block_k, itemsize, causal=False):
    """HBM bytes of tiled attention for one head, queries outside and keys inside: (read_bytes, written_bytes).

    q is read once, every visible tile of k and v once for each tile of queries, o and lse are written once, an element
    of lse counting `itemsize` bytes too. Without a mask: read = n_q D + ceil(n_q / block_q) * 2 n_k D elements.
    These are the loads and stores of algorithm 1 of Dao 2023, counted. Raises TypeError or ValueError unless sizes are
    positive whole numbers and causal True or False.
    """
    query_tiles, key_tiles = -(-n_q // block_q), -(-n_k // block_k)
    blind = max(0, n_q - n_k + (key_tiles - 1) * block_k) // block_q if causal else 0  # tiles of queries that do not see the last tile of keys
    missing = key_tiles * block_k - n_k  # rows, of which that tile is short
    key_rows = block_k * _visible_tiles(n_q, n_k, block_q, block_k, causal) - missing * (query_tiles - blind)
    read = n_q * head_dim + 2 * key_rows * head_dim
    written = n_q * head_dim + n_q
    return read * itemsize, written * itemsize


@validated
def fa1_traffic(n_q, n_k, head_dim, block_q, block_k, itemsize):
    """HBM bytes of version 1's loop order for one head, keys outside and queries inside: (read_bytes, written_bytes).

    Every tile of keys reads q and the rows' state o, m, l, and writes the state back; k and v are read once, lse is
    written once. With T = ceil(n_k / block_k): read = 2 n_k D + T n_q (2 D + 2) elements, written = T n_q (D + 2) + n_q;
    block_q changes nothing. These are the loads and stores of algorithm 1 of Dao et al. 2022, counted. Raises TypeError
    for a size that is no whole number, ValueError for one below 1.
    """
    key_tiles = -(-n_k // block_k)
    read = 2 * n_k * head_dim + key_tiles * n_q * (2 * head_dim + 2)
    written = key_tiles * n_q * (head_dim + 2) + n_q
    return read * itemsize, written * itemsize


@validated
def tiled_sram(block_q, block_k, head_dim, itemsize):
    """SRAM bytes that one query tile and one key tile need: q, k, v, S, the output and two row statistics.

    2 B_r D + 2 B_c D + B_r B_c + 2 B_r elements; block sizes at most the lengths. Raises TypeError for a size that is no
    whole number, ValueError for one below 1.
    """
    return (2 * block_q * head_dim + 2 * block_k * head_dim + block_q * block_k + 2 * block_q) * itemsize


@validated
def naive_intensity(n, head_dim, heads, kv_heads, itemsize):
    """FLOP per HBM byte of attention as three kernels: about head_dim / 2 for long sequences in 16 bits.

    Raises what `naive_traffic` raises.
    """
    return attention_flops(n, n, head_dim, heads) / sum(naive_traffic(n, head_dim, heads, kv_heads, itemsize))


@validated
def attention_intensity(n_q, n_k, head_dim, heads, kv_heads, itemsize):
    """FLOP per HBM byte of a perfect fused kernel: q, k and v read once, o written once, nothing else moved.

    In the package it raises TypeError or ValueError unless all are positive whole numbers and heads a
    multiple of kv_heads.
    """
    io_bytes = (2 * heads * n_q + 2 * kv_heads * n_k) * head_dim * itemsize
    return attention_flops(n_q, n_k, head_dim, heads) / io_bytes


@validated
def kv_cache_bytes(n, layers, kv_heads, head_dim, itemsize):
    """Bytes of the keys and values that a model keeps of n tokens: 2 n layers kv_heads head_dim itemsize.

    A decoding step reads all of them for one new token, whatever the kernel; grouped queries make them fewer. In the
    package it raises TypeError for a size that is no whole number, ValueError for one below 1.
    """
    return 2 * n * layers * kv_heads * head_dim * itemsize


@validated
def attention_flop_share(n, hidden, ffn, heads, kv_heads, head_dim):
    """Share of the forward FLOPs of one SwiGLU transformer block, on n tokens, that q k^T and P v take; in (0, 1).

    attention / (attention + projections + feed_forward), where attention = 4 n^2 head_dim heads; projections, of q, k, v
    and of the output, = 2 n hidden head_dim (2 heads + 2 kv_heads); feed_forward, three products, = 6 n hidden ffn. Masks
    are ignored, and nothing else is counted. In the package it raises TypeError or ValueError unless all are positive
    whole numbers and heads a multiple of kv_heads. Source: Shazeer 2020 (GLU variants), section 2, for the feed-forward
    part.
    """
    attention = attention_flops(n, n, head_dim, heads)
    projections = 2 * n * hidden * head_dim * (2 * heads + 2 * kv_heads)
    feed_forward = 2 * n * hidden * ffn * 3
    return attention / (attention + projections + feed_forward)


@validated
def window_flops(n, reach, head_dim, heads=1):
    """FLOPs of the two products when each of n queries sees the keys at most `reach` places away: 4 pairs head_dim heads.

    pairs = n (2 r + 1) - r (r + 1) with r = min(reach, n - 1), since the first and the last r queries have less to see.
    Raises TypeError for what is no whole number, ValueError for a reach below 0 or another size below 1.
    """
    reach = min(reach, n - 1)
    return 4 * (n * (2 * reach + 1) - reach * (reach + 1)) * head_dim * heads


@validated
def pooled_flops(n, rank, head_dim, heads=1):
    """FLOPs of attention of n queries over `rank` means of n keys and values: 4 n rank D heads, and 2 (n - rank) D heads for sums.

    Raises TypeError for a size that is no whole number, ValueError for one below 1.
    """
    return attention_flops(n, rank, head_dim, heads) + 2 * (n - rank) * head_dim * heads


@validated
def linear_flops(n, head_dim, heads=1):
    """FLOPs of linear attention's two products, phi(k)^T v and phi(q) times that: 4 n head_dim^2 heads.

    Raises TypeError for a size that is no whole number, ValueError for one below 1.
    """
    return attention_flops(n, head_dim, head_dim, heads)


@validated
def kept_for_backward(n, head_dim, heads, kv_heads, itemsize):
    """Bytes that one attention layer can keep for its backward pass, n tokens: (qkv_bytes, p_bytes, o_bytes, lse_bytes).

    Naive attention keeps q, k, v and P, (n, n) for each of `heads` query heads; flash attention keeps q, k, v, o and
    lse, which is float32 whatever the itemsize. Raises what `naive_traffic` raises. Source: Dao et al. 2022, section 3.1
    (recomputation).
    """
    qkv_bytes = (heads + 2 * kv_heads) * n * head_dim * itemsize
    return qkv_bytes, heads * n * n * itemsize, heads * n * head_dim * itemsize, heads * n * 4
