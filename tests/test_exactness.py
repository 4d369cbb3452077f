"""The rounding bound: correct kernels stay below it, small mistakes do not, and its oracle is right."""
import functools
import itertools
import math
from decimal import Decimal, localcontext

import numpy as np
import pytest

from flashedu.exactness import (
    SLACK,
    UNIT_ROUNDOFF,
    Bound,
    attention_bounds,
    scores,
    softmax_bound,
    state_bounds,
    unit_roundoff,
)
from flashedu.reference import naive_attention, online_attention, stable_softmax, tiled_attention

pytestmark = pytest.mark.filterwarnings("error")


def head(n_q, n_k, d, d_v=None, dtype="float32", logits=1, seed=0):
    """Standard normal q, k, v; the scores' standard deviation is `logits`."""
    rng = np.random.default_rng([seed, n_q, n_k, d])
    q, k, v = (rng.standard_normal(shape) for shape in ((n_q, d), (n_k, d), (n_k, d_v or d)))
    return (logits * q).astype(dtype), k.astype(dtype), v.astype(dtype)


# ---- the oracle

SMALL = [(1, 1, 1, 1), (4, 4, 3, 2), (3, 6, 4, 1), (6, 3, 4, 3), (7, 2, 5, 2)]


def in_forty_digits(q, k, v, causal):
    """Output and lse with 40 decimal digits; a row without keys gives 0 and -inf."""
    with localcontext() as context:
        context.prec = 40
        q, k, v = ([[Decimal(float(x)) for x in row] for row in a] for a in (q, k, v))
        root, o, lse = Decimal(len(q[0])).sqrt(), [], []
        for i, row in enumerate(q):
            seen = range(len(k) if not causal else max(0, min(len(k), i + len(k) - len(q) + 1)))
            weights = [(sum(x * y for x, y in zip(row, k[j], strict=True)) / root).exp() for j in seen]
            total = sum(weights)
            lse.append(total.ln() if seen else Decimal("-Infinity"))
            o.append([sum(w * v[j][c] for w, j in zip(weights, seen, strict=True)) / total if seen else Decimal(0)
                      for c in range(len(v[0]))])
    return o, lse


def oracle_roundoff(dtype):
    return float(np.finfo(np.longdouble if dtype == "float64" else np.float64).eps) / 2


@pytest.mark.parametrize("logits", [0.01, 1, 8, 30])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SMALL)
def test_the_oracle_against_forty_digits(shape, dtype, causal, logits):
    q, k, v = head(*shape, dtype=dtype, logits=logits)
    bounds = attention_bounds(q, k, v, causal=causal)
    # the oracle rounds too, to its own precision: the bound for that precision is what it may be off by
    allowed = attention_bounds(q, k, v, causal=causal, u=oracle_roundoff(dtype))
    for bound, limit, exact in zip(bounds, allowed, in_forty_digits(q, k, v, causal), strict=True):
        exact = np.vectorize(lambda x: np.longdouble(str(x)), otypes=[np.longdouble])(np.array(exact, object))
        off = np.where(bound.exact == exact, 0, np.abs(bound.exact - np.where(np.isinf(exact), 0, exact)))
        assert (off <= limit.bound).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3, 0.0])
def test_scores_have_the_scale_and_the_mask(scale, causal):
    q, k, _ = head(4, 6, 9)
    s = scores(q, k, causal, scale)
    for i, j in itertools.product(range(4), range(6)):
        if causal and j > i + 2:
            assert s[i, j] == -np.inf
        else:
            products = [float(x) * float(y) for x, y in zip(q[i], k[j], strict=True)]
            exact = math.fsum(products) * (1 / 3 if scale is None else scale)
            assert abs(s[i, j] - exact) <= 12 * 2.0**-53 * math.fsum(map(abs, products))  # 9 products, the scale, spare


# ---- the formula of the design, term by term

