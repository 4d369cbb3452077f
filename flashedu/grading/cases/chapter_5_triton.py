"""The cases of flash_backward, and what a GPU runs besides."""
from flashedu.grading.cases.case import Case, cases
from flashedu.grading.cases.chapter_4 import TENSOR_MEMORY, TENSOR_MEMORY_LIMIT_BYTES, attention
from flashedu.grading.tensor_inputs import backward_case

CASES = {
    "flash_backward": (
        *cases(
            backward_case,
            ("one key", attention(1, 1, 16)),
            ("one tile", attention(16, 16, 16)),
            ("several tiles", attention(16, 150, 16)),
            ("several tiles", attention(150, 16, 16)),
            ("rising maxima", attention(8, 80, 16, "rising")),
            ("falling maxima", attention(8, 80, 16, "falling")),
            ("small weights", attention(8, 80, 16, "near")),
            ("overflow", attention(8, 40, 16, "overflow")),
            ("very low logits", attention(8, 30, 16, "low")),
            ("rows far apart", attention(8, 33, 16, "magnitudes")),
            ("values with an offset", attention(8, 32, 16, "offset")),
            ("ragged keys", attention(16, 15, 16)),
            ("ragged keys", attention(8, 65, 16)),
            ("ragged queries", attention(1, 16, 16)),
            ("ragged queries", attention(65, 16, 16, batch=2)),
            ("any head dimension", attention(16, 17, 1)),
            ("any head dimension", attention(17, 16, 40)),
            ("any head dimension", attention(8, 33, 96)),
            ("causal", attention(40, 40, 16, causal=True)),
            ("causal", attention(70, 70, 16, causal=True)),
            ("causal", attention(130, 130, 16, causal=True)),
            ("causal, rising", attention(40, 40, 16, "rising", causal=True)),
            ("causal, more keys", attention(20, 90, 16, causal=True)),
            ("causal, more keys", attention(40, 70, 16, causal=True)),
            ("causal, more keys", attention(130, 150, 16, causal=True)),
            ("causal, more keys", attention(130, 131, 16, causal=True)),  # one key more than a tile of queries ends at
            ("rows that see no key", attention(70, 20, 16, causal=True)),
            ("rows that see no key", attention(130, 128, 16, causal=True)),
            ("rows that see no key", attention(37, 33, 16, causal=True)),
            ("batch", attention(8, 16, 16, batch=3)),
            ("heads", attention(8, 16, 16, heads=3, kv_heads=3)),
            ("grouped queries", attention(8, 16, 16, heads=4, kv_heads=2)),
            ("grouped queries", attention(17, 33, 16, batch=2, heads=4, kv_heads=2, causal=True)),
            ("grouped queries", attention(8, 16, 16, heads=3)),
            ("any strides", attention(8, 16, 16, batch=2, heads=2, kv_heads=2, layout="transposed")),
            ("any strides", attention(8, 16, 16, heads=2, kv_heads=1, layout="gaps")),
            ("any strides", attention(9, 16, 16, heads=2, kv_heads=2, layout="every second")),
            ("each its own strides", attention(9, 16, 16, batch=2, heads=4, kv_heads=2, layout="mixed")),
            ("a gradient from .sum()", attention(8, 16, 16, batch=2, heads=2, kv_heads=2, layout="broadcast")),
            ("float16", attention(16, 16, 16, dtype="float16")),
            ("float16", attention(40, 50, 64, dtype="float16", causal=True)),
            ("float16", attention(4, 300, 40, "scaled", dtype="float16")),
            ("float16", attention(600, 2, 16, "seesaw", dtype="float16")),
            ("larger", attention(40, 61, 20, heads=2, causal=True, layout="transposed")),
        ),
        Case("the same bits", backward_case, attention(8, 150, 16, seed=7200), again=True),
        Case("the same bits", backward_case, attention(150, 8, 16, seed=7201), again=True),
        Case("the same bits", backward_case, attention(8, 16, 16, heads=3, kv_heads=1, seed=7202), again=True),
        Case("memory", backward_case, TENSOR_MEMORY, TENSOR_MEMORY_LIMIT_BYTES),
    ),
}
GPU_CASES = {
    "flash_backward": (
        *cases(
            backward_case,
            ("GPU: float32", attention(130, 257, 64, heads=2)),
            ("GPU: float32", attention(100, 165, 64, batch=2, heads=4, kv_heads=2, causal=True)),
            ("GPU: float16", attention(129, 300, 80, heads=2, dtype="float16")),
            ("GPU: bfloat16", attention(200, 200, 128, heads=4, kv_heads=2, dtype="bfloat16", causal=True)),
            ("GPU: rows that see no key", attention(150, 20, 64, dtype="float16", causal=True)),
            ("GPU: a gradient from .sum()", attention(65, 129, 64, heads=2, kv_heads=2, dtype="float16", layout="broadcast")),
        ),
        Case("GPU: the same bits", backward_case, attention(1000, 1000, 64, batch=2, heads=8, kv_heads=2, dtype="float16", causal=True), again=True),
    ),
}
