"""The registry: for each exercise what it is given, what the right answer is, and the checks, smallest case first."""
from collections.abc import Callable
from dataclasses import dataclass
from inspect import unwrap

import numpy as np

from flashedu import cost, exactness, reference
from flashedu.grading import inputs
from flashedu.machine import Machine

FLOAT_CONTRACTS = ("type", "shape", "dtype", "inputs unchanged")


@dataclass(frozen=True)
class Case:
    """One call of the learner's function: make(**params) gives its arguments, always the same ones.

    check: the name of the check that it belongs to. memory_limit_bytes: the most that the call may hold at once, or None.
    expected, outputs: override the exercise's own for this case.
    """

    check: str
    make: Callable
    params: dict
    memory_limit_bytes: int = None
    expected: Callable = None
    outputs: Callable = None


@dataclass(frozen=True)
class Exercise:
    """name: that of the function. expected(*args): a list of (name, Bound). outputs(args, result): what is compared with it.

    peer(*args): naive attention's output on the same arguments, for a verdict to compare errors with, or None.
    """

    name: str
    chapter: int
    reference: Callable
    contracts: tuple
    cases: tuple
    expected: Callable
    outputs: Callable = None
    peer: Callable = None

    @property
    def checks(self):
        """The names of all checks, in the order in which they are reported."""
        return tuple(dict.fromkeys((*self.contracts, "time limit", *(case.check for case in self.cases))))


def _cases(make, *rows):
    """Cases from rows (check, params); a row's seed is its number, far from the small seeds that notebooks use."""
    return tuple(Case(check, make, {**params, "seed": 7001 + number}) for number, (check, params) in enumerate(rows))


def _size(n_q, n_k, d, **more):
    return {"n_q": n_q, "n_k": n_k, "d": d, **more}


def _exactly(**values):
    """Expected outputs that are whole numbers."""
    return [(name, exactness.Bound(np.array(value), np.array(0))) for name, value in values.items()]


def _normalizer(m, l, scores):
    nothing = np.zeros((len(m), 1), m.dtype)
    parts = [(m, l, nothing), *((scores[:, j], np.ones_like(l), nothing) for j in range(scores.shape[1]))]
    m_exact, l_bound, _ = exactness.state_bounds(parts, exactness.unit_roundoff(m.dtype))
    return [("m", exactness.Bound(m_exact, np.zeros(len(m)))), ("l", l_bound)]


def _merged(a, b):
    m_exact, l_bound, o_bound = exactness.state_bounds([a, b], exactness.unit_roundoff(a[0].dtype))
    return [("m", exactness.Bound(m_exact, np.zeros(len(m_exact)))), ("l", l_bound), ("o", o_bound)]


def _attention(q, k, v, causal=False):
    return [("o", exactness.attention_bounds(q, k, v, causal)[0])]


def _online(q, k, v, block_size):
    return [("o", exactness.attention_bounds(q, k, v, block_k=block_size)[0])]


def _tiled(q, k, v, block_q, block_k, causal=False):
    o, lse = exactness.attention_bounds(q, k, v, causal, block_k=block_k)
    return [("o", o), ("lse", lse)]


def _on_machine(machine, block_q, block_k, causal):
    return _tiled(machine.hbm["q"], machine.hbm["k"], machine.hbm["v"], block_q, block_k, causal)


def _machine_bytes(machine, block_q, block_k, causal):
    (n_q, d), n_k = machine.shape("q"), len(machine.hbm["k"])
    read, written = cost.tiled_traffic(n_q, n_k, d, block_q, block_k, machine.itemsize, causal)
    return _exactly(read_bytes=read, written_bytes=written, hbm_looks=0)


def _machine_peak(machine, block_q, block_k, causal):
    """The least that q, k, s, o and one row statistic need while a tile of keys is at work."""
    rows, keys, d = min(block_q, machine.shape("q")[0]), min(block_k, machine.shape("k")[0]), machine.shape("q")[1]
    return _exactly(sram_peak=(2 * rows * d + keys * d + rows * keys + rows) * machine.itemsize)