def by_the_formula(q, k, v, causal, block_k, u, u_p, u_o, lost):
    n_q, n_k, d = len(q), len(k), q.shape[1]
    o_bound, lse_bound = np.zeros((n_q, v.shape[1])), np.zeros(n_q)
    block = min(block_k, n_k)
    tiles = math.ceil(n_k / block)
    for i in range(n_q):
        seen = [j for j in range(n_k) if not causal or j <= i + n_k - n_q]
        if not seen:
            continue
        s = [math.fsum(float(x) * float(y) for x, y in zip(q[i], k[j], strict=True)) / math.sqrt(d) for j in seen]
        size = max(math.fsum(abs(float(x) * float(y)) for x, y in zip(q[i], k[j], strict=True)) / math.sqrt(d) for j in seen)
        delta = u * ((math.sqrt(d) + 3) * size + 2 * (max(s) - min(s)))
        kappa = 2 * delta + u * (2 * tiles + 2 * math.sqrt(block) + 8)
        lse = max(s) + math.log(math.fsum(math.exp(x - max(s)) for x in s))
        lse_bound[i] = kappa + u * (abs(max(s)) + abs(lse))
        for c in range(v.shape[1]):
            o = math.fsum(math.exp(x - lse) * float(v[j, c]) for x, j in zip(s, seen, strict=True))
            pv = math.fsum(math.exp(x - lse) * abs(float(v[j, c])) for x, j in zip(s, seen, strict=True))
            o_bound[i, c] = (kappa + u_p) * pv + u_o * (abs(o) + u_p * pv) + lost * (1 + math.fsum(abs(float(v[j, c])) for j in seen))
    return SLACK * o_bound, SLACK * lse_bound


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype, given, u, u_p, u_o, lost", [
    ("float32", None, 2**-24, 0.0, 2**-24, 2.0**-126),
    ("bfloat16", None, 2**-24, 2**-8, 2**-8, 2.0**-126),
    ("float16", None, 2**-24, 2**-11, 2**-11, 2.0**-25),
    ("float32", 2.0**-53, 2**-53, 0.0, 2**-53, 2.0**-126),
])
@pytest.mark.parametrize("shape, block_k", [((4, 6, 3, 2), 4), ((6, 3, 4, 2), 1), ((3, 3, 2, 2), 50)])
def test_the_bound_is_the_formula(shape, block_k, dtype, given, u, u_p, u_o, lost, causal):
    q, k, v = (to_bits(x, 8) for x in head(*shape, logits=3))  # numbers of every dtype
    bounds = attention_bounds(q, k, v, causal=causal, block_k=block_k, dtype=dtype, u=given)
    for bound, expected in zip(bounds, by_the_formula(q, k, v, causal, block_k, u, u_p, u_o, lost), strict=True):
        # computed in float64 on both sides from fewer than 100 operations on scores below 20
        np.testing.assert_allclose(bound.bound, expected, rtol=100 * 20 * 2.0**-53, atol=0)


def test_defaults():
    q, k, v = head(3, 5, 4)
    for dtype, u in (("float32", 2.0**-24), ("float64", 2.0**-53)):
        q, k, v = (x.astype(dtype) for x in (q, k, v))
        ours = attention_bounds(q, k, v)
        spelt_out = attention_bounds(q, k, v, causal=False, block_k=5, dtype=dtype, u=u)
        assert all(np.array_equal(a.bound, b.bound) for a, b in zip(ours, spelt_out, strict=True))
    x = q[0].astype(np.float32)
    assert np.array_equal(softmax_bound(x).bound, softmax_bound(x, u=2.0**-24).bound)


@pytest.mark.parametrize("dtype, u", [("float64", 2.0**-53), ("float32", 2.0**-24), ("float16", 2.0**-11)])
def test_unit_roundoff_is_half_an_ulp_of_one(dtype, u):
    assert unit_roundoff(dtype) == unit_roundoff(np.dtype(dtype)) == unit_roundoff(np.dtype(dtype).type) == u
    assert u == np.finfo(dtype).eps / 2
    assert UNIT_ROUNDOFF["bfloat16"] == 2.0**-8 == unit_roundoff("bfloat16") == unit_roundoff("torch.bfloat16")  # 8 significant bits


# ---- correct kernels pass

CONFIGURATIONS = [
    (n_q, n_k, d, causal, logits)
    for (n_q, n_k, d), causal, logits in itertools.product(
        [(64, 64, 64), (300, 300, 64), (2048, 2048, 64), (64, 300, 64), (300, 64, 64), (1, 300, 64),
         (300, 300, 16), (300, 300, 40), (130, 300, 128), (65, 65, 256), (64, 64, 1)],
        (False, True), (1, 8))
]


@pytest.mark.parametrize("n_q, n_k, d, causal, logits", CONFIGURATIONS)
def test_correct_kernels_in_float32(n_q, n_k, d, causal, logits):
    q, k, v = head(n_q, n_k, d, logits=logits)
    o_bound, lse_bound = attention_bounds(q, k, v, causal=causal, block_k=64)
    whole, _ = attention_bounds(q, k, v, causal=causal)
    o, lse = tiled_attention(q, k, v, 64, 64, causal)
    ratios = {"naive": whole.ratio(naive_attention(q, k, v, causal)), "tiled": o_bound.ratio(o), "lse": lse_bound.ratio(lse)}
    if not causal:
        ratios["online"] = o_bound.ratio(online_attention(q, k, v, 64))
    print({name: round(ratio, 3) for name, ratio in ratios.items()})
    assert max(ratios.values()) <= 1


