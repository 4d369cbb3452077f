"""The right answers of the exercises in Triton, as calls of the package's kernels, and what rounding alone may cause in each."""
from flashedu import exactness
from flashedu.gradient_bounds import gradient_bounds
from flashedu.grading.tensor_inputs import wide

SMALLEST_TILE = 16  # nobody's tiles are smaller, so nobody rescales more often


def triton_softmax(x):
    from flashedu.kernels.softmax import triton_softmax

    return triton_softmax(x)


def flash_forward(q, k, v, causal=False):
    from flashedu.kernels.forward import flash_forward

    return flash_forward(q, k, v, causal)


def flash_backward(q, k, v, o, lse, do, causal=False):
    from flashedu.kernels.backward import flash_backward

    return flash_backward(q, k, v, o, lse, do, causal)


def softmax_expected(x, dtype=None):
    """dtype: that of the tensors, where NumPy does not have it."""
    bound = exactness.softmax_bound(wide(x))
    dtype = dtype or x.dtype.name
    if dtype == "float32":
        return [("result", bound)]
    rounded = exactness.SLACK * exactness.unit_roundoff(dtype) * bound.exact + (2.0**-25 if dtype == "float16" else 0.0)
    return [("result", exactness.Bound(bound.exact, bound.bound + rounded))]


def forward_expected(q, k, v, causal, dtype=None):
    bounds = exactness.attention_bounds(wide(q), wide(k), wide(v), causal, block_k=SMALLEST_TILE, dtype=dtype or q.dtype)
    return list(zip(("o", "lse"), bounds))


def backward_expected(q, k, v, o, lse, do, causal, dtype=None):
    bounds = gradient_bounds(wide(q), wide(k), wide(v), wide(do), causal, block_q=SMALLEST_TILE, block_k=SMALLEST_TILE, dtype=dtype or q.dtype)
    return list(zip(("dq", "dk", "dv"), bounds))
