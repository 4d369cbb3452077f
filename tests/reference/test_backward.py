"""Gradients: those of the definition by finite differences, and the same from tiles, whatever the tiles."""
import inspect
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flashedu.gradient_bounds import gradient_bounds
from flashedu.reference import attention_backward, tiled_attention, tiled_backward

pytestmark = pytest.mark.filterwarnings("error")
random_cases = settings(max_examples=100, deadline=None, derandomize=True, database=None)


def head(n_q, n_k, d, d_v=None, dtype="float32", scale=1.0, seed=0):
    rng = np.random.default_rng([seed, n_q, n_k, d])
    q, k, v, do = (rng.standard_normal(shape) for shape in ((n_q, d), (n_k, d), (n_k, d_v or d), (n_q, d_v or d)))
    return (scale * q).astype(dtype), k.astype(dtype), v.astype(dtype), do.astype(dtype)


def by_tiles(q, k, v, do, block_q, block_k, causal=False):
    o, lse = tiled_attention(q, k, v, block_q, block_k, causal)
    return tiled_backward(q, k, v, o, lse, do, block_q, block_k, causal)


def assert_exact(q, k, v, do, causal, gradients, **blocks):
    for bound, gradient, x in zip(gradient_bounds(q, k, v, do, causal, **blocks), gradients, (q, k, v), strict=True):
        assert gradient.shape == x.shape and gradient.dtype == x.dtype
        assert bound.ratio(gradient) <= 1


# ---- the derivative of what?

def loss(q, k, v, do, causal):
    """sum(do * o), key by key, in the precision of its arguments."""
    total = 0
    for i, row in enumerate(q):
        seen = range(min(len(k), max(0, i + len(k) - len(q) + 1)) if causal else len(k))
        weights = [np.exp((row * k[j]).sum() / np.sqrt(row.dtype.type(len(row)))) for j in seen]
        total += sum((w * (do[i] * v[j]).sum() for w, j in zip(weights, seen, strict=True)), start=0) / max(sum(weights), row.dtype.type(1e-300))
    return total


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_q, n_k, d, d_v", [(1, 1, 1, 1), (4, 4, 3, 2), (3, 6, 2, 4), (6, 3, 3, 1), (2, 7, 5, 5)])
def test_against_central_differences(n_q, n_k, d, d_v, causal):
    q, k, v, do = head(n_q, n_k, d, d_v, "float64")
    wide = [x.astype(np.longdouble) for x in (q, k, v)]
    eps = np.finfo(np.longdouble).eps
    h = eps ** (np.longdouble(1) / 3)  # where the error of the difference, ~h**2, meets that of rounding, ~eps / h
    whole, tiled = attention_backward(q, k, v, do, causal), by_tiles(q, k, v, do, 2, 3, causal)
    for n, (x, ours, theirs) in enumerate(zip(wide, whole, tiled, strict=True)):
        for where in np.ndindex(x.shape):
            up, down = ([a.copy() for a in wide] for _ in range(2))
            up[n][where] += h
            down[n][where] -= h
            slope = (loss(*up, do, causal) - loss(*down, do, causal)) / (2 * h)
            # 1e-13 with a long double of 80 bits; third derivatives of the loss and the loss itself are below 100 here
            assert abs(slope - ours[where]) <= 100 * h**2 + 1e-13
            assert abs(slope - theirs[where]) <= 100 * h**2 + 1e-13


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_q, n_k, d", [(5, 9, 8), (9, 5, 3), (16, 16, 4)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_against_automatic_differentiation(dtype, n_q, n_k, d, causal):
    torch = pytest.importorskip("torch")
    arrays = head(n_q, n_k, d, dtype=dtype)
    q, k, v = (torch.tensor(x, requires_grad=True) for x in arrays[:3])
    s = q @ k.T / d**0.5
    hidden = torch.arange(n_k) > torch.arange(n_q)[:, None] + n_k - n_q if causal else torch.zeros(n_q, n_k, dtype=torch.bool)
    p = torch.softmax(s.masked_fill(hidden, -1e30), dim=-1).masked_fill(hidden, 0)
    (p @ v).backward(torch.tensor(arrays[3]))
    assert_exact(*arrays, causal, [x.grad.numpy() for x in (q, k, v)])  # theirs by our bound
    assert_exact(*arrays, causal, attention_backward(*arrays, causal))
    assert_exact(*arrays, causal, by_tiles(*arrays, 4, 3, causal), block_q=4, block_k=3)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_q, n_k", [(5, 7), (7, 5)])
def test_torch_accepts_the_pair_as_a_function_and_its_gradient(n_q, n_k, causal):
    torch = pytest.importorskip("torch")

    class Tiled(torch.autograd.Function):
        @staticmethod
        def forward(context, q, k, v):
            o, lse = (torch.from_numpy(x) for x in tiled_attention(q.numpy(), k.numpy(), v.numpy(), 3, 2, causal))
            context.save_for_backward(q, k, v, o, lse)
            return o

        @staticmethod
        def backward(context, do):
            return tuple(map(torch.from_numpy, tiled_backward(*(x.numpy() for x in (*context.saved_tensors, do.contiguous())), 2, 3, causal)))

    inputs = [torch.from_numpy(x).requires_grad_() for x in head(n_q, n_k, 4, 3, "float64")[:3]]
    assert torch.autograd.gradcheck(lambda q, k, v: Tiled.apply(q, k, v), inputs)


