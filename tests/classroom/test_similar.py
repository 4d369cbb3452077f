"""Copies are found whatever their names and layout; answers that were written independently are not."""
import ast
import csv
import inspect
import re
import textwrap
from itertools import combinations

import pytest
import right_answers_chapter_5  # noqa: F401, adds to RIGHT
import right_answers_chapter_6  # noqa: F401
import right_answers_chapters_7_and_8  # noqa: F401
from right_answers import RIGHT
from submissions import cell_of, handed_out, right, source, stub, with_answer, write

from flashedu.__main__ import main
from flashedu.classroom.handed_out import code_cells
from flashedu.classroom.similar import ALIKE, FEWEST_TOKENS, _groups, likeness, runs_of
from flashedu.grading import EXERCISES


def solution(exercise):
    return source(cell_of(right(EXERCISES[exercise].chapter), exercise))


class Renamed(ast.NodeTransformer):
    def visit_Name(self, node):
        node.id = node.id if node.id in ("range", "len", "min", "max", "bool") else f"my_{node.id}"
        return node

    def visit_arg(self, node):
        node.arg = f"my_{node.arg}"
        return node


@pytest.mark.parametrize("exercise", ["stable_softmax", "online_attention", "tiled_attention", "tiled_on_machine"])
def test_a_copy_with_other_names_and_layout_is_a_copy(exercise):
    text = solution(exercise)
    tree = Renamed().visit(ast.parse(text))
    tree.body[-1].body[0] = ast.parse("'''My own words.'''").body[0]
    copy = re.sub(r"^( *)(\w)", r"\1# a comment\n\n\1\2", ast.unparse(tree), flags=re.MULTILINE)
    assert copy != text and likeness(runs_of((text,), exercise), runs_of(("import numpy", "x = (", copy), exercise)) == 1.0


@pytest.mark.parametrize("exercise", ["online_attention", "tiled_attention", "tiled_on_machine", "lazy_attention"])
def test_a_copy_with_a_line_more_stays_alike(exercise):
    text = solution(exercise)
    lines = text.splitlines()
    end = next(number for number, line in enumerate(lines) if line.strip().startswith("for "))
    indent = " " * (len(lines[end]) - len(lines[end].lstrip()))
    more = "\n".join([*lines[:end], f"{indent}unused = len('mine')", *lines[end:]])
    assert ALIKE < likeness(runs_of((text,), exercise), runs_of((more,), exercise)) < 1


def independent(exercise):
    """The runs of right answers that were written independently and are long enough to tell."""
    for answer in RIGHT.get(exercise, {}).values():
        text = textwrap.dedent(inspect.getsource(inspect.unwrap(answer)))
        if "def " in text and "\n@" not in text:
            text = text[text.index("def ") :]
            runs = runs_of((text,), re.match(r"def (\w+)", text)[1])
            if len(runs) > FEWEST_TOKENS:
                yield runs


@pytest.mark.parametrize("exercise", ["stable_softmax", "naive_attention", "update_normalizer", "merge_states", "online_attention", "tiled_attention",
                                      "attention_backward", "lazy_attention", "rotate", "split_kv_attention"])
def test_independent_answers_are_far_from_the_threshold(exercise):
    answers = [*independent(exercise), runs_of((solution(exercise),), exercise)]
    assert len(answers) >= 3
    assert max(likeness(a, b) for a, b in combinations(answers, 2)) < ALIKE - 0.2


def test_what_a_function_calls_belongs_to_it_and_what_was_handed_out_does_not():
    helper = "def helper(x):\n    return [x + k for k in range(10)]"
    answer = "%%time\ndef answer(x):\n    return helper(x) + 1"
    alone, whole = runs_of((answer,), "answer"), runs_of((answer, helper), "answer")
    assert len(whole) > len(alone) > 0
    assert not runs_of(("x = 1",), "answer")
    assert not runs_of((f"def answer():\n    return {'-' * 5000}1",), "answer")
    assert len(runs_of(code_cells(stub(2)), "merge_states")) < 5


def test_the_report_names_the_pair_and_leaves_out_who_did_not_answer(tmp_path, capsys):
    mine = inspect.getsource(RIGHT["merge_states"][next(iter(RIGHT["merge_states"]))])
    mine = f"def merge_states{mine[mine.index('(', mine.index('def ')):]}"
    theirs = solution("merge_states")
    for student, text in (("ada", mine), ("bob", mine.replace("m_a", "first").replace("np.", "np  .")), ("cyd", theirs), ("dan", theirs), ("eve", None)):
        write(with_answer(stub(2), "merge_states", text) if text else stub(2), tmp_path / "in" / student / handed_out(2).name)
    assert main(["grade", str(tmp_path / "in"), "--csv", str(tmp_path / "out.csv"), "--similar"]) == 0
    with open(tmp_path / "out.similar.csv", encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)  # cyd and dan have the course's solution
    assert (row["exercise"], row["student a"], row["student b"], row["likeness"]) == ("merge_states", "ada", "bob", "1.00")
    assert float(row["a to the solution"]) == float(row["b to the solution"]) < 0.5
    out = capsys.readouterr().out
    assert "Pairs: 1," in out and f"\nmerge_states: ada, bob (2 students, 1.00; to the solution {row['a to the solution']})\n" in out


def test_who_copied_from_one_another_stands_in_one_line(tmp_path, capsys):
    mine = inspect.getsource(RIGHT["merge_states"][next(iter(RIGHT["merge_states"]))])
    mine = f"def merge_states{mine[mine.index('(', mine.index('def ')):]}"
    more = mine.replace(":\n", ":\n    unused = len('mine')\n", 1)
    for student, text in (("ada", mine), ("bob", mine), ("cyd", more), ("dan", mine), ("eve", solution("merge_states"))):
        write(with_answer(stub(2), "merge_states", text), tmp_path / "in" / student / handed_out(2).name)
    assert main(["grade", str(tmp_path / "in"), "--csv", str(tmp_path / "out.csv"), "--similar"]) == 0
    with open(tmp_path / "out.similar.csv", encoding="utf-8", newline="") as file:
        likeness = [float(row["likeness"]) for row in csv.DictReader(file)]
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("merge_states:")]
    assert len(likeness) == 6 and min(likeness) < 1 and line.startswith(f"merge_states: ada, bob, cyd, dan (4 students, {min(likeness):.2f} to 1.00; ")


def test_groups_are_joined_by_the_pairs_of_one_exercise():
    pairs = [("rotate", "a", "b"), ("rotate", "c", "d"), ("merge_states", "e", "a"), ("rotate", "d", "b"), ("rotate", "x", "y")]
    groups = _groups([dict(zip(("exercise", "student a", "student b"), pair)) for pair in pairs])
    assert sorted(sorted(student for _, student in group) for group in groups) == [["a", "b", "c", "d"], ["a", "e"], ["x", "y"]]
