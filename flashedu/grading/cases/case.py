"""What a case is, and short ways to write down many."""
from collections.abc import Callable
from dataclasses import dataclass

from flashedu.grading import inputs


@dataclass(frozen=True)
class Case:
    """One call of the learner's function: make(**params) gives its arguments, always the same ones.

    check: the name of the check that it belongs to. memory_limit_bytes: the most that the call may hold at once, or None.
    again: whether an answer on tensors is run several times and must give the same bits, and once more with kernels that do
    nothing, where it must not.
    """

    check: str
    make: Callable
    params: dict
    memory_limit_bytes: int = None
    again: bool = False


def cases(make, *rows):
    """Cases from rows (check, params); a row's seed is its number, far from the small seeds that notebooks use."""
    return tuple(Case(check, make, {**params, "seed": 7001 + number}) for number, (check, params) in enumerate(rows))


def number_cases(names, *rows):
    """Cases whose arguments are whole numbers, from rows (check, numbers)."""
    return tuple(Case(check, inputs.numbers_case, dict(zip(names.split(), numbers))) for check, numbers in rows)


def size(n_q, n_k, d, **more):
    return {"n_q": n_q, "n_k": n_k, "d": d, **more}


MEMORY = {"kind": "random", "n_q": 256, "n_k": 4096, "d": 1, "seed": 7100}
MEMORY_LIMIT_BYTES = 256 * 4096 // 2  # half a byte for each score: even a mask of bools is too much