def _machine_outputs(args, result):
    return args[0].hbm["o"], args[0].hbm["lse"]


def _machine_traffic(args, result):
    return args[0].read_bytes, args[0].written_bytes, args[0].looks


def _machine_least_peak(args, result):
    return (min(args[0].sram_peak, int(_machine_peak(*args)[0][1].exact)),)


def _naive_peer(q, k, v, *rest):
    return unwrap(reference.naive_attention)(q, k, v, bool(rest) and rest[-1] is True)


ONLINE = _cases(
    inputs.attention_case,
    ("one key", _size(1, 1, 1, kind="random", block_size=1)),
    ("one block", _size(2, 4, 3, kind="random", block_size=4)),
    ("several blocks", _size(3, 6, 4, kind="random", block_size=2)),
    ("several blocks", _size(5, 12, 8, kind="random", block_size=4, strided=True)),
    ("rising maxima", _size(3, 8, 2, kind="rising", block_size=2)),
    ("falling maxima", _size(3, 8, 2, kind="falling", block_size=2)),
    ("one huge logit", _size(2, 9, 4, kind="huge", block_size=3)),
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
    ("larger", _size(37, 53, 20, kind="random", d_v=12, block_size=16, strided=True)),
)
TILED = _cases(
    inputs.attention_case,
    ("one tile", _size(1, 1, 1, kind="random", block_q=1, block_k=1, causal=False)),
    ("one tile", _size(2, 3, 2, kind="random", block_q=2, block_k=3, causal=False)),
    ("several tiles", _size(4, 6, 3, kind="random", block_q=2, block_k=2)),
    ("several tiles", _size(6, 8, 4, kind="random", block_q=3, block_k=4, causal=False, strided=True)),
    ("rising maxima", _size(4, 8, 2, kind="rising", block_q=2, block_k=2, causal=False)),
    ("falling maxima", _size(4, 8, 2, kind="falling", block_q=2, block_k=2, causal=False)),
    ("one huge logit", _size(3, 9, 4, kind="huge", block_q=2, block_k=3, causal=False)),
    ("overflow", _size(4, 6, 2, kind="overflow", block_q=2, block_k=2, causal=False)),
    ("very low logits", _size(4, 6, 2, kind="low", block_q=2, block_k=2, causal=True)),
    ("rows far apart", _size(4, 6, 2, kind="magnitudes", block_q=2, block_k=2, causal=False)),
    ("whole numbers", _size(4, 8, 4, kind="uniform", block_q=2, block_k=2, causal=False)),
    ("ragged tiles", _size(5, 7, 4, kind="random", block_q=2, block_k=3, causal=False)),
    ("tiles larger than N", _size(3, 2, 4, kind="random", block_q=8, block_k=16, causal=False)),
    ("tiles of one", _size(3, 4, 4, kind="random", block_q=1, block_k=1, causal=False)),
    ("causal", _size(6, 6, 4, kind="random", block_q=2, block_k=2, causal=True)),
    ("causal, unequal tiles", _size(8, 8, 4, kind="random", block_q=4, block_k=2, causal=True)),
    ("causal, unequal tiles", _size(9, 9, 4, kind="random", block_q=2, block_k=4, causal=True)),
    ("causal, rising", _size(6, 6, 4, kind="rising", block_q=2, block_k=3, causal=True)),
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
    ("larger", _size(53, 37, 20, kind="random", d_v=12, block_q=16, block_k=8, causal=False, strided=True)),
    ("larger", _size(37, 53, 20, kind="random", d_v=12, block_q=8, block_k=16, causal=True, strided=True)),
)
MEMORY = {"kind": "random", "n_q": 512, "n_k": 4096, "d": 8, "seed": 7100}
MEMORY_LIMIT_BYTES = 512 * 4096 // 2  # half a byte for each score: even a mask of bools is too much

