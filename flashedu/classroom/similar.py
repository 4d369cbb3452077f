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
follow the same hints, or the course's own solution, are alike. So beside each group stands how close its answers are to the course's solution; a group of
answers that are close to each other and far from it is the one to look at. Pairs of which both are that close to it are left out, and functions of
fewer than {FEWEST_TOKENS} tokens."""


def report(options, found, handed_out):
    """Write the pairs that are alike to GRADES.similar.csv; returns lines that say which groups they form, the most alike first."""
    rows = [row for handed in handed_out for name in handed.exercises for row in _pairs(name, handed, options, found)]
    rows.sort(key=lambda row: -row["likeness"])
    path = options.csv.with_suffix(".similar.csv")
    sheets.write_table(path, [{name: f"{value:.2f}" if isinstance(value, float) else sheets.cell(value) for name, value in row.items()} for row in rows], COLUMNS)
    groups = ([row for row in rows if (row["exercise"], row["student a"]) in members] for members in _groups(rows))
    groups = sorted(groups, key=lambda own: (-own[0]["likeness"], -len(own)))
    return ["", NOTE, f"Pairs: {len(rows)}, all of them in {path}. Groups that they join, the most alike first ({min(SHOWN, len(groups))} of {len(groups)}):", "", *map(_said, groups[:SHOWN])]


def _groups(rows):
    """The connected components of the pairs, as sets of (exercise, student)."""
    groups = []
    for row in rows:
        pair = {(row["exercise"], row["student a"]), (row["exercise"], row["student b"])}
        groups = [*(one for one in groups if not one & pair), pair.union(*(one for one in groups if one & pair))]
    return groups


def _said(rows):
    students = sorted({row[name] for row in rows for name in ("student a", "student b")})
    solution = [row[name] for row in rows for name in ("a to the solution", "b to the solution")]
    return f"{rows[0]['exercise']}: {', '.join(students)} ({len(students)} students, {_span([row['likeness'] for row in rows])}; to the solution {_span(solution)})"


def _span(values):
    return " to ".join(dict.fromkeys(f"{value:.2f}" for value in (min(values), max(values))))


def _pairs(name, handed, options, found):
    given = runs_of(handed.cells, name)
    solution = runs_of(_cells(options.handed_out.parent / "solutions" / f"{handed.name}.ipynb"), name) - given
    answers = [(one, runs_of(_cells(options.folder / one.file), name) - given) for one in found if one.handed is handed]
    answers = [(one, runs, likeness(runs, solution)) for one, runs in answers if len(runs) > FEWEST_TOKENS - RUN]
    for (one, runs, a), (other, others, b) in combinations(answers, 2):
        if one.student != other.student and min(a, b) < ALIKE <= (alike := likeness(runs, others)):
            yield dict(zip(COLUMNS, (alike, name, one.student, other.student, a, b, one.file, other.file)))


def _cells(path):
    with contextlib.suppress(Unreadable):
        return code_cells(path)
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