@pytest.mark.parametrize("n_q, n_k, d, causal, logits", [c for c in CONFIGURATIONS if c[0] <= 300])
def test_correct_kernels_in_float64(n_q, n_k, d, causal, logits):
    q, k, v = head(n_q, n_k, d, logits=logits, dtype="float64")
    bounds = attention_bounds(q, k, v, causal=causal, block_k=64)
    for bound, value in zip(bounds, tiled_attention(q, k, v, 64, 64, causal), strict=True):
        assert bound.ratio(value) <= 1
    assert attention_bounds(q, k, v, causal=causal)[0].ratio(naive_attention(q, k, v, causal)) <= 1


# ---- mistakes do not

def to_bits(x, bits):
    """float32 values rounded to `bits` significant bits (TF32 keeps 11, bfloat16 8, fp8 e4m3 4)."""
    drop = 24 - bits
    i = x.view(np.uint32)
    return ((i + (1 << (drop - 1)) - 1 + ((i >> drop) & 1)) >> drop << drop).astype(np.uint32).view(np.float32)


def flash(q, k, v, causal=False, mistake=None, p_bits=24, o_bits=24, block=64):
    """Online softmax in float32 over key tiles, written without the package, with one mistake if asked for."""
    (n_q, d), n_k = q.shape, len(k)
    m, l = np.full((n_q, 1), -np.inf, np.float32), np.zeros((n_q, 1), np.float32)
    acc = np.zeros((n_q, v.shape[1]), np.float32)
    shift = n_k - n_q + {"mask +1": 1, "mask -1": -1}.get(mistake, 0)
    end = n_k - 1 if mistake == "last key skipped" else n_k
    for j0 in range(0, end, block):
        j = np.arange(j0, min(j0 + block, end))
        s = (q @ k[j].T) * np.float32(d**-0.5)
        if causal:
            s[j[None, :] > np.arange(n_q)[:, None] + shift] = -np.inf
        m_new = np.maximum(m, s.max(axis=1, keepdims=True))
        safe = np.where(np.isinf(m_new), np.float32(0), m_new)
        p, alpha = np.exp(s - safe), np.exp(m - safe)
        l = alpha * l + p.sum(axis=1, keepdims=True)
        w = v[j]
        if mistake == "tf32 in pv":
            p, w = to_bits(p, 11), to_bits(w, 11)
        elif mistake == "fp8 p":
            p = to_bits(p, 4)
        else:
            p = p if p_bits == 24 else to_bits(p, p_bits)
        acc = (acc if mistake == "rescale dropped" else alpha * acc) + p @ w
        m = m_new
    if mistake == "l off by 0.2 %":
        l = l * np.float32(1.002)
    o = acc / np.where(l == 0, np.float32(1), l)
    return o if o_bits == 24 else to_bits(o, o_bits)


@functools.cache
def tried(n, causal, logits):
    """Inputs with the bound for key tiles of 64; the oracle is the slow part of these tests."""
    q, k, v = head(n, n, 64, logits=logits)
    return q, k, v, attention_bounds(q, k, v, causal=causal, block_k=64)[0]


TRIED = [(n, causal, logits) for n, causal, logits in itertools.product((64, 300, 2048), (False, True), (1, 8))]
MISTAKES = {
    "mask +1": [(n, c, x) for n, c, x in TRIED if c],
    "mask -1": [(n, c, x) for n, c, x in TRIED if c],
    "rescale dropped": [(n, c, x) for n, c, x in TRIED if n > 64],  # one tile rescales nothing
    "l off by 0.2 %": TRIED,
    "tf32 in pv": TRIED,
    "fp8 p": TRIED,
    "last key skipped": [(n, c, x) for n, c, x in TRIED if x == 1],  # with larger logits its probability may be below rounding
}
CASES = [(mistake, *case) for mistake, cases in MISTAKES.items() for case in cases]


@pytest.mark.parametrize("mistake, n, causal, logits", CASES)
def test_mistakes_in_float32_are_rejected(mistake, n, causal, logits):
    q, k, v, bound = tried(n, causal, logits)
    ratio = bound.ratio(flash(q, k, v, causal, mistake))
    print(f"{mistake}: {ratio:.3g}")
    assert ratio > 1


