"""What an exercise is: its right answer, and what is compared with what."""
from collections.abc import Callable
from dataclasses import dataclass, field

from flashedu.grading.cases import CASES, GPU_CASES
from flashedu.grading.cases.hidden import hidden_cases


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    name: that of the function. reference: the right answer. contracts: what every result must keep, checked before its
    values. expected(*args): a list of (name, Bound). outputs(args, result): what is compared with it (by default the
    result). special: {check: (expected, outputs)} where a check compares something else. asked: {check: what fn is wrapped
    in}, where a check calls it more than once. returned: what it returns, in words, if that is not what is compared. numbers:
    {output: (what too much of it means, what too little)}. peer(*args): naive attention on the same arguments, for a verdict
    to compare errors with, or None. call(fn, args, seconds, case): how an answer in Triton is called (None: plainly).
    patience: how much longer than usual its cases may take. on_gpu: whether its cases are those for a GPU. seed: what its cases
    are drawn from, a text, or None: the public ones.
    """

    name: str
    chapter: int
    reference: Callable
    contracts: tuple
    expected: Callable
    outputs: Callable = None
    special: dict = field(default_factory=dict)
    asked: dict = field(default_factory=dict)
    returned: tuple = ()
    numbers: dict = field(default_factory=dict)
    peer: Callable = None
    call: Callable = None
    patience: int = 1
    on_gpu: bool = False
    seed: str = None

    @property
    def cases(self):
        if self.seed is not None:
            return hidden_cases(self.name, self.seed, self.on_gpu)
        return (GPU_CASES if self.on_gpu else CASES)[self.name]

    @property
    def checks(self):
        """The names of all checks, in the order in which they are reported."""
        return tuple(dict.fromkeys((*self.contracts, "time limit", *(case.check for case in self.cases))))

    def compared(self, check):
        """(expected, outputs) for the cases of a check."""
        return self.special.get(check, (self.expected, self.outputs))
