"""The rounding bound of gradients: correct backward passes stay below it in every dtype, mistakes do not."""
import functools
import itertools
import math

import numpy as np
import pytest

from flashedu.exactness import SLACK, attention_bounds
from flashedu.gradient_bounds import gradient_bounds
from flashedu.grading.inputs import qkv
from flashedu.reference import attention_backward, tiled_attention, tiled_backward

pytestmark = pytest.mark.filterwarnings("error")
KINDS = ("random", "x8", "rising", "falling", "huge", "overflow", "low", "uniform", "offset", "magnitudes", "near")
SHAPES = [(64, 64, 64, 64), (200, 200, 64, 64), (1, 150, 32, 32), (100, 37, 16, 20), (37, 100, 128, 128), (50, 50, 1, 3), (5, 3, 4, 4)]


def head(kind, n_q, n_k, d, d_v, dtype="float32", cast=lambda x: x):
    """q, k, v, do of a kind of the grader's inputs; x8 is random with scores of standard deviation 8."""
    q, k, v = qkv("random" if kind == "x8" else kind, n_q, n_k, d, d_v, dtype)
    do = np.random.default_rng([5, n_q]).standard_normal((n_q, d_v)).astype(dtype)
    return tuple(map(cast, (q * q.dtype.type(8 if kind == "x8" else 1), k, v, do)))


# ---- the formula of the module, term by term