@pytest.mark.parametrize("n, causal, logits", TRIED)
def test_without_its_mistake_the_same_kernel_passes(n, causal, logits):
    q, k, v, bound = tried(n, causal, logits)
    ratio = bound.ratio(flash(q, k, v, causal))
    print(f"correct: {ratio:.3g}")
    assert ratio <= 1


@pytest.mark.parametrize("n, causal, logits", [(n, c, x) for n, c, x in TRIED if n <= 300])
def test_bfloat16_passes_with_its_own_roundoff_and_not_without(n, causal, logits):
    """P and the output rounded to bfloat16, everything else in float32: what a 16-bit kernel does."""
    q, k, v = (to_bits(x, 8) for x in head(n, n, 64, logits=logits))
    o = flash(q, k, v, causal, p_bits=8, o_bits=8)
    assert attention_bounds(q, k, v, causal=causal, block_k=64, dtype="bfloat16")[0].ratio(o) <= 1
    assert attention_bounds(q, k, v, causal=causal, block_k=64)[0].ratio(o) > 1


@pytest.mark.parametrize("n, causal, logits", [(n, c, x) for n, c, x in TRIED if n <= 300])
def test_float64_inputs_computed_in_float32_are_rejected(n, causal, logits):
    q, k, v = head(n, n, 64, logits=logits, dtype="float64")
    o_bound, lse_bound = attention_bounds(q, k, v, causal=causal, block_k=64)
    o, lse = tiled_attention(*(x.astype(np.float32) for x in (q, k, v)), 64, 64, causal)
    assert o_bound.ratio(o.astype(np.float64)) > 1 and lse_bound.ratio(lse.astype(np.float64)) > 1


@pytest.mark.parametrize("n, causal, logits", [(n, c, x) for n, c, x in TRIED if n <= 300])
@pytest.mark.parametrize("wrong", ["l off by 0.2 %", "base 2", "no maximum"])
def test_a_wrong_lse_is_rejected(wrong, n, causal, logits):
    q, k, v = head(n, n, 64, logits=logits)
    _, bound = attention_bounds(q, k, v, causal=causal, block_k=64)
    _, lse = tiled_attention(q, k, v, 64, 64, causal)
    s = scores(q, k, causal)
    lse = {"l off by 0.2 %": lse + np.float32(0.002), "base 2": lse / np.log(np.float32(2)),
           "no maximum": lse - s.max(axis=1).astype(np.float32)}[wrong]
    assert bound.ratio(lse) > 1


# ---- softmax and states

