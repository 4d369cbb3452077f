"""The cases of every exercise, smallest first: what a learner's function is called with, and which check each call belongs to."""
from flashedu.grading.cases import (
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
from flashedu.grading.cases.case import Case

__all__ = ["CASES", "GPU_CASES", "Case"]

CHAPTERS = (chapter_1, chapter_2, chapter_3, chapter_4, chapter_5, chapter_5_triton, chapter_6, chapter_7, chapter_8)
CASES = {name: cases for chapter in CHAPTERS for name, cases in chapter.CASES.items()}
GPU_CASES = {**chapter_4.GPU_CASES, **chapter_5_triton.GPU_CASES}  # beside those above, where there is a GPU