@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype, u_p, u_o, lost", [("float32", 0.0, 2**-24, 2.0**-126), ("bfloat16", 2**-8, 2**-8, 2.0**-126), ("float16", 2**-11, 2**-11, 2.0**-25)])
@pytest.mark.parametrize("shape", [(4, 6, 3, 2), (6, 3, 4, 2), (1, 1, 1, 1)])
def test_the_bound_is_the_formula(shape, dtype, u_p, u_o, lost, causal):
    u, block_q, block_k = 2.0**-24, 2, 4
    (n_q, n_k, d, d_v), scale = shape, 1 / math.sqrt(shape[2])
    q, k, v, do = (np.round(4 * x).astype(np.float64) / 4 for x in head("random", *shape))  # numbers of every dtype
    o_bound, lse_bound = attention_bounds(q, k, v, causal, block_k=block_k, dtype=dtype)
    e_dq, e_dk, e_dv, dq, dk, dv = (np.zeros(s) for s in 2 * (q.shape, k.shape, v.shape))
    seen = [[j for j in range(n_k) if not causal or j <= i + n_k - n_q] for i in range(n_q)]
    over_keys, over_queries = (u * (2 * math.ceil(n / min(b, n)) + 2 * math.sqrt(min(b, n)) + 8) for n, b in ((n_k, block_k), (n_q, block_q)))
    c = u * (math.sqrt(d_v) + 2)
    for i in (i for i in range(n_q) if seen[i]):
        s = {j: q[i] @ k[j] * scale for j in seen[i]}
        top, lse = max(s.values()), float(lse_bound.exact[i])
        p = {j: math.exp(s[j] - lse) for j in seen[i]}
        size = max(np.abs(q[i]) @ np.abs(k[j]) for j in seen[i]) * scale
        score = u * ((math.sqrt(d) + 3) * size + 2 * (top - min(s.values())))
        eps = score + lse_bound.bound[i] / SLACK + u * (abs(top) + abs(lse) + 8)
        a = {j: np.abs(do[i]) @ np.abs(v[j]) for j in seen[i]}
        delta = sum(p[j] * (do[i] @ v[j]) for j in seen[i])
        e_delta = np.abs(do[i]) @ o_bound.bound[i] / SLACK + sum(eps * p[j] * a[j] for j in seen[i]) + c * np.abs(do[i]) @ np.abs(o_bound.exact[i])
        for j in seen[i]:
            gap = do[i] @ v[j] - delta
            ds, e_ds = p[j] * gap, p[j] * ((eps + 3 * u + u_p) * abs(gap) + c * a[j] + e_delta) + 2.0**-126 * abs(gap) + lost
            dq[i] += ds * k[j] * scale
            dk[j] += ds * q[i] * scale
            dv[j] += p[j] * do[i]
            e_dq[i] += (e_ds + over_keys * abs(ds)) * np.abs(k[j]) * scale
            e_dk[j] += (e_ds + over_queries * abs(ds)) * np.abs(q[i]) * scale
            e_dv[j] += ((eps + u_p + over_queries) * p[j] + lost) * np.abs(do[i])
    rows, keys = np.array([bool(x) for x in seen])[:, None], np.array([any(j in x for x in seen) for j in range(n_k)])[:, None]
    bounds = gradient_bounds(q, k, v, do, causal, block_q=block_q, block_k=block_k, dtype=dtype)
    for bound, exact, error, some in zip(bounds, (dq, dk, dv), (e_dq, e_dk, e_dv), (rows, keys, keys), strict=True):
        # both sides in float64; gaps of one key are 0 in exact arithmetic, and their rounding is all that is left of them
        np.testing.assert_allclose(bound.exact, exact, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(bound.bound, SLACK * (error + u_o * np.abs(exact) + lost * some), rtol=1e-11, atol=1e-20)


# ---- correct backward passes are below it

@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_correct_in_float32(kind, shape, causal):
    arrays = head(kind, *shape)
    ratios = [b.ratio(x) for b, x in zip(gradient_bounds(*arrays, causal), attention_backward(*arrays, causal), strict=True)]
    for block_q, block_k in ((16, 32), (64, 8)):
        bounds = gradient_bounds(*arrays, causal, block_q=block_q, block_k=block_k)
        o, lse = tiled_attention(*arrays[:3], block_q, block_k, causal)
        tiled = tiled_backward(*arrays[:3], o, lse, arrays[3], block_q, block_k, causal)
        ratios += [b.ratio(x) for pass_ in (tiled, backward(*arrays, causal, block_q, block_k)) for b, x in zip(bounds, pass_, strict=True)]
    print(f"{max(ratios):.3f}")
    assert max(ratios) <= 1


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[0] * s[1] <= 5000])
@pytest.mark.parametrize("kind", KINDS)
def test_correct_in_float64_and_float32_is_not(kind, shape, causal):
    arrays = head(kind, *shape, dtype="float64")
    bounds = gradient_bounds(*arrays, causal, block_q=16, block_k=8)
    o, lse = tiled_attention(*arrays[:3], 16, 8, causal)
    assert all(b.ratio(x) <= 1 for b, x in zip(bounds, tiled_backward(*arrays[:3], o, lse, arrays[3], 16, 8, causal), strict=True))
    if kind in ("random", "x8"):
        coarse = attention_backward(*(x.astype(np.float32) for x in arrays), causal)
        assert all(b.ratio(x) > 1 for b, x in zip(bounds, coarse, strict=True))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_correct_in_16_bits(dtype, kind, shape, causal):
    """o, P, dS and the gradients rounded to 16 bits, sums and lse in float32: what a 16-bit kernel does."""
    cast = in_16_bits(dtype)
    arrays = head(kind, *shape, cast=cast)
    forward = attention_bounds(*arrays[:3], causal, block_k=32, dtype=dtype)
    ratios = [b.ratio(x) for b, x in zip(forward, forward_pass(*arrays[:3], causal, 32, cast), strict=True)]
    bounds = gradient_bounds(*arrays, causal, block_q=16, block_k=32, dtype=dtype)
    ratios += [b.ratio(x) for b, x in zip(bounds, backward(*arrays, causal, 16, 32, cast), strict=True)]
    print(f"{max(ratios):.3f}")
    assert max(ratios) <= 1


# ---- mistakes are not

def in_16_bits(dtype):
    """The function that rounds float32 values to a 16-bit dtype, as torch does."""
    torch = pytest.importorskip("torch")
    return lambda x: torch.from_numpy(np.ascontiguousarray(x)).to(getattr(torch, dtype)).float().numpy()


def tf32(x):
    """float32 values rounded to the 11 significant bits of TF32."""
    i = np.ascontiguousarray(x).view(np.uint32)
    return ((i + 4095 + ((i >> 13) & 1)) >> 13 << 13).view(np.float32)


def truncated(x, bits):
    """float32 values cut to `bits` significant bits."""
    return (np.ascontiguousarray(x).view(np.uint32) >> (24 - bits) << (24 - bits)).view(np.float32)


