"""Which answers of different students are nearly the same code, whatever they call their variables.

An answer is its function and what it calls of the same notebook. Its syntax tree is written as a row of tokens: the kinds of its
nodes, operators, attributes, built-in names and numbers; all other names are one token. Likeness is the share of the runs of RUN tokens that
two rows have in common (Jaccard's index; a run that occurs twice counts twice). A copy with other names, comments and line breaks has likeness 1,
and a line that was added to it, changed or moved costs only the runs around it. Runs that stand in what was handed out do not count.
"""
import ast
import builtins
import contextlib
import re
from collections import Counter
from itertools import combinations

from flashedu.classroom import sheets
from flashedu.classroom.handed_out import Unreadable, code_cells

RUN = 6
FEWEST_TOKENS = 40  # a shorter function can hardly be written in two ways
ALIKE = 0.7
SHOWN = 20
COLUMNS = ("likeness", "exercise", "student a", "student b", "a to the solution", "b to the solution", "file a", "file b")
NOTE = f"""\
Answers of different students that have at least {ALIKE:.0%} of their runs of {RUN} tokens in common, names and layout aside. This proves nothing: answers that
follow the same hints, or the course's own solution, are alike. So beside each pair stands how close each is to the course's solution; a pair that is
close to each other and far from it is the one to look at. Pairs of which both are that close to it are left out, and functions of
fewer than {FEWEST_TOKENS} tokens."""


def report(options, found, handed_out):
    """Print the pairs that are most alike, and write all that are alike to GRADES.similar.csv."""
    rows = [row for handed in handed_out for name in handed.exercises for row in _pairs(name, handed, options, found)]
    rows.sort(key=lambda row: -row["likeness"])
    path = options.csv.with_suffix(".similar.csv")
    sheets.write_table(path, [{name: f"{value:.2f}" if isinstance(value, float) else sheets.cell(value) for name, value in row.items()} for row in rows], COLUMNS)
    print(f"\n{NOTE}\nPairs: {len(rows)}, all of them in {path}.\n\n{'likeness':>8}  {'to the solution':>15}  {'exercise':<20}  students")
    for row in rows[:SHOWN]:
        to = f"{row['a to the solution']:.2f} {row['b to the solution']:.2f}"
        print(f"{row['likeness']:>8.2f}  {to:>15}  {row['exercise']:<20}  {row['student a']}, {row['student b']}")


def _pairs(name, handed, options, found):
    given = runs_of(handed.cells, name)
    solution = runs_of(_cells(options.handed_out.parent / "solutions" / f"{handed.name}.ipynb"), name) - given
    answers = [(one, runs_of(_cells(options.folder / one.file), name) - given) for one in found if one.handed is handed]
    answers = [(one, runs, likeness(runs, solution)) for one, runs in answers if len(runs) > FEWEST_TOKENS - RUN]
    for (one, runs, a), (other, others, b) in combinations(answers, 2):
        if one.student != other.student and min(a, b) < ALIKE <= (alike := likeness(runs, others)):
            yield dict(zip(COLUMNS, (alike, name, one.student, other.student, a, b, one.file, other.file)))


def _cells(path):
    try:
        return code_cells(path)
    except Unreadable:
        return ()


def likeness(runs, others):
    """The share of what two sets of runs have in common."""
    common = len(runs & others)
    return common / max(1, len(runs) + len(others) - common)


def runs_of(cells, name):
    """The runs of tokens of the answer `name` in a notebook's cells, as a set of hashes; empty where there is none."""
    defined = {}
    for cell in cells:
        python = re.sub(r"^(\s*)[%!].*$", r"\1pass", cell, flags=re.MULTILINE)  # without magics
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            defined.update((node.name, node) for node in ast.parse(python).body if isinstance(node, ast.FunctionDef))
    tokens, todo, done = [], [name], set()
    while todo:
        function = todo.pop(0)
        if function in defined and function not in done:
            done.add(function)
            with contextlib.suppress(RecursionError):
                tokens += _tokens(defined[function])
            todo += [node.id for node in ast.walk(defined[function]) if isinstance(node, ast.Name) and node.id in defined]
    count = Counter(tuple(tokens[i : i + RUN]) for i in range(len(tokens) - RUN + 1))
    return {hash((run, number)) for run, times in count.items() for number in range(times)}


def _tokens(function):
    """The tokens of a function's body, without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return [token for node in body for token in _flat(node)]


def _flat(node):
    yield type(node).__name__
    if isinstance(node, ast.Name) and hasattr(builtins, node.id):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.Constant):
        yield repr(float(node.value)) if type(node.value) is int and abs(node.value) < 2**53 else repr(node.value)
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr_context):
            yield from _flat(child)
