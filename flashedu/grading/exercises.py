"""The registry: every exercise with its right answer, and what is compared with what."""
from dataclasses import replace
from functools import partial
from inspect import unwrap

import numpy as np

from flashedu import cost, exactness, reference
from flashedu.gradient_bounds import gradient_bounds
from flashedu.grading import three_versions as six
from flashedu.grading.exercise import Exercise
from flashedu.grading.tensors import right
from flashedu.grading.tensors.calling import CONTRACTS as TENSOR_CONTRACTS
from flashedu.grading.tensors.calling import on_tensors
from flashedu.machine import Machine

FLOAT_CONTRACTS = ("type", "shape", "dtype", "inputs unchanged")


def _exactly(**values):
    """Expected outputs that are whole numbers."""
    return [(name, exactness.Bound(np.array(value), np.array(0))) for name, value in values.items()]


def _number(formula, *numbers):
    """Expected output that is one number, which a few dozen roundings may have carried away from the formula's."""
    exact = np.array(formula(*numbers))
    return [("result", exactness.Bound(exact, 32 * exactness.unit_roundoff("float64") * exact))]


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


def _split(q, k, v, splits):
    return _tiled(q, k, v, len(q), -(-len(k) // splits))


def _backward(q, k, v, do, causal=False):
    return list(zip(("dq", "dk", "dv"), gradient_bounds(q, k, v, do, causal)))


def _tiled_backward(q, k, v, o, lse, do, block_q, block_k, causal=False):
    return list(zip(("dq", "dk", "dv"), gradient_bounds(q, k, v, do, causal, block_q=block_q, block_k=block_k)))


def _on_machine(machine, block_q, block_k, causal=False):
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


def _in_triton(name, chapter, reference, expected, call):
    special = {"GPU: bfloat16": (partial(expected, dtype="bfloat16"), None)}
    return Exercise(name, chapter, reference, TENSOR_CONTRACTS, expected, special=special, call=call, patience=3)


def on_gpu(exercise):
    """The same exercise with the cases that only a GPU can show; kernels are compiled there, which takes its time."""
    return replace(exercise, on_gpu=True, patience=12)


EXERCISES = {
    exercise.name: exercise
    for exercise in (
        Exercise(
            "stable_softmax", 1, reference.stable_softmax, FLOAT_CONTRACTS,
            lambda x: [("result", exactness.softmax_bound(x))],
        ),
        Exercise(
            "naive_attention", 1, reference.naive_attention, FLOAT_CONTRACTS,
            _attention,
            peer=_naive_peer,
        ),
        Exercise(
            "naive_traffic", 1, cost.naive_traffic, ("type",),
            lambda *numbers: _exactly(**dict(zip(("io_bytes", "intermediate_bytes"), cost.naive_traffic(*numbers)))),
        ),
        Exercise(
            "update_normalizer", 2, reference.update_normalizer, FLOAT_CONTRACTS,
            _normalizer,
        ),
        Exercise(
            "merge_states", 2, reference.merge_states, FLOAT_CONTRACTS,
            _merged,
        ),
        Exercise(
            "online_attention", 2, reference.online_attention, FLOAT_CONTRACTS,
            _online,
            peer=_naive_peer,
        ),
        Exercise(
            "tiled_attention", 3, reference.tiled_attention, FLOAT_CONTRACTS,
            _tiled,
            peer=_naive_peer,
        ),
        Exercise(
            "block_sizes", 3, cost.block_sizes, ("type",),
            lambda *numbers: _exactly(**dict(zip(("block_q", "block_k"), cost.block_sizes(*numbers)))),
        ),
        Exercise(
            "tiled_on_machine", 3, reference.tiled_on_machine, ("inputs unchanged",),
            _on_machine,
            outputs=_machine_outputs,
            special={
                "SRAM use": (_machine_peak, _machine_least_peak),
                "bytes": (_machine_bytes, _machine_traffic),
                "bytes, causal": (_machine_bytes, _machine_traffic),
            },
        ),
        _in_triton("triton_softmax", 4, right.triton_softmax, right.softmax_expected, on_tensors("x", "result")),
        _in_triton("flash_forward", 4, right.flash_forward, right.forward_expected, on_tensors("q k v causal", "o lse")),
        Exercise(
            "attention_backward", 5, reference.attention_backward, FLOAT_CONTRACTS,
            _backward,
        ),
        Exercise(
            "tiled_backward", 5, reference.tiled_backward, FLOAT_CONTRACTS,
            _tiled_backward,
        ),
        _in_triton("flash_backward", 5, right.flash_backward, right.backward_expected, on_tensors("q k v o lse do causal", "dq dk dv")),
        Exercise(
            "fa1_on_machine", 6, reference.fa1_on_machine, ("inputs unchanged",),
            _on_machine,
            outputs=_machine_outputs,
            special={"SRAM use": (six.fa1_peak, six.peak), "bytes": (six.fa1_bytes, _machine_traffic)},
            numbers=six.FA1_NUMBERS,
        ),
        Exercise(
            "lazy_attention", 6, reference.lazy_attention, FLOAT_CONTRACTS,
            six.lazy,
            outputs=six.pair,
            peer=_naive_peer,
        ),
        Exercise(
            "rotate", 6, reference.rotate, FLOAT_CONTRACTS,
            six.kept,
            outputs=six.kept_outputs,
            special={
                "outliers are spread": (six.spread, six.spread_outputs),
                "equal elements are spread": (partial(six.spread, share=0.75), six.spread_outputs),
                "as evenly as can be": (six.even, six.even_outputs),
                "the same seed again": (six.same_again, six.same_outputs),
                "another seed": (six.other_signs, six.other_outputs),
            },
            asked={"the same seed again": six.with_seeds(0), "another seed": six.with_seeds(1)},
            returned=("q'", "k'"),
        ),
        Exercise(
            "attention_intensity", 7, cost.attention_intensity, ("type",),
            partial(_number, cost.attention_intensity),
        ),
        Exercise(
            "kv_cache_bytes", 7, cost.kv_cache_bytes, ("type",),
            lambda *numbers: _exactly(bytes=cost.kv_cache_bytes(*numbers)),
        ),
        Exercise(
            "attention_flop_share", 7, cost.attention_flop_share, ("type",),
            partial(_number, cost.attention_flop_share),
        ),
        Exercise(
            "split_kv_attention", 8, reference.split_kv_attention, FLOAT_CONTRACTS,
            _split,
            peer=_naive_peer,
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