def forward_pass(q, k, v, causal, block, cast=lambda x: x, product=np.matmul):
    """Online softmax in float32, P and the output cast."""
    n_q, n_k, scale = len(q), len(k), np.float32(q.shape[1] ** -0.5)
    m, l, acc = np.full((n_q, 1), -np.inf, np.float32), np.zeros((n_q, 1), np.float32), np.zeros((n_q, v.shape[1]), np.float32)
    for j0 in range(0, n_k, block):
        j = np.arange(j0, min(j0 + block, n_k))
        s = product(q, k[j].T) * scale
        if causal:
            s[j > np.arange(n_q)[:, None] + n_k - n_q] = -np.inf
        m_new = np.maximum(m, s.max(axis=1, keepdims=True))
        safe = np.where(np.isinf(m_new), np.float32(0), m_new)
        p, alpha = np.exp(s - safe), np.exp(m - safe)
        l, acc, m = l * alpha + p.sum(axis=1, keepdims=True), acc * alpha + product(cast(p), v[j]), m_new
    lse = np.where(l > 0, m + np.log(np.where(l > 0, l, np.float32(1))), -np.inf)
    return cast(acc / np.where(l == 0, np.float32(1), l)), lse[:, 0].astype(np.float32)


def backward(q, k, v, do, causal, block_q, block_k, cast=lambda x: x, mistake=None):
    """Keys outside, queries inside, base 2, in float32, written without the package, with one mistake if asked for."""
    product = (lambda a, b: tf32(a) @ tf32(b)) if mistake == "tf32" else np.matmul
    o, lse = forward_pass(q, k, v, causal, block_k, cast, product)
    n_q, n_k, scale, log2_e = len(q), len(k), np.float32(q.shape[1] ** -0.5), np.float32(math.log2(math.e))
    delta = (do * o).sum(axis=1, keepdims=True) * np.float32(0 if mistake == "no delta" else 1)
    lse = np.where(np.isinf(lse), np.float32(np.inf), lse)[:, None] * log2_e
    dq, dk, dv = (np.zeros(x.shape, np.float32) for x in (q, k, v))
    for j0, i0 in itertools.product(range(0, n_k, block_k), range(0, n_q, block_q)):
        j, i = np.arange(j0, min(j0 + block_k, n_k)), np.arange(i0, min(i0 + block_q, n_q))
        s = product(q[i], k[j].T) * (scale * log2_e)
        if causal:
            s[j > i[:, None] + n_k - n_q + (mistake == "mask +1")] = -np.inf
        p = np.exp2(s - lse[i])
        ds = p * (product(do[i], v[j].T) - delta[i])
        if mistake == "last key skipped" and j[-1] == n_k - 1:
            p[:, -1] = ds[:, -1] = 0
        p, ds = (truncated(x, 8) if mistake == "8 bits of P" else cast(x) for x in (p, ds))
        dq[i] += product(ds, k[j])
        dk[j] += product(ds.T, q[i])
        dv[j] += product(p.T, do[i])
        if mistake == "accumulator of 8 bits":
            dq[i], dk[j], dv[j] = truncated(dq[i], 8), truncated(dk[j], 8), truncated(dv[j], 8)
    return cast(dq * (1 if mistake == "no scale in dq" else scale)), cast(dk * (1 if mistake == "no scale in dk" else scale)), cast(dv)


@functools.cache
def tried(n_q, n_k, d, causal, kind, dtype):
    """Inputs and their bounds; the oracle is the slow part of these tests."""
    arrays = head(kind, n_q, n_k, d, d, cast=(lambda x: x) if dtype == "float32" else in_16_bits(dtype))
    return arrays, gradient_bounds(*arrays, causal, block_q=64, block_k=64, dtype=dtype)


TRIED = list(itertools.product([(64, 64, 64), (300, 300, 64), (1000, 1000, 64), (64, 300, 128)], (False, True), ("random", "x8")))
MISTAKES = ("no delta", "no scale in dq", "no scale in dk", "tf32", "8 bits of P", "accumulator of 8 bits", "last key skipped", "mask +1")


@pytest.mark.parametrize("mistake, shape, causal, kind", [
    (mistake, *case) for mistake in (None, *MISTAKES) for case in TRIED if case[1] or mistake != "mask +1"])
def test_mistakes_in_float32_are_rejected(mistake, shape, causal, kind):
    arrays, bounds = tried(*shape, causal, kind, "float32")
    ratio = max(b.ratio(x) for b, x in zip(bounds, backward(*arrays, causal, 64, 64, mistake=mistake), strict=True))
    print(f"{mistake}: {ratio:.3g}")
    assert ratio <= 1 if mistake is None else ratio > 1