EXERCISES = {
    exercise.name: exercise
    for exercise in (
        Exercise(
            "stable_softmax", 1, reference.stable_softmax, FLOAT_CONTRACTS,
            _cases(
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
            lambda x: [("result", exactness.softmax_bound(x))],
        ),
        Exercise(
            "naive_attention", 1, reference.naive_attention, FLOAT_CONTRACTS,
            _cases(
                inputs.attention_case,
                ("one key", _size(1, 1, 1, kind="random", causal=False)),
                ("random", _size(2, 3, 4, kind="random")),
                ("random", _size(5, 5, 3, kind="random", causal=False, strided=True)),
                ("overflow", _size(2, 4, 3, kind="overflow", causal=False)),
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
                ("larger", _size(37, 53, 20, kind="random", d_v=12, causal=True, strided=True)),
            ),
            _attention,
            peer=_naive_peer,
        ),
        Exercise(
            "naive_traffic", 1, cost.naive_traffic, ("type",),
            tuple(
                Case(check, inputs.numbers_case, dict(zip(("n", "head_dim", "heads", "kv_heads", "itemsize"), numbers)))
                for check, numbers in (
                    ("one head", (4, 2, 1, 1, 1)),
                    ("several heads", (8, 4, 3, 3, 1)),
                    ("bytes, not elements", (4, 2, 1, 1, 2)),
                    ("grouped queries", (16, 8, 4, 2, 2)),
                    ("a real layer", (2048, 80, 24, 6, 4)),
                    ("a million tokens", (1_000_000, 128, 64, 8, 2)),
                )
            ),
            lambda *numbers: _exactly(**dict(zip(("io_bytes", "intermediate_bytes"), cost.naive_traffic(*numbers)))),
        ),
        Exercise(
            "update_normalizer", 2, reference.update_normalizer, FLOAT_CONTRACTS,
            _cases(
                inputs.normalizer_case,
                ("first block", {"kind": "first", "rows": 1, "block": 2}),
                ("one row", {"kind": "random", "rows": 1, "block": 2}),
                ("several rows", {"kind": "random", "rows": 3, "block": 4}),
                ("square", {"kind": "random", "rows": 3, "block": 3}),
                ("rising maxima", {"kind": "rising", "rows": 2, "block": 3}),
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
            _normalizer,
        ),
        Exercise(
            "merge_states", 2, reference.merge_states, FLOAT_CONTRACTS,
            _cases(
                inputs.states_case,
                ("one row", {"kind": "random", "rows": 1, "d_v": 1}),
                ("several rows", {"kind": "random", "rows": 3, "d_v": 4}),
                ("square", {"kind": "random", "rows": 3, "d_v": 3}),
                ("b is larger", {"kind": "rising", "rows": 2, "d_v": 2}),
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
            _merged,
        ),
        Exercise(
            "online_attention", 2, reference.online_attention, FLOAT_CONTRACTS,
            (*ONLINE, Case("memory", inputs.attention_case, {**MEMORY, "block_size": 16}, MEMORY_LIMIT_BYTES)),
            _online,
            peer=_naive_peer,
        ),
        Exercise(
            "tiled_attention", 3, reference.tiled_attention, FLOAT_CONTRACTS,
            (*TILED, Case("memory", inputs.attention_case, {**MEMORY, "block_q": 64, "block_k": 64, "causal": True}, MEMORY_LIMIT_BYTES)),
            _tiled,
            peer=_naive_peer,
        ),
        Exercise(
            "block_sizes", 3, cost.block_sizes, ("type",),
            tuple(
                Case(check, inputs.numbers_case, dict(zip(("sram_bytes", "head_dim", "itemsize"), numbers)))
                for check, numbers in (
                    ("bytes are elements", (1024, 8, 1)),
                    ("two bytes an element", (1024, 16, 2)),
                    ("half an element left over", (129, 16, 2)),
                    ("rounding up", (1000, 24, 1)),
                    ("small head dimension", (65536, 8, 2)),
                    ("large head dimension", (65536, 256, 2)),
                    ("A100, 192 KB, float16", (192 * 1024, 64, 2)),
                    ("H100, 227 KB, float32", (227 * 1024, 128, 4)),
                    ("tiny SRAM", (7, 64, 2)),
                )
            ),
            lambda *numbers: _exactly(**dict(zip(("block_q", "block_k"), cost.block_sizes(*numbers)))),
        ),
        Exercise(
            "tiled_on_machine", 3, reference.tiled_on_machine, ("inputs unchanged",),
            (
                *_cases(
                    inputs.machine_case,
                    ("one tile", _size(2, 3, 2, kind="random", block_q=2, block_k=3, spare=100)),
                    ("several tiles", _size(4, 6, 3, kind="random", block_q=2, block_k=2, spare=100)),
                    ("rising maxima", _size(4, 8, 2, kind="rising", block_q=2, block_k=2, spare=100)),
                    ("falling maxima", _size(4, 8, 2, kind="falling", block_q=2, block_k=2, spare=100)),
                    ("ragged tiles", _size(5, 7, 4, kind="random", block_q=2, block_k=3, spare=100)),
                    ("tiles larger than N", _size(3, 2, 4, kind="random", block_q=8, block_k=16, spare=100)),
                    ("Dv differs from D", _size(4, 6, 4, d_v=7, kind="random", block_q=2, block_k=2, spare=100)),
                    ("causal", _size(6, 6, 4, kind="random", block_q=2, block_k=2, causal=True, spare=100)),
                    ("causal, more keys", _size(3, 8, 4, kind="random", block_q=2, block_k=3, causal=True, spare=100)),
                    ("causal, more keys", _size(8, 13, 4, kind="random", block_q=2, block_k=3, causal=True, spare=100)),
                    ("rows that see no key", _size(7, 3, 4, kind="random", block_q=2, block_k=2, causal=True, spare=100)),
                    ("rows that see no key", _size(5, 3, 4, kind="random", block_q=4, block_k=2, causal=True, spare=100)),
                    ("causal, rising", _size(6, 6, 4, kind="rising", block_q=2, block_k=3, causal=True, spare=100)),
                    ("very low logits", _size(4, 6, 2, kind="low", block_q=2, block_k=2, causal=True, spare=100)),
                    ("float64", _size(5, 9, 5, kind="random", block_q=2, block_k=4, causal=True, dtype="float64", spare=100)),
                    ("larger", _size(37, 53, 20, kind="random", d_v=12, block_q=8, block_k=16, causal=True, strided=True, spare=100)),
                    ("capacity", _size(32, 64, 8, kind="random", block_q=8, block_k=8)),
                ),
                Case(
                    "SRAM use", inputs.machine_case, _size(32, 64, 2, kind="random", block_q=16, block_k=16, spare=100, seed=7060),
                    expected=_machine_peak, outputs=_machine_least_peak,
                ),
                *(
                    Case(check, inputs.machine_case, {**params, "kind": "random", "spare": 100, "seed": 7050}, expected=_machine_bytes, outputs=_machine_traffic)
                    for check, params in (
                        ("bytes", _size(2, 4, 2, block_q=2, block_k=2)),
                        ("bytes", _size(9, 10, 4, block_q=4, block_k=3)),
                        ("bytes, causal", _size(8, 8, 2, block_q=2, block_k=2, causal=True)),
                        ("bytes, causal", _size(7, 12, 2, block_q=3, block_k=2, causal=True)),
                        ("bytes, causal", _size(7, 3, 2, block_q=2, block_k=2, causal=True)),
                    )
                ),
            ),
            _on_machine,
            outputs=_machine_outputs,
        ),
    )
}


def arrays_in(value):
    """All NumPy arrays among (nested) arguments; of a machine, those that a learner may only read."""
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, Machine):
        return [value._hbm[name] for name in ("q", "k", "v")]  # not a look
    if isinstance(value, tuple):
        return [array for item in value for array in arrays_in(item)]
    return []
