"""The closed forms against counting one by one, and against the numbers that the course quotes."""
import itertools
from fractions import Fraction

import numpy as np
import pytest

from flashedu import cost
from flashedu.results import load

N, HEAD_DIM, HEADS, KV_HEADS, BF16 = 8192, 128, 32, 8, 2  # one layer of Llama-3-8B
LAYER = {"n": N, "head_dim": HEAD_DIM, "heads": HEADS, "kv_heads": KV_HEADS, "itemsize": BF16}

SHAPES = [(1, 1), (8, 8), (7, 7), (5, 13), (13, 5), (1, 9), (9, 1), (16, 12), (2, 30)]
BLOCKS = [(1, 1), (2, 3), (4, 4), (5, 2), (3, 16), (16, 3), (40, 40)]


def sees(n_q, n_k, causal):
    """sees[i, j]: query i sees key j; the last query sees every key."""
    return np.array([[not causal or j - (n_k - 1) <= i - (n_q - 1) for j in range(n_k)] for i in range(n_q)])


def tiles(mask, block_q, block_k):
    for i in range(0, mask.shape[0], block_q):
        for j in range(0, mask.shape[1], block_k):
            yield i, mask[i : i + block_q, j : j + block_k]


@pytest.mark.parametrize("shape, blocks, causal", list(itertools.product(SHAPES, BLOCKS, (False, True))))
def test_tile_counts_against_looking_at_every_tile(shape, blocks, causal):
    kinds = [0 if tile.all() else 1 if tile.any() else 2 for _, tile in tiles(sees(*shape, causal), *blocks)]
    assert cost.tile_counts(*shape, *blocks, causal) == tuple(kinds.count(kind) for kind in range(3))


@pytest.mark.parametrize("shape, blocks, causal, itemsize", list(itertools.product(SHAPES, BLOCKS, (False, True), (1, 2, 4))))
def test_tiled_traffic_against_adding_up_tiles(shape, blocks, causal, itemsize):
    (n_q, n_k), d = shape, 3
    read = sum(d for _ in range(n_q))
    for _, tile in tiles(sees(n_q, n_k, causal), *blocks):
        if tile.any():
            read += 2 * d * tile.shape[1]  # its keys and its values
    written = sum(d + 1 for _ in range(n_q))  # a row of o, and its lse
    assert cost.tiled_traffic(n_q, n_k, d, *blocks, itemsize, causal) == (read * itemsize, written * itemsize)


@pytest.mark.parametrize("n_q, n_k", list(itertools.product(range(1, 7), repeat=2)))
def test_every_small_mask_against_looking_at_every_tile(n_q, n_k):
    mask = sees(n_q, n_k, True)
    for block_q, block_k in itertools.product(range(1, 5), repeat=2):
        found = [tile for _, tile in tiles(mask, block_q, block_k)]
        full, seen = sum(tile.all() for tile in found), sum(tile.any() for tile in found)
        assert cost.tile_counts(n_q, n_k, block_q, block_k, True) == (full, seen - full, len(found) - seen)
        read = n_q + 2 * sum(tile.shape[1] for tile in found if tile.any())
        assert cost.tiled_traffic(n_q, n_k, 1, block_q, block_k, 1, True)[0] == read


@pytest.mark.parametrize("rows", [10**12, 10**400])
def test_any_size_is_counted_at_once(rows):
    """A square of tiles: T on the diagonal, as many below it as above."""
    n, half, elements = 128 * rows, rows * (rows - 1) // 2, 64 * 2
    assert cost.tile_counts(n, n, 128, 128) == (rows * rows, 0, 0)
    assert cost.tile_counts(n, n, 128, 128, True) == (half, rows, half)
    assert cost.tiled_traffic(n, n, 64, 128, 128, 2)[0] == elements * (n + 2 * rows * n)
    assert cost.tiled_traffic(n, n, 64, 128, 128, 2, True)[0] == elements * (n + 2 * 128 * (half + rows))


@pytest.mark.parametrize("shape, blocks, itemsize", list(itertools.product(SHAPES, BLOCKS, (1, 2, 4))))
def test_fa1_traffic_against_adding_up_tiles(shape, blocks, itemsize):
    (n_q, n_k), (block_q, block_k), d = shape, blocks, 3
    read = written = 0
    for j in range(0, n_k, block_k):
        read += 2 * d * (min(j + block_k, n_k) - j)  # a tile of keys and its values
        for _ in range(n_q):  # whatever tile of queries the row is in
            read += d + d + 2  # its q, o, m, l
            written += d + 2  # its o, m, l
    written += n_q  # lse
    assert cost.fa1_traffic(n_q, n_k, d, block_q, block_k, itemsize) == (read * itemsize, written * itemsize)


