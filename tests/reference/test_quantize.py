"""e4m3 against torch's own, scales, the rotation, and the errors of attention in fp8 beside those that were published."""
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashedu.exactness import unit_roundoff
from flashedu.reference import fp8_attention, naive_attention, outlier_inputs, quantize_e4m3, rotate, round_e4m3

pytestmark = pytest.mark.filterwarnings("error")
random_cases = settings(max_examples=100, deadline=None, derandomize=True, database=None)


def finite_numbers():
    """All numbers of e4m3 from its definition, ascending: 4 bits of exponent, 3 of mantissa, the last code being NaN."""
    positive = [m * 2.0**-9 if e == 0 else (8 + m) * 2.0 ** (e - 10) for e in range(16) for m in range(8)][:-1]
    return np.array(sorted({-x for x in positive} | set(positive)))


@pytest.fixture
def e4m3():
    torch = pytest.importorskip("torch")

    def rounded(x):
        return torch.from_numpy(x).to(torch.float8_e4m3fn).float().numpy()

    rounded.codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    return rounded


def same(x, y):
    """Equal, signs of zeros and NaN included."""
    return np.array_equal(x, y, equal_nan=True) and np.array_equal(np.signbit(x), np.signbit(y))


def test_all_256_codes(e4m3):
    assert np.isnan(e4m3.codes).sum() == 2 and len(set(e4m3.codes[np.isfinite(e4m3.codes)].tolist())) == 253  # two zeros
    assert np.array_equal(finite_numbers(), np.unique(e4m3.codes[np.isfinite(e4m3.codes)]))
    rounded = round_e4m3(e4m3.codes)
    assert np.array_equal(rounded, e4m3.codes, equal_nan=True)
    finite = np.isfinite(rounded)
    assert np.array_equal(np.signbit(rounded[finite]), np.signbit(e4m3.codes[finite]))


def test_ties_and_their_neighbours(e4m3):
    numbers = finite_numbers().astype(np.float32)
    ties = (numbers[1:] + numbers[:-1]) / 2
    for x in (ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))):
        assert same(round_e4m3(x), e4m3(x))
    below, above = numbers[:-1], numbers[1:]
    assert np.array_equal(round_e4m3(np.nextafter(ties, np.float32(-np.inf))), below)
    assert np.array_equal(round_e4m3(np.nextafter(ties, np.float32(np.inf))), above)
    codes = {value: code & 127 for code, value in enumerate(e4m3.codes.tolist())}
    assert all(codes[float(x)] % 2 == 0 for x in round_e4m3(ties))


@pytest.mark.parametrize("log2_size", [-12, -9, -7, -6, -3, 0, 5, 8])
def test_random_values(e4m3, log2_size):
    x = (2.0**log2_size * np.random.default_rng(log2_size + 20).standard_normal(100_000)).astype(np.float32)
    x = x[np.abs(x) <= 464][:80_000]
    assert same(round_e4m3(x), e4m3(x))
    assert same(round_e4m3(x.reshape(2, -1)[::-1, ::3]), e4m3(x).reshape(2, -1)[::-1, ::3])


def test_what_is_too_large_saturates(e4m3):
    x = np.array([448, 456, 464, 464.1, 480, 1e6, 3e38, np.inf], np.float32)
    assert same(round_e4m3(x), np.full(8, 448, np.float32)) and same(round_e4m3(-x), np.full(8, -448, np.float32))
    assert same(round_e4m3(x[:3]), e4m3(x[:3]))
    assert set(e4m3(x[3:]).tolist()) <= {448.0} or np.isnan(e4m3(x[3:])).all()  # it depends on torch's version
    assert np.isnan(round_e4m3(np.array([np.nan]))).all()


def test_float64_is_rounded_once():
    """By way of float32 the first would become a tie, and that 17."""
    x = np.array([17 - 2.0**-40, 17.0, 17 + 2.0**-40, 2.0**-10 + 2.0**-50, 2.0**-10])
    assert np.array_equal(round_e4m3(x), [16, 16, 18, 2.0**-9, 0])


