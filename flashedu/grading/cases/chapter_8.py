"""Cases of chapter 8. A row: the check that it belongs to, and the parameters of its inputs."""
from flashedu.grading import inputs
from flashedu.grading.cases.case import MEMORY, Case, cases, size

SPLIT_MEMORY_LIMIT_BYTES = 256 * 4096  # one byte for each score; the states of 64 parts, and one part's scores, need half of it

CASES = {
    "split_kv_attention": (
        *cases(
            inputs.attention_case,
            ("one key", size(1, 1, 1, kind="random", splits=1)),
            ("one part", size(2, 4, 3, kind="random", splits=1)),
            ("two parts", size(3, 6, 4, kind="random", splits=2)),
            ("several parts", size(5, 12, 8, kind="random", splits=4, strided=True)),
            ("several parts", size(3, 15, 4, kind="random", splits=5)),
            ("rising maxima", size(3, 8, 2, kind="rising", splits=4)),
            ("falling maxima", size(3, 8, 2, kind="falling", splits=4)),
            ("one huge logit", size(2, 9, 4, kind="huge", splits=3)),
            ("small weights", size(2, 9, 4, kind="near", splits=3)),
            ("overflow", size(2, 6, 2, kind="overflow", splits=3)),
            ("very low logits", size(2, 6, 2, kind="low", splits=3)),
            ("rows far apart", size(4, 6, 2, kind="magnitudes", splits=3)),
            ("whole numbers", size(2, 8, 4, kind="uniform", splits=4)),
            ("unequal parts", size(3, 7, 4, kind="random", splits=3)),
            ("unequal parts", size(2, 11, 4, kind="random", splits=4)),
            ("parts of one key", size(3, 5, 4, kind="random", splits=5)),
            ("more parts than keys", size(2, 3, 4, kind="random", splits=5)),
            ("more parts than keys", size(3, 1, 2, kind="random", splits=8)),
            ("more parts than keys", size(2, 3, 4, kind="low", splits=5)),
            ("values with an offset", size(3, 10, 4, kind="offset", splits=5)),
            ("Dv differs from D", size(3, 6, 4, kind="random", d_v=7, splits=3)),
            ("float64", size(3, 9, 5, kind="random", splits=2, dtype="float64")),
            ("more queries than keys", size(6, 3, 4, kind="random", splits=2)),
            ("larger", size(37, 53, 20, kind="random", d_v=12, splits=7, strided=True)),
        ),
        Case("memory", inputs.attention_case, {**MEMORY, "splits": 64}, SPLIT_MEMORY_LIMIT_BYTES),
    ),
}
