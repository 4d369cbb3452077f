"""Cases of chapter 7. A row: the check that it belongs to, and the numbers that the function is called with."""
from flashedu.grading.cases.case import number_cases

CASES = {
    "attention_intensity": number_cases(
        "n_q n_k head_dim heads kv_heads itemsize",
        ("one head", (4, 8, 2, 1, 1, 1)),
        ("as many queries as keys", (16, 16, 4, 1, 1, 1)),
        ("bytes, not elements", (4, 8, 2, 1, 1, 3)),
        ("several heads", (8, 24, 4, 3, 3, 1)),
        ("grouped queries", (8, 16, 4, 4, 2, 2)),
        ("one query", (1, 1000, 64, 8, 8, 2)),
        ("one query for each head of a group", (1, 131_072, 128, 32, 8, 2)),
        ("a million tokens", (1_000_000, 1_000_000, 128, 64, 8, 2)),
    ),
    "kv_cache_bytes": number_cases(
        "n layers kv_heads head_dim itemsize",
        ("one token", (1, 1, 1, 4, 1)),
        ("several tokens", (8, 1, 1, 4, 1)),
        ("several layers", (8, 3, 1, 4, 1)),
        ("several heads", (8, 3, 5, 4, 1)),
        ("bytes, not elements", (8, 3, 2, 4, 3)),
        ("a real model", (8192, 32, 8, 128, 2)),
        ("a million tokens", (1_000_001, 126, 8, 128, 2)),
    ),
    "attention_flop_share": number_cases(
        "n hidden ffn heads kv_heads head_dim",
        ("one head", (4, 6, 16, 1, 1, 6)),
        ("several heads", (8, 12, 16, 3, 3, 4)),
        ("grouped queries", (8, 16, 24, 4, 2, 4)),
        ("heads wider than the model", (8, 16, 40, 4, 4, 8)),
        ("a short sequence", (128, 4096, 14_336, 32, 8, 128)),
        ("a real model", (8192, 4096, 14_336, 32, 8, 128)),
        ("a million tokens", (1_000_000, 8192, 28_672, 64, 8, 128)),
    ),
}