@random_cases
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 50), st.floats(-30, 30), st.sampled_from(["float32", "float64"]), st.integers(0, 10**6))
def test_scales(n, d, block_size, log_size, dtype, seed):
    x = (10**log_size * np.random.default_rng(seed).standard_normal((n, d))).astype(dtype)
    numbers, scale = quantize_e4m3(x, block_size)
    assert numbers.dtype == scale.dtype == x.dtype and numbers.shape == x.shape and scale.shape == (n, 1)
    assert np.array_equal(round_e4m3(numbers), numbers)
    for start in range(0, n, block_size):
        rows = slice(start, start + block_size)
        assert np.abs(numbers[rows]).max() == 448 and len(set(scale[rows, 0])) == 1
    within = 2.0**-4 * np.abs(x) + 2.0**-10 * scale + unit_roundoff(x.dtype) * 4 * np.abs(x)  # half a step
    assert (np.abs(numbers * scale - x) <= within).all()


def test_a_block_of_zeros_and_one_that_is_tiny():
    x = np.array([[0, 0], [1e-44, 0], [3, -448]], np.float32)
    numbers, scale = quantize_e4m3(x, 1)
    assert np.isfinite(numbers).all() and (scale > 0).all() and np.array_equal(numbers[[0, 2]], [[0, 0], [3, -448]])
    with pytest.raises(ValueError, match="x must not hold -inf"):
        quantize_e4m3(np.array([[1, -np.inf]]), 1)


def hadamard(d):
    h = np.ones((1, 1))
    while len(h) < d:
        h = np.block([[h, h], [h, -h]])
    return h


def signs_of(d, seed):
    """The signs that a seed gives, from the rotation of the first Hadamard row: H (r * x) with x one unit vector at a time."""
    rotated, _ = rotate(np.eye(d), np.eye(d), seed)
    return np.sqrt(d) * rotated[:, 0]


@random_cases
@given(st.sampled_from([1, 2, 4, 8, 64, 256]), st.integers(1, 9), st.integers(1, 9), st.sampled_from(["float32", "float64"]), st.integers(0, 10**6))
def test_rotate_is_signs_then_hadamard(d, n_q, n_k, dtype, seed):
    rng = np.random.default_rng([seed, 1])
    q, k = (rng.standard_normal((n, d)).astype(dtype) for n in (n_q, n_k))
    signs = signs_of(d, seed)
    assert np.allclose(np.abs(signs), 1, rtol=1e-15, atol=0)
    for x, rotated in zip((q, k), rotate(q, k, seed), strict=True):
        assert rotated.dtype == x.dtype and rotated.shape == x.shape
        right = (np.round(signs) * x.astype(np.float64)) @ hadamard(d) / np.sqrt(d)
        error = unit_roundoff(x.dtype) * (np.sqrt(d) + 3) * np.linalg.norm(x, axis=1, keepdims=True)
        assert (np.abs(rotated - right) <= error).all()


def test_signs_are_random_and_depend_on_the_seed_alone():
    all_signs = np.array([signs_of(64, seed) for seed in range(100)])
    assert np.array_equal(signs_of(64, 3), signs_of(64, 3))
    assert len({row.tobytes() for row in np.round(all_signs)}) == 100
    assert np.abs(all_signs.mean()) < 4 / np.sqrt(6400) and (np.abs(all_signs.mean(axis=0)) < 0.5).all()


@pytest.mark.parametrize("d", [3, 6, 48, 100])
def test_other_head_dimensions_are_refused(d):
    with pytest.raises(ValueError, match=f"q and k must have a power of two as their head dimension, but it is {d}."):
        rotate(np.ones((2, d)), np.ones((3, d)), 0)


def test_an_outlier_is_spread_evenly():
    q, k = np.zeros((1, 64), np.float32), np.ones((1, 64), np.float32)
    q[0, 5] = 8
    rotated, of_ones = rotate(q, k, 0)
    assert np.array_equal(np.abs(rotated), np.ones((1, 64)))
    assert np.abs(of_ones).max() < 5  # without the signs it would be 8, and all others 0