# ---- exact, whatever the tiles

@random_cases
@given(st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 24), st.integers(1, 24)), st.integers(1, 50),
       st.integers(1, 50), st.booleans(), st.floats(-3, 1.5), st.sampled_from(["float32", "float64"]), st.integers(0, 10**6))
@example((1, 1, 1, 1), 1, 1, True, 0.0, "float32", 0)
@example((40, 3, 4, 4), 7, 2, True, 0.0, "float32", 0)  # most rows see no key
@example((3, 40, 4, 4), 2, 7, True, 0.0, "float64", 0)
@example((1, 40, 4, 4), 50, 50, True, 1.5, "float32", 0)  # one query, tiles larger than the lengths
def test_exact_over_shapes_tiles_and_magnitudes(shape, block_q, block_k, causal, log_scale, dtype, seed):
    q, k, v, do = head(*shape, dtype=dtype, scale=10**log_scale, seed=seed)
    assert_exact(q, k, v, do, causal, attention_backward(q, k, v, do, causal))
    assert_exact(q, k, v, do, causal, by_tiles(q, k, v, do, block_q, block_k, causal), block_q=block_q, block_k=block_k)


def test_the_tiles_of_the_forward_pass_may_differ():
    q, k, v, do = head(20, 30, 8)
    o, lse = tiled_attention(q, k, v, 7, 16, causal=True)
    assert_exact(q, k, v, do, True, tiled_backward(q, k, v, o, lse, do, 4, 5, causal=True), block_q=4, block_k=5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("block_q, block_k", [(1, 1), (2, 3), (4, 4), (16, 16)])
@pytest.mark.parametrize("n_q, n_k", [(9, 4), (12, 1), (16, 15)])
def test_a_row_that_sees_no_key_gets_and_gives_nothing(n_q, n_k, block_q, block_k, dtype):
    q, k, v, do = head(n_q, n_k, 3, 2, dtype)
    blind = n_q - n_k
    for dq, dk, dv in (attention_backward(q, k, v, do, True), by_tiles(q, k, v, do, block_q, block_k, True)):
        assert (dq[:blind] == 0).all()
        rest = attention_backward(q[blind:], k, v, do[blind:], True)
        for part, whole, bound in zip(rest, (dq[blind:], dk, dv), gradient_bounds(q[blind:], k, v, do[blind:], True), strict=True):
            assert bound.ratio(part) <= 1 and bound.ratio(whole) <= 1


def test_tiles_that_no_query_sees_are_not_looked_at():
    """NaN in what a tile above the diagonal would read must not reach a result: 0 * NaN would be NaN."""
    backward = inspect.unwrap(tiled_backward)  # which takes NaN
    q, k, v, do = head(8, 8, 3)
    o, lse = tiled_attention(q, k, v, 4, 4, causal=True)
    late, early = (np.where((np.arange(8) < 4)[:, None] == first, np.nan, 0).astype(np.float32) for first in (False, True))
    dq, _, _ = backward(q, k + late, v + late, o, lse, do, 4, 4, causal=True)
    _, dk, dv = backward(q + early, k, v, o, lse, do + early, 4, 4, causal=True)
    right = attention_backward(q, k, v, do, causal=True)
    for bound, mine in zip(gradient_bounds(q, k, v, do, True, block_q=4, block_k=4), (dq, dk, dv), strict=True):
        finite = slice(0, 4) if mine is dq else slice(4, 8)
        assert np.isfinite(mine[finite]).all() and (bound.errors(mine)[finite] <= 1).all()
    assert all(np.isfinite(x).all() for x in right)


@pytest.mark.parametrize("drift", [60.0, -60.0])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block_k", [1, 3, 16, 20])
def test_maxima_that_move(drift, causal, block_k):
    q, k, v, do = head(16, 16, 4)
    q[:, 0], k[:, 0] = 2, drift * np.arange(16)
    assert_exact(q, k, v, do, causal, by_tiles(q, k, v, do, 5, block_k, causal), block_q=5, block_k=block_k)


def test_inputs_are_not_touched_and_any_strides_will_do():
    q, k, v, do = head(12, 18, 10, 8)
    views = [q[::2, ::2], k[::-1, ::2], np.asfortranarray(v), do[1::2]]
    copies = [x.copy() for x in views]
    o, lse = tiled_attention(*views[:3], 5, 4, causal=True)
    views += [np.asfortranarray(o), np.repeat(lse, 2)[::2]]
    for x in views:
        x.flags.writeable = False
    q, k, v, do, o, lse = views
    assert_exact(*copies, True, attention_backward(q, k, v, do, causal=True))
    assert_exact(*copies, True, tiled_backward(q, k, v, o, lse, do, 5, 4, causal=True), block_q=5, block_k=4)
    assert all(np.array_equal(x, y) for x, y in zip(views, copies, strict=False))


def test_it_never_holds_the_scores():
    n = 1024
    q, k, v, do = head(n, n, 16)
    o, lse = tiled_attention(q, k, v, 32, 32, causal=True)
    tracemalloc.start()
    try:
        tiled_backward(q, k, v, o, lse, do, 32, 32, causal=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < n * n * 4 / 8  # an eighth of S; the gradients alone take a 21st of it
