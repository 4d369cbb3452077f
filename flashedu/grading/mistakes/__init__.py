"""The zoo: wrong answers to every exercise, each an edit of the right one, so that a row shows exactly what went wrong."""
import inspect
from dataclasses import dataclass
from functools import cached_property

from flashedu import cost, reference
from flashedu.grading.mistakes import chapter_1, chapter_2, chapter_3


@dataclass(frozen=True)
class Mistake:
    """slug: its name. caught_by: the check that must reject it. sentence: what a learner is told. edits: (right, wrong) texts.

    The texts are replaced in the source of the reference function, where each must stand exactly once.
    """

    exercise: str
    slug: str
    caught_by: str
    sentence: str
    edits: tuple

    @cached_property
    def function(self):
        """The wrong answer, compiled from the edited source of the right one."""
        right = inspect.unwrap(getattr(reference, self.exercise, None) or getattr(cost, self.exercise))
        source = inspect.getsource(right)
        source = source[source.index("def ") :]  # without decorators
        for old, new in self.edits:
            if source.count(old) != 1:
                raise ValueError(f"The edit of {self.exercise}/{self.slug} must find {old!r} once, but it stands {source.count(old)} times.")
            source = source.replace(old, new)
        names = {name: inspect.unwrap(value) if callable(value) else value for name, value in vars(inspect.getmodule(right)).items()}
        exec(compile(source, f"<{self.slug}>", "exec"), names)
        return names[self.exercise]


MISTAKES = {
    exercise: tuple(Mistake(exercise, slug, caught_by, sentence, tuple(edits)) for slug, caught_by, sentence, *edits in rows)
    for chapter in (chapter_1, chapter_2, chapter_3)
    for exercise, rows in chapter.ROWS.items()
}