@pytest.mark.parametrize("logits", [0.01, 1, 30, 1000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softmax_bound_knows_right_from_nearly_right(dtype, logits):
    x = (logits * np.random.default_rng(6).standard_normal((20, 50))).astype(dtype)
    x[0], x[1, ::2] = -np.inf, -np.inf
    bound, p = softmax_bound(x), stable_softmax(x)
    assert bound.ratio(p) <= 1
    assert bound.ratio(p * x.dtype.type(1.002)) > 1
    assert bound.ratio(np.where(x == -np.inf, x.dtype.type(1e-7), p)) > 1  # a masked key that is not quite masked
    coarse = stable_softmax(x.astype(np.float32)).astype(np.float16).astype(dtype)
    assert bound.ratio(coarse) > 1


def test_underflow_is_rounding_too():
    """exp(-120) is 0 in float32: where the heavier key has value 0, all that is left of the answer is that."""
    q, k, v = (np.array(x, np.float32) for x in ([[1]], [[0], [-120]], [[0], [1]]))
    bound, _ = attention_bounds(q, k, v)
    assert bound.exact[0, 0] > 0 and naive_attention(q, k, v)[0, 0] == 0
    assert bound.ratio(naive_attention(q, k, v)) <= 1
    assert bound.ratio(np.array([[1e-30]])) > 1
    x = np.array([0, -120, -95], np.float32)
    assert softmax_bound(x).ratio(stable_softmax(x)) <= 1
    assert softmax_bound(x).ratio(np.array([1, 1e-30, 0])) > 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_state_bounds_against_summing_key_by_key(dtype):
    rng = np.random.default_rng(8)
    parts = [(rng.normal(0, 5, 3).astype(dtype), rng.uniform(1, 4, 3).astype(dtype), rng.standard_normal((3, 2)).astype(dtype))
             for _ in range(5)]
    m, l, o = state_bounds(parts, unit_roundoff(dtype))
    for row in range(3):
        top = max(float(part[0][row]) for part in parts)
        weights = [math.exp(float(part[0][row]) - top) for part in parts]
        assert m[row] == top
        # one exp, one product and one difference in float64, for terms that are all positive
        rounding = (4 + 2 * 40) * 2.0**-53
        exact = math.fsum(w * float(part[1][row]) for w, part in zip(weights, parts, strict=True))
        assert abs(float(l.exact[row]) - exact) <= rounding * exact
        for c in range(2):
            terms = [w * float(part[2][row, c]) for w, part in zip(weights, parts, strict=True)]
            assert abs(float(o.exact[row, c]) - math.fsum(terms)) <= rounding * math.fsum(map(abs, terms))
    assert l.ratio(l.exact.astype(dtype)) <= 1 and l.ratio(l.exact * 1.0001) > 1
    assert o.ratio(o.exact.astype(dtype)) <= 1 and o.ratio(o.exact * 1.0001) > 1


def test_state_bounds_of_empty_states_allow_nothing_but_zero():
    empty = np.full(2, -np.inf), np.zeros(2), np.zeros((2, 1))
    m, l, o = state_bounds([empty, empty], 2.0**-53)
    assert (m == -np.inf).all()
    assert l.ratio(np.zeros(2)) == 0 and l.ratio(np.full(2, 1e-300)) == math.inf
    assert o.ratio(np.zeros((2, 1))) == 0 and o.ratio(np.full((2, 1), -1e-300)) == math.inf


# ---- errors and ratio

def test_a_row_that_sees_no_key_allows_nothing_but_zero():
    q, k, v = head(5, 2, 4)
    o_bound, lse_bound = attention_bounds(q, k, v, causal=True)
    o, lse = tiled_attention(q, k, v, 2, 2, causal=True)
    assert (o_bound.bound[:3] == 0).all() and (lse_bound.bound[:3] == 0).all()
    assert o_bound.ratio(o) <= 1 and lse_bound.ratio(lse) <= 1
    assert (o_bound.errors(o)[:3] == 0).all() and (lse_bound.errors(lse)[:3] == 0).all()
    o[1, 2], lse[2] = 1e-30, -1e30
    assert o_bound.errors(o)[1, 2] == o_bound.ratio(o) == math.inf
    assert lse_bound.errors(lse)[2] == lse_bound.ratio(lse) == math.inf


def test_a_masked_entry_of_softmax_allows_nothing_but_zero():
    bound = softmax_bound(np.array([[0, -np.inf], [-np.inf, -np.inf]], np.float32))
    assert bound.ratio(np.array([[1, 0], [0, 0]], np.float32)) == 0
    for wrong in ([[1, 1e-38], [0, 0]], [[1, 0], [0, 1e-38]]):
        assert bound.ratio(np.array(wrong, np.float32)) == math.inf


@pytest.mark.parametrize("exact, value, expected", [
    (1.0, 1.0, 0), (1.0, 1.25, 0.5), (1.0, 0.5, 1), (1.0, 2.0, 2),
    (1.0, math.nan, math.inf), (1.0, math.inf, math.inf), (1.0, -math.inf, math.inf),
    (-math.inf, -math.inf, 0), (-math.inf, 0.0, math.inf), (-math.inf, math.inf, math.inf), (-math.inf, math.nan, math.inf),
    (0.0, -0.0, 0),
])
def test_errors_of_one_element(exact, value, expected):
    bound = Bound(np.array([exact, 3.0]), np.array([0.5, 0.5]))
    errors = bound.errors(np.array([value, 3.0]))
    assert errors.dtype == np.float64 and errors.tolist() == [expected, 0]
    assert bound.ratio(np.array([value, 3.0])) == expected and type(bound.ratio([value, 3.0])) is float


@pytest.mark.parametrize("value, expected", [(0.0, 0), (-0.0, 0), (1e-300, math.inf), (math.nan, math.inf), (math.inf, math.inf)])
def test_errors_where_the_bound_is_zero(value, expected):
    assert Bound(np.zeros(1), np.zeros(1)).ratio(np.array([value])) == expected


def test_one_nan_is_found_among_many():
    q, k, v = head(30, 30, 8)
    bound, _ = attention_bounds(q, k, v)
    o = naive_attention(q, k, v)
    o[17, 3] = np.nan
    assert bound.ratio(o) == math.inf
    assert np.argwhere(bound.errors(o) == np.inf).tolist() == [[17, 3]]
