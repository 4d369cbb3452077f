"""The cases of every exercise, smallest first: what a learner's function is called with, and which check each call belongs to."""
from collections.abc import Callable
from dataclasses import dataclass

from flashedu.grading import inputs


@dataclass(frozen=True)
class Case:
    """One call of the learner's function: make(**params) gives its arguments, always the same ones.

    check: the name of the check that it belongs to. memory_limit_bytes: the most that the call may hold at once, or None.
    """

    check: str
    make: Callable
    params: dict
    memory_limit_bytes: int = None


def _cases(make, *rows):
    """Cases from rows (check, params); a row's seed is its number, far from the small seeds that notebooks use."""
    return tuple(Case(check, make, {**params, "seed": 7001 + number}) for number, (check, params) in enumerate(rows))


def _numbers(names, *rows):
    """Cases whose arguments are whole numbers, from rows (check, numbers)."""
    return tuple(Case(check, inputs.numbers_case, dict(zip(names.split(), numbers))) for check, numbers in rows)


def _size(n_q, n_k, d, **more):
    return {"n_q": n_q, "n_k": n_k, "d": d, **more}


MEMORY = {"kind": "random", "n_q": 256, "n_k": 4096, "d": 1, "seed": 7100}
MEMORY_LIMIT_BYTES = 256 * 4096 // 2  # half a byte for each score: even a mask of bools is too much
CASES = {
    "stable_softmax": _cases(
        inputs.rows_case,
        ("one element", {"kind": "random", "rows": 1, "n": 1}),
        ("rows", {"kind": "random", "rows": 2, "n": 3}),
        ("square", {"kind": "random", "rows": 3, "n": 3}),
        ("large logits", {"kind": "overflow", "rows": 2, "n": 3}),
        ("very low logits", {"kind": "low", "rows": 2, "n": 3}),
        ("rows far apart", {"kind": "magnitudes", "rows": 4, "n": 3}),
        ("wide rows", {"kind": "rising", "rows": 2, "n": 5}),
        ("wide rows", {"kind": "falling", "rows": 2, "n": 5}),
        ("small probabilities", {"kind": "spread", "rows": 2, "n": 6}),
        ("masked entries", {"kind": "masked", "rows": 2, "n": 5}),
        ("a row of -inf", {"kind": "empty", "rows": 3, "n": 4}),
        ("equal entries", {"kind": "uniform", "rows": 2, "n": 8}),
        ("three axes", {"kind": "random", "rows": 2, "n": 4, "lead": (3,)}),
        ("larger", {"kind": "random", "rows": 5, "n": 70, "lead": (2, 3), "strided": True}),
        ("float64", {"kind": "random", "rows": 3, "n": 6, "dtype": "float64"}),
    ),
    "naive_attention": _cases(
        inputs.attention_case,
        ("one key", _size(1, 1, 1, kind="random", causal=False)),
        ("random", _size(2, 3, 4, kind="random")),
        ("random", _size(5, 5, 3, kind="random", causal=False, strided=True)),
        ("overflow", _size(2, 4, 3, kind="overflow", causal=False)),
        ("small weights", _size(2, 5, 3, kind="near", causal=False)),
        ("rows far apart", _size(4, 3, 2, kind="magnitudes", causal=False)),
        ("whole numbers", _size(2, 4, 3, kind="uniform", causal=False)),
        ("Dv differs from D", _size(3, 4, 2, kind="random", d_v=5, causal=False)),
        ("causal", _size(4, 4, 3, kind="random", causal=True)),
        ("causal, rising", _size(4, 4, 3, kind="rising", causal=True)),
        ("very low logits", _size(4, 4, 3, kind="low", causal=True)),
        ("causal, more keys", _size(2, 5, 3, kind="random", causal=True)),
        ("rows that see no key", _size(5, 2, 3, kind="random", causal=True)),
        ("values with an offset", _size(3, 6, 4, kind="offset", causal=False)),
        ("float64", _size(3, 5, 4, kind="random", causal=True, dtype="float64")),
        ("float64", _size(4, 3, 5, kind="random", causal=False, dtype="float64")),
        ("larger", _size(37, 53, 20, kind="random", d_v=12, causal=True, strided=True)),
    ),
    "naive_traffic": _numbers(
        "n head_dim heads kv_heads itemsize",
        ("one head", (4, 2, 1, 1, 1)),
        ("several heads", (8, 4, 3, 3, 1)),
        ("bytes, not elements", (4, 2, 1, 1, 3)),
        ("grouped queries", (16, 8, 4, 2, 2)),
        ("a real layer", (2048, 80, 24, 6, 4)),
        ("a million tokens", (1_000_000, 128, 64, 8, 2)),
    ),
    "update_normalizer": _cases(
        inputs.normalizer_case,
        ("first block", {"kind": "first", "rows": 1, "block": 2}),
        ("one row", {"kind": "random", "rows": 1, "block": 2}),
        ("several rows", {"kind": "random", "rows": 3, "block": 4}),
        ("square", {"kind": "random", "rows": 3, "block": 3}),
        ("rising maxima", {"kind": "rising", "rows": 2, "block": 3}),
        ("rising maxima", {"kind": "near", "rows": 2, "block": 3}),
        ("falling maxima", {"kind": "falling", "rows": 2, "block": 3}),
        ("block of one", {"kind": "random", "rows": 3, "block": 1}),
        ("overflow", {"kind": "overflow", "rows": 2, "block": 3}),
        ("very low logits", {"kind": "low", "rows": 2, "block": 3}),
        ("rows far apart", {"kind": "magnitudes", "rows": 4, "block": 3}),
        ("masked entries", {"kind": "masked", "rows": 2, "block": 5}),
        ("a masked block", {"kind": "blank", "rows": 2, "block": 3}),
        ("nothing seen yet", {"kind": "nothing", "rows": 2, "block": 3}),
        ("rows of all kinds", {"kind": "mixed", "rows": 4, "block": 3}),
        ("float64", {"kind": "random", "rows": 3, "block": 5, "dtype": "float64"}),
        ("larger", {"kind": "random", "rows": 37, "block": 20, "strided": True}),
    ),
    "merge_states": _cases(
        inputs.states_case,
        ("one row", {"kind": "random", "rows": 1, "d_v": 1}),
        ("several rows", {"kind": "random", "rows": 3, "d_v": 4}),
        ("square", {"kind": "random", "rows": 3, "d_v": 3}),
        ("b is larger", {"kind": "rising", "rows": 2, "d_v": 2}),
        ("b is larger", {"kind": "near", "rows": 2, "d_v": 2}),
        ("a is larger", {"kind": "falling", "rows": 2, "d_v": 2}),
        ("200 apart", {"kind": "huge", "rows": 2, "d_v": 2}),
        ("overflow", {"kind": "overflow", "rows": 2, "d_v": 2}),
        ("very low logits", {"kind": "low", "rows": 2, "d_v": 2}),
        ("a is empty", {"kind": "empty a", "rows": 2, "d_v": 3}),
        ("b is empty", {"kind": "empty b", "rows": 2, "d_v": 3}),
        ("both are empty", {"kind": "nothing", "rows": 2, "d_v": 3}),
        ("some rows empty", {"kind": "rows", "rows": 4, "d_v": 3}),
        ("float64", {"kind": "random", "rows": 3, "d_v": 5, "dtype": "float64"}),
        ("larger", {"kind": "random", "rows": 37, "d_v": 20, "strided": True}),
    ),
    "online_attention": (
        *_cases(
            inputs.attention_case,
            ("one key", _size(1, 1, 1, kind="random", block_size=1)),
            ("one block", _size(2, 4, 3, kind="random", block_size=4)),
            ("several blocks", _size(3, 6, 4, kind="random", block_size=2)),
            ("several blocks", _size(5, 12, 8, kind="random", block_size=4, strided=True)),
            ("rising maxima", _size(3, 8, 2, kind="rising", block_size=2)),
            ("falling maxima", _size(3, 8, 2, kind="falling", block_size=2)),
            ("one huge logit", _size(2, 9, 4, kind="huge", block_size=3)),
            ("small weights", _size(2, 9, 4, kind="near", block_size=3)),
            ("overflow", _size(2, 6, 2, kind="overflow", block_size=2)),
            ("very low logits", _size(2, 6, 2, kind="low", block_size=2)),
            ("rows far apart", _size(4, 6, 2, kind="magnitudes", block_size=2)),
            ("whole numbers", _size(2, 8, 4, kind="uniform", block_size=2)),
            ("ragged last block", _size(3, 7, 4, kind="random", block_size=3)),
            ("block longer than N", _size(2, 3, 4, kind="random", block_size=8)),
            ("blocks of one key", _size(3, 5, 4, kind="random", block_size=1)),
            ("values with an offset", _size(3, 10, 4, kind="offset", block_size=4)),
            ("Dv differs from D", _size(3, 6, 4, kind="random", d_v=7, block_size=2)),
            ("float64", _size(3, 9, 5, kind="random", block_size=4, dtype="float64")),
            ("more queries than keys", _size(6, 3, 4, kind="random", block_size=2)),
            ("larger", _size(37, 53, 20, kind="random", d_v=12, block_size=16, strided=True)),
        ),
        Case("memory", inputs.attention_case, {**MEMORY, "block_size": 16}, MEMORY_LIMIT_BYTES),
    ),
    "tiled_attention": (
        *_cases(
            inputs.attention_case,
            ("one tile", _size(1, 1, 1, kind="random", block_q=1, block_k=1, causal=False)),
            ("one tile", _size(2, 3, 2, kind="random", block_q=2, block_k=3, causal=False)),
            ("several tiles", _size(4, 6, 3, kind="random", block_q=2, block_k=2)),
            ("several tiles", _size(6, 8, 4, kind="random", block_q=3, block_k=4, causal=False, strided=True)),
            ("rising maxima", _size(4, 8, 2, kind="rising", block_q=2, block_k=2, causal=False)),
            ("falling maxima", _size(4, 8, 2, kind="falling", block_q=2, block_k=2, causal=False)),
            ("one huge logit", _size(3, 9, 4, kind="huge", block_q=2, block_k=3, causal=False)),
            ("small weights", _size(3, 9, 4, kind="near", block_q=2, block_k=3, causal=False)),
            ("overflow", _size(4, 6, 2, kind="overflow", block_q=2, block_k=2, causal=False)),
            ("rows far apart", _size(4, 6, 2, kind="magnitudes", block_q=2, block_k=2, causal=False)),
            ("whole numbers", _size(4, 8, 4, kind="uniform", block_q=2, block_k=2, causal=False)),
            ("ragged tiles", _size(5, 7, 4, kind="random", block_q=2, block_k=3, causal=False)),
            ("tiles larger than N", _size(3, 2, 4, kind="random", block_q=8, block_k=16, causal=False)),
            ("tiles of one", _size(3, 4, 4, kind="random", block_q=1, block_k=1, causal=False)),
            ("causal", _size(6, 6, 4, kind="random", block_q=2, block_k=2, causal=True)),
            ("causal, unequal tiles", _size(8, 8, 4, kind="random", block_q=4, block_k=2, causal=True)),
            ("causal, unequal tiles", _size(9, 9, 4, kind="random", block_q=2, block_k=4, causal=True)),
            ("causal, rising", _size(6, 6, 4, kind="rising", block_q=2, block_k=3, causal=True)),
            ("very low logits", _size(4, 6, 2, kind="low", block_q=2, block_k=2, causal=True)),
            ("causal, more keys", _size(3, 8, 4, kind="random", block_q=2, block_k=3, causal=True)),
            ("causal, more keys", _size(8, 13, 4, kind="random", block_q=2, block_k=3, causal=True)),
            ("causal, more keys", _size(5, 11, 4, kind="random", block_q=3, block_k=2, causal=True)),
            ("causal, more keys", _size(3, 5, 4, kind="random", block_q=8, block_k=16, causal=True)),
            ("causal, more keys", _size(4, 6, 4, kind="random", block_q=1, block_k=1, causal=True)),
            ("rows that see no key", _size(7, 3, 4, kind="random", block_q=2, block_k=2, causal=True)),
            ("rows that see no key", _size(5, 3, 4, kind="random", block_q=4, block_k=2, causal=True)),
            ("rows that see no key", _size(9, 4, 4, kind="random", block_q=2, block_k=3, causal=True)),
            ("values with an offset", _size(4, 10, 4, kind="offset", block_q=2, block_k=4, causal=False)),
            ("Dv differs from D", _size(4, 6, 4, kind="random", d_v=7, block_q=2, block_k=2, causal=False)),
            ("float64", _size(5, 9, 5, kind="random", block_q=2, block_k=4, causal=True, dtype="float64")),
            ("float64", _size(4, 6, 5, kind="random", block_q=2, block_k=4, causal=False, dtype="float64")),
            ("larger", _size(53, 37, 20, kind="random", d_v=12, block_q=16, block_k=8, causal=False, strided=True)),
            ("larger", _size(37, 53, 20, kind="random", d_v=12, block_q=8, block_k=16, causal=True, strided=True)),
        ),
        Case("memory", inputs.attention_case, {**MEMORY, "block_q": 64, "block_k": 64, "causal": False}, MEMORY_LIMIT_BYTES),
        Case("memory", inputs.attention_case, {**MEMORY, "block_q": 64, "block_k": 64, "causal": True}, MEMORY_LIMIT_BYTES),
    ),
    "block_sizes": _numbers(
        "sram_bytes head_dim itemsize",
        ("bytes are elements", (1024, 8, 1)),
        ("two bytes an element", (1024, 16, 2)),
        ("half an element left over", (129, 16, 2)),
        ("rounding up", (1000, 24, 1)),
        ("small head dimension", (65536, 8, 2)),
        ("large head dimension", (65536, 256, 2)),
        ("A100, 192 KB, float16", (192 * 1024, 64, 2)),
        ("H100, 227 KB, float32", (227 * 1024, 128, 4)),
        ("tiny SRAM", (7, 64, 2)),
    ),
    "tiled_on_machine": _cases(
        inputs.machine_case,
        ("one tile", _size(2, 3, 2, kind="random", block_q=2, block_k=3)),
        ("several tiles", _size(4, 6, 3, kind="random", block_q=2, block_k=2)),
        ("rising maxima", _size(4, 8, 2, kind="rising", block_q=2, block_k=2)),
        ("falling maxima", _size(4, 8, 2, kind="falling", block_q=2, block_k=2)),
        ("ragged tiles", _size(5, 7, 4, kind="random", block_q=2, block_k=3)),
        ("tiles larger than N", _size(3, 2, 4, kind="random", block_q=8, block_k=16)),
        ("Dv differs from D", _size(4, 6, 4, d_v=7, kind="random", block_q=2, block_k=2)),
        ("causal", _size(6, 6, 4, kind="random", block_q=2, block_k=2, causal=True)),
        ("causal, more keys", _size(3, 8, 4, kind="random", block_q=2, block_k=3, causal=True)),
        ("causal, more keys", _size(8, 13, 4, kind="random", block_q=2, block_k=3, causal=True)),
        ("rows that see no key", _size(7, 3, 4, kind="random", block_q=2, block_k=2, causal=True)),
        ("rows that see no key", _size(5, 3, 4, kind="random", block_q=4, block_k=2, causal=True)),
        ("causal, rising", _size(6, 6, 4, kind="rising", block_q=2, block_k=3, causal=True)),
        ("very low logits", _size(4, 6, 2, kind="low", block_q=2, block_k=2, causal=True)),
        ("float64", _size(5, 9, 5, kind="random", block_q=2, block_k=4, causal=True, dtype="float64")),
        ("larger", _size(37, 53, 20, kind="random", d_v=12, block_q=8, block_k=16, causal=True, strided=True)),
        ("capacity", _size(128, 24, 8, kind="random", block_q=8, block_k=8, spare=1)),
        ("bytes", _size(2, 4, 2, kind="random", block_q=2, block_k=2)),
        ("bytes", _size(9, 10, 4, kind="random", block_q=4, block_k=3)),
        ("bytes, causal", _size(8, 8, 2, kind="random", block_q=2, block_k=2, causal=True)),
        ("bytes, causal", _size(7, 12, 2, kind="random", block_q=3, block_k=2, causal=True)),
        ("bytes, causal", _size(7, 3, 2, kind="random", block_q=2, block_k=2, causal=True)),
        ("SRAM use", _size(32, 64, 2, kind="random", block_q=16, block_k=16)),
    ),
}
