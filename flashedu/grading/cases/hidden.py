"""The cases that an instructor grades on: those of `check` with other random numbers and other sizes, drawn from a seed."""
import functools
import hashlib
from dataclasses import replace
from inspect import unwrap

import numpy as np

from flashedu.grading.cases import CASES, GPU_CASES
from flashedu.grading.inputs import numbers_case, rotation_case
from flashedu.reference import lazy_attention

FURTHER = 2  # cases of other sizes for each of the largest
LARGEST = {"triton_softmax": "wide rows"}  # the check that they belong to; elsewhere it is "larger"


@functools.cache
def hidden_cases(name, seed, on_gpu=False):
    """The cases of the exercise `name` that follow from a seed, a text: always the same with one version of NumPy. Their checks are the public ones."""
    public = (GPU_CASES if on_gpu else CASES)[name]
    rng = np.random.default_rng(list(hashlib.sha256(f"{name} {seed}".encode()).digest()))
    larger = [case for case in public if case.check == LARGEST.get(name, "larger")]
    return tuple([_anew(case, rng) for case in public] + [_anew(_resized(case, rng), rng) for case in larger for _ in range(FURTHER)])


def _anew(case, rng):
    """The same case with other random numbers, or, where its arguments are numbers, with others like them."""
    if case.make is numbers_case and " KB" in case.check:  # a real GPU: what it has stays
        return replace(case, params={**case.params, "head_dim": case.params["head_dim"] * 2})
    while case.make is numbers_case:
        other = replace(case, params=_numbers(case.params, rng))
        if other != case:
            return other
    while True:
        drawn = {"seed": int(rng.integers(10_000, 2**31))}  # public ones are below
        if "signs" in case.params:
            drawn["signs"] = int(rng.integers(10_000, 2**31))
        other = replace(case, params={**case.params, **drawn})
        if _settled(other):
            return other


def _settled(case):
    """Whether rounding cannot decide how often lazy_attention rescales: no rise is within 1e-3 of the threshold, but on purpose."""
    if "threshold" not in case.params or case.params["kind"] in ("steps", "uniform"):
        return True
    *args, threshold = case.make(**{**case.params, "dtype": "float64"})
    counts = {unwrap(lazy_attention)(*args, at)[1] for at in (threshold - 1e-3, threshold, threshold + 1e-3)}
    return len(counts) == 1


def _resized(case, rng):
    """The same case with other sizes, each between 3/4 of what it was and that, so that what was longer stays longer."""
    sizes = {name: int(rng.integers(-(-3 * n // 4), n + 1)) for name, n in case.params.items() if type(n) is int and name not in ("seed", "signs")}
    if case.make is rotation_case:
        sizes["d"] = 2 ** int(rng.integers(4, 8))
    return replace(case, params={**case.params, **sizes})


def _numbers(numbers, rng):
    """Numbers from once to twice those given; ones stay ones, and what is equal, a multiple, or just fits stays so."""

    def more(n):
        return int(rng.integers(n, 2 * n)) if n > 1 else n

    drawn = {name: more(n) for name, n in numbers.items()}
    if "heads" in numbers:
        drawn["heads"] = drawn["kv_heads"] * more(numbers["heads"] // numbers["kv_heads"])
    if "n_q" in numbers and numbers["n_q"] == numbers["n_k"]:
        drawn["n_k"] = drawn["n_q"]
    if "hidden" in numbers and numbers["hidden"] == numbers["heads"] * numbers["head_dim"]:
        drawn["hidden"] = drawn["heads"] * drawn["head_dim"]
    if "sram_bytes" in numbers:  # M = 4 D k + rest elements, and some bytes that make no element
        elements, odd = divmod(numbers["sram_bytes"], numbers["itemsize"])
        k, rest = divmod(elements, 4 * numbers["head_dim"])
        width = 4 * drawn["head_dim"]
        drawn["sram_bytes"] = (width * more(k) + (rest and int(rng.integers(1, width)))) * drawn["itemsize"] + odd
    return drawn