@pytest.mark.parametrize("shape, causal", [(shape, causal) for shape, causal, kind in TRIED if kind == "random"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("mistake", [None, "no delta", "no scale in dq", "no scale in dk", "last key skipped"])
def test_mistakes_of_logic_are_rejected_in_16_bits_too(mistake, dtype, shape, causal):
    arrays, bounds = tried(*shape, causal, "random", dtype)
    ratio = max(b.ratio(x) for b, x in zip(bounds, backward(*arrays, causal, 64, 64, in_16_bits(dtype), mistake), strict=True))
    print(f"{mistake}: {ratio:.3g}")
    assert ratio <= 1 if mistake is None else ratio > 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits_are_rejected_where_float32_was_promised(dtype):
    arrays, _ = tried(300, 300, 64, False, "random", dtype)
    strict = gradient_bounds(*arrays, block_q=64, block_k=64)
    assert all(b.ratio(x) > 1 for b, x in zip(strict, backward(*arrays, False, 64, 64, in_16_bits(dtype)), strict=True))


def test_what_float16_loses_below_its_smallest_numbers_is_rounding():
    """P = e^-20 is 0 in float16: where the heavier key has value 0, all that is left of the output and of dv is that."""
    q, k, v = (np.array(x, np.float32) for x in ([[1]], [[0], [-20]], [[0], [1]]))
    do, zero = np.ones((1, 1), np.float32), np.zeros((1, 1))
    exact = float(attention_bounds(q, k, v, scale=1.0)[0].exact[0, 0])
    assert 0 < exact < 2.0**-25
    assert attention_bounds(q, k, v, scale=1.0, dtype="float16")[0].ratio(zero) <= 1 < attention_bounds(q, k, v, scale=1.0, dtype="bfloat16")[0].ratio(zero)
    lost = np.array([[1], [0]])
    ratios = {dtype: gradient_bounds(q, k, v, do, scale=1.0, dtype=dtype)[2].ratio(lost) for dtype in ("float16", "bfloat16")}
    assert ratios["float16"] <= 1 < ratios["bfloat16"]
    assert attention_bounds(q, k, v, scale=1.0, dtype="float16")[0].ratio(zero + 1e-6) > 1


# ---- torch's layout

@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads, kv_heads", [(1, 1), (4, 4), (4, 2), (6, 1)])
def test_heads_are_judged_one_by_one_and_shared_keys_add_up(heads, kv_heads, causal):
    rng = np.random.default_rng([heads, kv_heads])
    q, do = rng.standard_normal((2, heads, 9, 4)).astype(np.float32), rng.standard_normal((2, heads, 9, 3)).astype(np.float32)
    k, v = (rng.standard_normal((2, kv_heads, 7, width)).astype(np.float32) for width in (4, 3))
    o, lse = attention_bounds(q, k, v, causal, block_k=4)
    dq, dk, dv = gradient_bounds(q, k, v, do, causal, block_q=4, block_k=4)
    sums = {name: np.zeros(x.shape) for name, x in (("dk", k), ("dv", v), ("dk bound", k), ("dv bound", v))}
    mine = [np.zeros_like(x) for x in (q, k, v)]
    for b, h in np.ndindex(2, heads):
        g = h // (heads // kv_heads)
        one = q[b, h], k[b, g], v[b, g]
        for whole, part in zip((o, lse), attention_bounds(*one, causal, block_k=4), strict=True):
            assert np.array_equal(whole.exact[b, h], part.exact) and np.array_equal(whole.bound[b, h], part.bound)
        parts = gradient_bounds(*one, do[b, h], causal, block_q=4, block_k=4)
        assert np.array_equal(dq.exact[b, h], parts[0].exact) and np.array_equal(dq.bound[b, h], parts[0].bound)
        for name, part in zip(("dk", "dv"), parts[1:], strict=True):
            sums[name][b, g] += part.exact
            sums[f"{name} bound"][b, g] += part.bound
        for x, gradient, where in zip(mine, attention_backward(*one, do[b, h], causal), ((b, h), (b, g), (b, g)), strict=True):
            x[where] += gradient
    for name, whole in (("dk", dk), ("dv", dv)):
        np.testing.assert_allclose(whole.exact, sums[name], rtol=1e-13, atol=1e-15)
        # a sum over several heads rounds more often than one over each
        assert (whole.bound >= sums[f"{name} bound"] * (1 - 1e-13)).all() and (whole.bound <= 4 * sums[f"{name} bound"]).all()
    assert all(bound.ratio(x) <= 1 for bound, x in zip((dq, dk, dv), mine, strict=True))