def test_rotate_leaves_its_inputs_and_takes_any_strides():
    x = np.random.default_rng(0).standard_normal((8, 32)).astype(np.float32)
    q, k = x[::-2, ::2], np.asfortranarray(x[:, :16])
    copies = q.copy(), k.copy()
    for view in (q, k):
        view.flags.writeable = False
    assert all(np.array_equal(a, b) for a, b in zip(rotate(q, k, 1), rotate(*copies, 1), strict=True))


def test_outlier_inputs_have_the_distribution_that_they_say():
    q, k, v = outlier_inputs(1000, 2000, 128, 0)
    assert q.shape == (1000, 128) and k.shape == v.shape == (2000, 128) and q.dtype == np.float32
    x = np.concatenate([y.ravel() for y in (q, k, v)])
    expected = 0.619e-3 * x.size  # P(|N(0, 101)| > 5) is 0.619
    assert abs((np.abs(x) > 5).sum() - expected) < 4 * np.sqrt(expected) and abs(x.var() - 1.1) < 0.05
    assert not np.array_equal(q, k[:1000]) and np.array_equal(q, outlier_inputs(1000, 2000, 128, 0)[0])


def test_fp8_attention_by_hand():
    """Scores 0 and P of 256 each: nothing is rounded but the values."""
    q, k, v = np.zeros((1, 4), np.float32), np.ones((2, 4), np.float32), np.array([[448.0], [17.0]], np.float32)
    assert np.array_equal(fp8_attention(q, k, v, 1, 2), [[(448 + 16) / 2]])
    assert np.array_equal(fp8_attention(q, k, v, 1, 1), [[(448 + 17) / 2]])  # a scale of its own


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fp8_attention_rounds_and_does_little_else(dtype):
    q, k, v = (x.astype(dtype) for x in outlier_inputs(40, 70, 16, 1))
    exact = naive_attention(*(x.astype(np.float64) for x in (q, k, v)))
    for block_q, block_k in ((1, 1), (8, 16), (64, 128)):
        o = fp8_attention(q, k, v, block_q, block_k)
        assert o.dtype == q.dtype and 1e-4 < np.sqrt(((o - exact) ** 2).mean()) < 0.1
    numbers = [round_e4m3(x) for x in (q / 8, k / 8)]  # every element a number of e4m3 already, and so is the scaled one
    ones = np.ones_like(v)
    assert np.allclose(fp8_attention(*numbers, ones, 8, 16), 1, rtol=2.0**-4, atol=0)


PUBLISHED = {  # Shah et al. 2024, table 3
    "per tensor": 2.4e-2,
    "version 3": 9.1e-3,
    "version 3 without block scales": 9.3e-3,
    "version 3 without rotation": 2.4e-2,
}


def fp8_errors(n_q, n_k, head_dim, seed):
    """The root of the mean squared error of each way, against float64, on inputs with outliers."""
    q, k, v = outlier_inputs(n_q, n_k, head_dim, seed)
    exact = naive_attention(*(x.astype(np.float64) for x in (q, k, v)))
    plain, rotated, whole, blocks = (q, k), rotate(q, k, seed), (n_q, n_k), (128, 128)
    ways = dict(zip(PUBLISHED, ((plain, whole), (rotated, blocks), (rotated, whole), (plain, blocks))))
    return {name: np.sqrt(((fp8_attention(*pair, v, *rows) - exact) ** 2).mean()) for name, (pair, rows) in ways.items()}


def test_errors_beside_the_published_ones():
    """The table says no size; the paper measures speed with 16k tokens and D = 128. Few outliers make most of the error: it varies from seed to seed."""
    tried = [fp8_errors(256, 16384, 128, seed) for seed in range(6)]
    errors = {name: float(np.sqrt(np.mean([one[name] ** 2 for one in tried]))) for name in PUBLISHED}
    print(", ".join(f"{name} {errors[name]:.1e} (published {PUBLISHED[name]:.1e})" for name in PUBLISHED))
    for name, published in PUBLISHED.items():
        assert published / 1.5 < errors[name] < 1.5 * published, (name, errors)
    for one in (errors, *tried):
        assert one["version 3 without rotation"] > 1.5 * one["version 3"]
        assert one["per tensor"] > 1.5 * one["version 3 without block scales"]
    assert abs(errors["version 3"] / errors["version 3 without block scales"] - 1) < 0.1  # scales hardly matter here
