"""The zoo: wrong answers to every exercise, each an edit of the right one, so that a row shows exactly what went wrong."""
import inspect
from dataclasses import dataclass
from functools import cached_property

from flashedu import cost, reference
from flashedu.grading.mistakes import (
    chapter_1,
    chapter_2,
    chapter_3,
    chapter_4,
    chapter_5,
    chapter_5_triton,
    chapter_6,
    chapter_7,
    chapter_8,
)
from flashedu.grading.mistakes.edits import edited_function, edited_kernels


@dataclass(frozen=True)
class Mistake:
    """slug: its name. caught_by: the check that must reject it. sentence: what a learner is told. edits: (right, wrong) texts.

    The texts are replaced in the source of the right answer, where each must stand exactly once.
    """

    exercise: str
    slug: str
    caught_by: str
    sentence: str
    edits: tuple

    @cached_property
    def function(self):
        """The wrong answer, compiled from the edited source of the right one."""
        name = f"{self.exercise}/{self.slug}"
        if self.exercise in KERNELS:
            return edited_kernels(KERNELS[self.exercise], self.exercise, self.edits, name)
        return edited_function(inspect.unwrap(getattr(reference, self.exercise, None) or getattr(cost, self.exercise)), self.edits, name)

    def with_tile(self, tile):
        """The wrong answer with tiles of (block_q, block_k), where the right one has a table of them; None leaves them."""
        names = getattr(self.function, "__globals__", {})
        if tile and "pick" in names:
            names["pick"] = lambda table, x: names["Tile"](*tile, num_warps=4, num_stages=1)
        return self.function


def _zoo(*tables):
    return {
        exercise: tuple(Mistake(exercise, slug, caught_by, sentence, tuple(edits)) for slug, caught_by, sentence, *edits in rows)
        for table in tables
        for exercise, rows in table.items()
    }


KERNELS = {"triton_softmax": ("softmax",), "flash_forward": ("memory", "forward"), "flash_backward": ("memory", "backward_dq", "backward_dkdv", "backward")}  # their modules
CHAPTERS = (chapter_1, chapter_2, chapter_3, chapter_4, chapter_5, chapter_5_triton, chapter_6, chapter_7, chapter_8)
MISTAKES = _zoo(*(chapter.ROWS for chapter in CHAPTERS))
GPU_MISTAKES = _zoo(chapter_4.GPU_ROWS, chapter_5_triton.GPU_ROWS)  # those that the interpreter cannot show