@pytest.mark.parametrize("head_dim, sram_bytes, gigabytes", [(128, 102_400, 16.8), (128, 196_608, 8.9), (64, 102_400, 4.3)])
def test_where_version_1_moves_as_much_as_naive_attention(head_dim, sram_bytes, gigabytes):
    """With the paper's tiles; naive attention writes and reads 17.2 GB of S and P."""
    moved = HEADS * sum(cost.fa1_traffic(N, N, head_dim, *cost.block_sizes(sram_bytes, head_dim, BF16), BF16))
    assert moved / 1e9 == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize("n, d, heads, kv_heads, itemsize", [(1, 1, 1, 1, 1), (5, 3, 4, 2, 2), (7, 2, 6, 1, 4)])
def test_naive_traffic_against_adding_up_kernels(n, d, heads, kv_heads, itemsize):
    io_elements = intermediate_elements = 0
    for h in range(heads):
        io_elements += n * d  # q
        io_elements += 2 * n * d if h % (heads // kv_heads) == 0 else 0  # k and v, once for each group
        intermediate_elements += n * n  # S written
        intermediate_elements += n * n + n * n  # S read, P written
        intermediate_elements += n * n  # P read
        io_elements += n * d  # o
    assert cost.naive_traffic(n, d, heads, kv_heads, itemsize) == (io_elements * itemsize, intermediate_elements * itemsize)


@pytest.mark.parametrize("n_q, n_k, d, heads", [(1, 1, 1, 1), (2, 3, 4, 1), (5, 3, 2, 6)])
def test_attention_flops_against_counting_multiplications_and_additions(n_q, n_k, d, heads):
    flops = 0
    for _ in itertools.product(range(heads), range(n_q), range(n_k), range(d)):
        flops += 2  # q[i, c] * k[j, c], and its addition
        flops += 2  # p[i, j] * v[j, c], and its addition
    assert cost.attention_flops(n_q, n_k, d, heads) == flops


@pytest.mark.parametrize("n, reach", [(1, 0), (1, 5), (9, 0), (9, 3), (9, 8), (9, 20)])
def test_window_flops_against_counting_pairs(n, reach):
    pairs = sum(abs(i - j) <= reach for i in range(n) for j in range(n))
    assert cost.window_flops(n, reach, 3, 2) == 2 * sum(2 * 3 + 2 * 3 for _ in range(pairs))  # a product for the score, one for the output


@pytest.mark.parametrize("n, rank", [(1, 1), (7, 1), (7, 3), (7, 7)])
def test_pooled_flops_against_attention_over_means_and_counting_additions(n, rank):
    additions, d, heads = 0, 3, 2
    for run in np.array_split(np.arange(n), rank):
        additions += 2 * d * (len(run) - 1)  # of its keys and of its values
    assert cost.pooled_flops(n, rank, d, heads) == cost.attention_flops(n, rank, d, heads) + heads * additions


@pytest.mark.parametrize("n, d, heads", [(1, 1, 1), (5, 3, 2)])
def test_linear_flops_against_multiplying_matrices(n, d, heads):
    phi_k, phi_q, v = (np.ones((n, d)) for _ in range(3))
    state = phi_k.T @ v  # each of its (d, d) elements is a sum of n products
    o = phi_q @ state  # each of its (n, d) elements a sum of d
    assert cost.linear_flops(n, d, heads) == heads * 2 * (state.size * n + o.size * d)


@pytest.mark.parametrize("block_q, block_k, d, itemsize", [(1, 1, 1, 1), (4, 6, 3, 2), (128, 64, 128, 2)])
def test_tiled_sram_against_adding_up_tiles(block_q, block_k, d, itemsize):
    resident = [np.empty(shape) for shape in (
        (block_q, d), (block_k, d), (block_k, d), (block_q, block_k), (block_q, d), (block_q,), (block_q,))]
    assert cost.tiled_sram(block_q, block_k, d, itemsize) == itemsize * sum(tile.size for tile in resident)


def test_llama_layer_in_numbers():
    io_bytes, intermediate_bytes = cost.naive_traffic(**LAYER)
    o_bytes = HEADS * N * HEAD_DIM * BF16
    assert io_bytes - o_bytes == 100_663_296  # q + k + v: 100.7 MB
    assert io_bytes == 167_772_160  # and o: 167.8 MB
    assert intermediate_bytes == 17_179_869_184  # 17.18 GB
    assert intermediate_bytes // 4 == 4_294_967_296  # S alone: 4.295 GB
    read, written = cost.tiled_traffic(N, N, HEAD_DIM, 128, 128, BF16)
    assert HEADS * (read - N * HEAD_DIM * BF16) == 8_589_934_592  # keys and values again and again: 8.6 GB
    assert HEADS * written == o_bytes + HEADS * N * BF16
    assert cost.attention_flops(N, N, HEAD_DIM, HEADS) == 1_099_511_627_776  # 1.10 TFLOP
    assert cost.attention_flops(N, N, HEAD_DIM, HEADS) / io_bytes == pytest.approx(6554, abs=0.5)  # FLOP/B of a fused kernel


@pytest.mark.parametrize("sram_bytes, head_dim, itemsize, expected", [
    (196_608, 128, 2, (128, 192)),  # 192 KiB in 16 bits: M = 98,304 elements, not bytes
    (196_608, 64, 2, (64, 384)),
    (196_608, 128, 1, (128, 384)),
    (1000, 16, 4, (4, 4)),  # M = 250, 250 / 64 rounds up
    (1003, 16, 4, (4, 4)),  # three bytes that hold no element
    (1024, 16, 4, (4, 4)),
    (1028, 16, 4, (5, 5)),
    (4, 16, 4, (1, 1)),
    (400, 1, 1, (1, 100)),  # B_r is at most D
])
def test_block_sizes_of_the_paper(sram_bytes, head_dim, itemsize, expected):
    assert cost.block_sizes(sram_bytes, head_dim, itemsize) == expected


@pytest.mark.parametrize("head_dim, elements, fits", [(128, 106_496, False), (64, 81_920, True)])
def test_the_papers_tiles_do_not_always_fit(head_dim, elements, fits):
    block_q, block_k = cost.block_sizes(196_608, head_dim, 2)
    assert cost.tiled_sram(block_q, block_k, head_dim, 2) == 2 * (elements + 2 * block_q)
    assert (cost.tiled_sram(block_q, block_k, head_dim, 2) <= 196_608) is fits


@pytest.mark.parametrize("head_dim, heads, kv_heads", [(64, 1, 1), (128, 32, 8), (128, 32, 32)])
def test_naive_intensity_tends_to_half_the_head_dimension(head_dim, heads, kv_heads):
    before = 0
    for n in (2**i for i in range(4, 30)):
        intensity = cost.naive_intensity(n, head_dim, heads, kv_heads, 2)
        assert before < intensity < head_dim / 2
        # the share of q, k, v, o in the traffic is what is missing from the limit
        missing = Fraction(2 * heads + 2 * kv_heads, 4 * heads) * head_dim / n
        assert intensity == pytest.approx(float(head_dim / 2 / (1 + missing)), rel=2**-50)  # a few roundings of one division
        before = intensity
    assert cost.naive_intensity(**LAYER) == pytest.approx(64, abs=0.65)  # 63.4: the course says about 64


@pytest.mark.parametrize("n_q, n_k, d, heads, kv_heads, itemsize", [(1, 1, 1, 1, 1, 1), (5, 7, 3, 4, 2, 2), (9, 2, 8, 6, 1, 4)])
def test_attention_intensity_against_counting_elements(n_q, n_k, d, heads, kv_heads, itemsize):
    arrays = [np.empty(shape) for shape in ((heads, n_q, d), (kv_heads, n_k, d), (kv_heads, n_k, d), (heads, n_q, d))]
    moved = itemsize * sum(x.size for x in arrays)
    assert cost.attention_intensity(n_q, n_k, d, heads, kv_heads, itemsize) == cost.attention_flops(n_q, n_k, d, heads) / moved


def test_attention_intensity_of_the_llama_layer():
    assert cost.attention_intensity(N, N, HEAD_DIM, HEADS, KV_HEADS, BF16) == pytest.approx(6554, abs=0.5)


@pytest.mark.parametrize("n_k", [4096, 131_072])
@pytest.mark.parametrize("heads, kv_heads", [(32, 32), (32, 8), (64, 4)])
def test_attention_intensity_of_one_query_is_about_1_for_each_head_of_a_group(heads, kv_heads, n_k):
    """In 16 bits: 4 D FLOPs for each head, and 2 D elements of 2 bytes for all heads of the group."""
    group = heads // kv_heads
    exact = Fraction(group * n_k, n_k + group)
    assert cost.attention_intensity(1, n_k, HEAD_DIM, heads, kv_heads, BF16) == pytest.approx(float(exact), rel=2**-50)
    assert 0.99 * group < exact < group


@pytest.mark.parametrize("n, layers, kv_heads, d, dtype", [(1, 1, 1, 1, "float32"), (5, 3, 4, 2, "float16"), (7, 2, 6, 8, "float64")])
def test_kv_cache_bytes_against_adding_up_arrays(n, layers, kv_heads, d, dtype):
    arrays = [np.empty((kv_heads, n, d), dtype) for _ in range(layers) for _ in "kv"]
    assert cost.kv_cache_bytes(n, layers, kv_heads, d, arrays[0].itemsize) == sum(x.nbytes for x in arrays)


def test_kv_cache_of_llama():
    """Llama-3-8B: 32 layers, 128 KiB a token; grouped queries make it a quarter."""
    assert cost.kv_cache_bytes(1, 32, KV_HEADS, HEAD_DIM, BF16) == 131_072
    assert cost.kv_cache_bytes(131_072, 32, KV_HEADS, HEAD_DIM, BF16) == 17_179_869_184  # 17.2 GB
    assert cost.kv_cache_bytes(N, 32, HEADS, HEAD_DIM, BF16) == 4 * cost.kv_cache_bytes(N, 32, KV_HEADS, HEAD_DIM, BF16)


BLOCK = {"hidden": 4096, "ffn": 14_336, "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM}  # of Llama-3-8B


@pytest.mark.parametrize("n, hidden, ffn, heads, kv_heads, d", [(1, 1, 1, 1, 1, 1), (3, 8, 5, 4, 2, 2), (6, 4, 9, 2, 1, 3), (40, 8, 16, 2, 2, 4)])
def test_attention_flop_share_against_multiplying_matrices(n, hidden, ffn, heads, kv_heads, d):
    flops = {"attention": 0, "rest": 0}

    def product(a, b, where):
        flops[where] += 2 * a[0] * a[1] * b[1]
        assert a[1] == b[0]
        return a[0], b[1]

    x = (n, hidden)
    q, k, v = (product(x, (hidden, h * d), "rest") for h in (heads, kv_heads, kv_heads))
    assert (q, k, v) == ((n, heads * d), (n, kv_heads * d), (n, kv_heads * d))
    for _ in range(heads):
        s = product((n, d), (d, n), "attention")
        assert product(s, (n, d), "attention") == (n, d)
    assert product(q, (heads * d, hidden), "rest") == x
    gate, up = (product(x, (hidden, ffn), "rest") for _ in range(2))
    assert gate == up and product(gate, (ffn, hidden), "rest") == x
    share = Fraction(flops["attention"], sum(flops.values()))
    assert cost.attention_flop_share(n, hidden, ffn, heads, kv_heads, d) == pytest.approx(float(share), rel=2**-50)


def test_attention_flop_share_of_llama_grows_from_nothing_to_everything():
    shares = [cost.attention_flop_share(2**i, **BLOCK) for i in range(31)]
    assert all(before < after for before, after in itertools.pairwise(shares))
    assert 0 < shares[0] < 1e-4 and shares[-1] > 0.9999
    assert cost.attention_flop_share(512, **BLOCK) == pytest.approx(0.019, abs=5e-4)
    # half is reached where attention's FLOPs for a token, 4 n D heads, are twice the number of weights
    half = Fraction(2 * (4096 * 128 * 80 + 3 * 4096 * 14_336), 4 * 4096)
    assert half == int(half) and cost.attention_flop_share(int(half), **BLOCK) == 0.5


@pytest.mark.parametrize("n, d, heads, kv_heads, dtype", [(1, 1, 1, 1, "float32"), (5, 3, 4, 2, "float32"), (7, 2, 6, 1, "float16")])
def test_kept_for_backward_against_adding_up_arrays(n, d, heads, kv_heads, dtype):
    q, k, v, p, o = (np.empty((h, n, columns), dtype) for h, columns in (
        (heads, d), (kv_heads, d), (kv_heads, d), (heads, n), (heads, d)))
    lse = np.empty((heads, n), np.float32)
    kept = cost.kept_for_backward(n, d, heads, kv_heads, q.itemsize)
    assert kept == (q.nbytes + k.nbytes + v.nbytes, p.nbytes, o.nbytes, lse.nbytes)


def test_kept_for_backward_against_an_h200():
    """What lived between the passes there, inputs not counted: o and lse; P, o, and a copy of q that is scaled."""
    measured = {(row["n"], row["variant"]): row["kept_bytes"] for row in load("h200_backward_stored_p")["rows"] if "kept_bytes" in row}
    assert {(8192, "naive"), (8192, "flashedu")} <= set(measured)
    for (n, variant), found in measured.items():
        _, p, o, lse = cost.kept_for_backward(n, 128, 16, 16, BF16)
        if variant in ("naive", "flashedu"):
            assert found == (p + 2 * o if variant == "naive" else o + lse), n
