"""The learner's own function, run at every change: is it exact, what does it hold, and what would its tiles move?"""
from dataclasses import replace
from functools import lru_cache

import numpy as np

from flashedu.arguments import short
from flashedu.demos.demo import Demo, slider, switch
from flashedu.grading import isolation
from flashedu.grading.cases.case import Case
from flashedu.grading.exercises import EXERCISES
from flashedu.grading.outcome import examine
from flashedu.grading.time_limit import TimeLimitExceeded
from flashedu.reference import naive_attention, tiled_attention
from flashedu.viz.own_kernel import own_kernel_drawing

LENGTHS, DIMENSIONS, BLOCKS = [64, 128, 256, 300, 384, 512], [16, 32, 64, 80], [32, 48, 64, 128, 256, 512]  # 300, 48: ragged tiles
KNOWN = ("online_attention", "tiled_attention")
SECONDS = 1.5  # for one call
MEASURED = 2**62  # bytes that no call exceeds: a case with a limit has its memory measured
FORM = "The result has the wrong form"
HEADLINES = {"type": FORM, "shape": FORM, "dtype": FORM, "inputs unchanged": "It changed its inputs"}


@lru_cache
def inputs(n, d):
    """q, k, v (N, D) float32, the same at every call; q is larger, so that some keys matter more than others."""
    rng = np.random.default_rng([n, d])
    return tuple((size * rng.normal(size=(n, d))).astype(np.float32) for size in (2, 1, 1))


@lru_cache(maxsize=256)
def _right(name, n, d, *blocks):
    """What is right, with its bounds, as the exercise says it."""
    return EXERCISES[name].expected(*inputs(n, d), *blocks)


@lru_cache
def _naive(n, d, causal):
    """The output of naive attention and its peak memory in bytes."""
    call = isolation.call(naive_attention, (*inputs(n, d), causal), 60, trace_memory=True)
    return call.result, call.peak_bytes


def your_kernel(function=tiled_attention, exercise=None, n=256, d=64, block_q=64, block_k=64, causal=False):
    """A widget that runs `function`, an answer to `exercise` (by default the one that it is named after).

    The exercise is online_attention(q, k, v, block_size) or tiled_attention(q, k, v, block_q, block_k, causal).
    """
    name = getattr(function, "__name__", None) if exercise is None else exercise
    controls = {"block_k": slider("block_k (keys)", BLOCKS, block_k)}
    if name != "online_attention":
        controls.update(block_q=slider("block_q (queries)", BLOCKS, block_q), causal=switch("causal", causal))
    controls.update(n=slider("N (tokens)", LENGTHS, n), d=slider("D (head dimension)", DIMENSIONS, d))

    def draw(n, d, block_k, block_q=None, causal=False):
        """Your function against naive attention: error, memory, bytes"""
        blocks = (block_k,) if block_q is None else (block_q, block_k, causal)
        right = _right(name if name in KNOWN else "tiled_attention", n, d, *blocks)
        o, naive_peak = _naive(n, d, causal)
        found = _examined(function, name, (*inputs(n, d), *blocks), right)
        return own_kernel_drawing(short(name).strip("'"), n, d, block_q, block_k, causal, *found, right[0][1].ratio(o), naive_peak)

    return Demo(draw, controls, moves="block_k")


def _examined(function, name, args, right):
    """(problem, error / bound, peak bytes) of one call: problem is None or (headline, details), the others may be None."""
    if name not in KNOWN or not callable(function):
        what = name if callable(function) else short(function)
        return ("Nothing was run", f"Pass a function called {' or '.join(KNOWN)}, or say which it is with exercise=\"...\"; this is {what}."), None, None
    case = Case("values", lambda: tuple(x.copy() if isinstance(x, np.ndarray) else x for x in args), {}, MEASURED)
    outcome = examine(replace(EXERCISES[name], expected=lambda *_: right), case, function, SECONDS)
    if outcome.call.error is not None:
        return _raised(outcome.call.error), None, None
    if outcome.call.result is None:
        return ("It returned nothing", "Is the body still to be written, or a return missing?"), None, None
    if outcome.problem is None:
        return None, outcome.ratio, outcome.call.peak_bytes
    wrong = "Wrong: NaN or infinity in the result" if outcome.ratio == np.inf else "Wrong: more than rounding can explain"
    if outcome.call.peak_bytes is None and outcome.ratio <= 1:
        wrong = "Its memory is unknown"
    return (HEADLINES.get(outcome.problem[0], wrong), outcome.problem[2]), outcome.ratio or None, outcome.call.peak_bytes


def _raised(error):
    if isinstance(error, NotImplementedError):
        return "Not attempted yet", "Write the body, then run its cell and this one again."
    if isinstance(error, TimeLimitExceeded):
        return f"Stopped after {SECONDS} seconds", "A loop never ends, or it is far too slow for inputs this small."
    frames = [frame for frame in isolation.learner_traceback(error).splitlines() if frame.startswith("line ")]
    where = f"In {frames[-1].split(':  ')[0]}: " if frames else ""
    return f"It raised {type(error).__name__}", where + isolation.summary(error)
