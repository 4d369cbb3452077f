"""fp8 in NumPy: rounding to e4m3, scales, the rotation that spreads outliers, attention on such numbers.

e4m3 is torch's float8_e4m3fn: a sign, 4 bits of exponent with bias 7, 3 bits of mantissa, no infinity. Its numbers are
multiples of 2**-9 below 2**-6 (the subnormals), then eight to each power of two, up to 448.
"""
import numpy as np

from flashedu.arguments import float_array, short, validated

E4M3_MAX = 448.0  # 1.75 * 2**8; the next code, 480, stands for NaN
P_MAX = 256.0  # exp(s - m), at most 1, is multiplied by this before it is rounded: fewer of the small ones are lost
MOST_ELEMENTS = 2**28  # of random inputs: 1 GB in float32


def round_e4m3(values):
    """The nearest number of e4m3 for each value, ties to the even mantissa, in the dtype of the values.

    Takes any shape, float32 or float64. What lies beyond 448, infinities too, becomes +-448, as in the GPU's saturating
    conversion (torch's may make NaN of what is above 464); NaN stays NaN. Raises TypeError for what is no array of these
    dtypes, ValueError for an empty one. Source: Micikevicius et al. 2022 (FP8 formats for deep learning), section 3.
    """
    float_array("values", values)
    size = np.minimum(np.abs(values), E4M3_MAX)
    exponent = np.maximum(np.frexp(size)[1] - 1, -6)  # that of the subnormals where it would be less
    step = np.ldexp(values.dtype.type(1), exponent - 3)  # the distance of neighbours
    return np.copysign(np.rint(size / step) * step, values)


@validated
def quantize_e4m3(x, block_size):
    """x as numbers of e4m3 times a scale for each block of rows, chosen so that the block's largest magnitude is 448.

    Takes finite x (N, D) and the rows of a block; with block_size >= N there is one scale for the whole tensor. Returns
    the numbers (N, D) and each row's scale (N, 1), in the dtype of x: x is about numbers * scale. Raises TypeError or
    ValueError for an x of another kind or not finite, which no scale fits, and a block_size that is no positive whole
    number. Source: Shah et al. 2024 (FlashAttention-3), section 3.3 (block quantization).
    """
    float_array("x", x, ndim=2)
    if (x == -np.inf).any():
        raise ValueError("x must not hold -inf: no scale fits it.")
    block_size = min(block_size, len(x))
    largest = np.maximum.reduceat(np.abs(x).max(axis=1), np.arange(0, len(x), block_size))  # (blocks,)
    scale = np.maximum(largest / E4M3_MAX, np.finfo(x.dtype).tiny)  # not 0, even if all the block is
    scale = np.repeat(scale, block_size)[: len(x), None]
    return round_e4m3(x / scale), scale


@validated
def rotate(q, k, seed):
    """Queries and keys in another orthonormal basis: the products q k^T stay, but an outlier is
    spread over its whole row.

    Takes q (Nq, D) and k (Nk, D), of one dtype, D a power of two, and a seed. Every row x
    becomes H (r * x) / sqrt(D), with D random signs r from the seed, the same for all rows of
    both, and H the Hadamard matrix, computed in log2(D) passes of sums and differences instead
    of D products an element. Returns q', k' of the same shapes and dtype. In the package it
    raises TypeError or ValueError for other arrays, such as those whose D is no power of two,
    and a seed that is no whole number or negative. Source: Shah et al. 2024 (FlashAttention-3),
    section 3.3 (incoherent processing).
    """
    d = q.shape[1]
    signs = np.random.default_rng(seed).choice([-1, 1], d).astype(q.dtype)

    def transform(x):
        y, half = x * signs, 1
        while half < d:
            y = y.reshape(len(x), -1, 2, half)  # pairs of runs of `half` elements
            a, b = y[:, :, 0], y[:, :, 1]
            y = np.stack([a + b, a - b], axis=2)
            half *= 2
        return y.reshape(len(x), d) * d**-0.5

    return transform(q), transform(k)


@validated
def fp8_attention(q, k, v, block_q, block_k):
    """softmax(q k^T / sqrt(D)) v with q, k, v and P rounded to e4m3, sums in the inputs' dtype, for one head.

    Takes q (Nq, D), k (Nk, D), v (Nk, Dv), of one dtype, and how many rows of q, and of k and v, share a scale; with
    sizes of at least Nq and Nk each tensor has one. Keys are seen in blocks of block_k; the running sum adds P before it
    is rounded. Returns (Nq, Dv) of the same dtype. For incoherent processing `rotate` q and k before. Raises TypeError or
    ValueError for arrays that `naive_attention` refuses and block sizes that are not positive whole numbers. Source: Shah
    et al. 2024 (FlashAttention-3), section 3.3; the factor 256 is that of its code.
    """
    (q, q_scale), (k, k_scale), (v, v_scale) = (quantize_e4m3(x, rows) for x, rows in ((q, block_q), (k, block_k), (v, block_k)))
    n_q, n_k, scale = len(q), len(k), q.shape[1] ** -0.5
    m = np.full(n_q, -np.inf, q.dtype)
    l = np.zeros(n_q, q.dtype)
    o = np.zeros((n_q, v.shape[1]), q.dtype)
    for j0 in range(0, n_k, block_k):
        j = slice(j0, j0 + block_k)
        s = q @ k[j].T * (q_scale * k_scale[j0] * scale)  # (Nq, block_k)
        m_new = np.maximum(m, s.max(axis=1))
        alpha = np.exp(m - m_new)
        p = P_MAX * np.exp(s - m_new[:, None])
        l = l * alpha + p.sum(axis=1)
        o = o * alpha[:, None] + round_e4m3(p) @ v[j] * v_scale[j0]
        m = m_new
    return o / l[:, None]


@validated
def outlier_inputs(n_q, n_k, head_dim, seed):
    """q (Nq, D), k and v (Nk, D) in float32, each element N(0, 1) + N(0, 100) * Bernoulli(0.001).

    One element in a thousand is about ten times as large as the others. Raises TypeError or ValueError for sizes that are
    not positive whole numbers or together beyond 2**28 elements, and a seed that is no whole number or negative. Source:
    Shah et al. 2024 (FlashAttention-3), section 4.3.
    """
    if (n_q + 2 * n_k) * head_dim > MOST_ELEMENTS:
        raise ValueError(f"q, k and v must hold at most {MOST_ELEMENTS:,} elements together, but n_q, n_k and head_dim are "
                         f"{short(n_q)}, {short(n_k)} and {short(head_dim)}.")
    rng = np.random.default_rng(seed)

    def draw(n):
        x = rng.standard_normal((n, head_dim))
        return (x + 10 * rng.standard_normal(x.shape) * (rng.random(x.shape) < 0.001)).astype(np.float32)

    return draw(n_q), draw(n_k), draw(n_k)
