"""The cases of chapter 4, and what a GPU runs besides. Tiles of kernels are powers of two: sizes lie on both sides of them."""
from flashedu.grading.cases.case import Case, cases, size
from flashedu.grading.tensor_inputs import forward_case, matrix_case


def matrix(rows, n, kind="random", **more):
    return {"kind": kind, "rows": rows, "n": n, **more}


def attention(n_q, n_k, d, kind="random", **more):
    return size(n_q, n_k, d, kind=kind, **more)


TENSOR_MEMORY = {"kind": "random", "n_q": 128, "n_k": 256, "d": 8, "seed": 7100}
TENSOR_MEMORY_LIMIT_BYTES = 128 * 256 // 2  # for one tensor: half a byte for each score
CASES = {
    "triton_softmax": (
        *cases(
            matrix_case,
            ("one element", matrix(1, 1)),
            ("rows", matrix(2, 4)),
            ("rows", matrix(5, 64)),
            ("ragged rows", matrix(2, 3)),
            ("ragged rows", matrix(3, 17)),
            ("ragged rows", matrix(3, 65)),
            ("ragged rows", matrix(2, 1000)),
            ("large logits", matrix(2, 4, "overflow")),
            ("very low logits", matrix(3, 5, "low")),
            ("rows far apart", matrix(4, 4, "magnitudes")),
            ("small probabilities", matrix(2, 6, "spread")),
            ("masked entries", matrix(2, 5, "masked")),
            ("a row of -inf", matrix(3, 4, "empty")),
            ("equal entries", matrix(2, 8, "uniform")),
            ("any strides", matrix(3, 8, layout="gaps")),
            ("any strides", matrix(4, 8, layout="transposed")),
            ("any strides", matrix(3, 5, layout="every second")),
            ("float16", matrix(3, 16, dtype="float16")),
            ("float16", matrix(4, 300, "spread", dtype="float16")),
            ("many rows", matrix(130, 3)),
            ("wide rows", matrix(2, 2100, "rising")),
        ),
        Case("the same bits", matrix_case, matrix(3, 300, seed=7200), again=True),
    ),
    "flash_forward": (
        *cases(
            forward_case,
            ("one key", attention(1, 1, 16)),
            ("one tile", attention(16, 16, 16)),
            ("several tiles", attention(16, 160, 16)),
            ("rising maxima", attention(8, 80, 16, "rising")),
            ("falling maxima", attention(8, 80, 16, "falling")),
            ("one huge logit", attention(8, 80, 16, "huge")),
            ("small weights", attention(8, 80, 16, "near")),
            ("overflow", attention(8, 48, 16, "overflow")),
            ("very low logits", attention(8, 40, 16, "low")),
            ("rows far apart", attention(8, 48, 16, "magnitudes")),
            ("whole numbers", attention(8, 48, 16, "uniform")),
            ("values with an offset", attention(8, 48, 16, "offset")),
            ("ragged keys", attention(16, 15, 16)),
            ("ragged keys", attention(8, 65, 16)),
            ("ragged keys", attention(8, 129, 16)),
            ("ragged queries", attention(1, 16, 16)),
            ("ragged queries", attention(33, 16, 16)),
            ("ragged queries", attention(65, 17, 16)),
            ("any head dimension", attention(16, 17, 1)),
            ("any head dimension", attention(17, 32, 40)),
            ("any head dimension", attention(8, 33, 96)),
            ("causal", attention(40, 40, 16, causal=True)),
            ("causal", attention(70, 70, 16, causal=True)),
            ("causal", attention(130, 130, 16, causal=True)),
            ("causal, rising", attention(40, 40, 16, "rising", causal=True)),
            ("causal, more keys", attention(20, 90, 16, causal=True)),
            ("causal, more keys", attention(50, 97, 16, causal=True)),
            ("causal, more keys", attention(130, 150, 16, causal=True)),
            ("causal, more keys", attention(130, 131, 16, causal=True)),  # one key more than a tile of queries ends at
            ("rows that see no key", attention(90, 20, 16, causal=True)),
            ("rows that see no key", attention(130, 128, 16, causal=True)),
            ("rows that see no key", attention(40, 35, 16, causal=True)),
            ("batch", attention(65, 17, 16, batch=2)),
            ("heads", attention(8, 16, 16, heads=3, kv_heads=3)),
            ("grouped queries", attention(8, 16, 16, heads=4, kv_heads=2)),
            ("grouped queries", attention(17, 33, 16, batch=2, heads=4, kv_heads=2, causal=True)),
            ("grouped queries", attention(8, 16, 16, heads=3)),
            ("any strides", attention(8, 16, 16, batch=2, heads=2, kv_heads=2, layout="transposed")),
            ("any strides", attention(8, 16, 16, heads=2, kv_heads=1, layout="gaps")),
            ("any strides", attention(9, 16, 16, heads=2, kv_heads=2, layout="every second")),
            ("each its own strides", attention(9, 16, 16, batch=2, heads=4, kv_heads=2, layout="mixed")),
            ("float16", attention(16, 16, 16, dtype="float16")),
            ("float16", attention(8, 100, 16, "heavy", dtype="float16")),
            ("float16", attention(40, 70, 64, heads=2, dtype="float16", causal=True)),
            ("float16", attention(8, 40, 40, dtype="float16")),
            ("larger", attention(50, 91, 20, batch=2, heads=2, causal=True, layout="transposed")),
        ),
        Case("the same bits", forward_case, attention(8, 150, 16, seed=7200), again=True),
        Case("memory", forward_case, TENSOR_MEMORY, TENSOR_MEMORY_LIMIT_BYTES),
    ),
}
GPU_CASES = {  # what the interpreter cannot show: compiled kernels, TF32, bfloat16, programs that really run at once
    "triton_softmax": cases(
        matrix_case,
        ("GPU: float32", matrix(300, 1000)),
        ("GPU: float16", matrix(70, 3000, dtype="float16")),
        ("GPU: bfloat16", matrix(33, 200, dtype="bfloat16")),
        ("GPU: any strides", matrix(64, 65, layout="transposed")),
        ("GPU: a row of -inf", matrix(3, 4, "empty")),
    ),
    "flash_forward": (
        *cases(
            forward_case,
            ("GPU: float32", attention(130, 257, 64, heads=2)),
            ("GPU: float32", attention(100, 165, 64, batch=2, heads=4, kv_heads=2, causal=True)),
            ("GPU: float16", attention(129, 300, 80, heads=2, dtype="float16")),
            ("GPU: float16", attention(300, 300, 128, heads=2, dtype="float16", causal=True)),
            ("GPU: bfloat16", attention(200, 200, 128, heads=4, kv_heads=2, dtype="bfloat16", causal=True)),
            ("GPU: rows that see no key", attention(150, 20, 64, dtype="float16", causal=True)),
            ("GPU: any strides", attention(65, 129, 64, heads=2, kv_heads=2, dtype="float16", layout="every second")),
        ),
        Case("GPU: the same bits", forward_case, attention(1000, 1000, 64, batch=2, heads=8, kv_heads=2, dtype="float16", causal=True), again=True),
    ),
}
