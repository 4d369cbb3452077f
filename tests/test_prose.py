"""A number in the text of a chapter is computed by a cell beside it, cited, or in the list below with its source."""
import re

import nbformat
import pytest
from build import ROOT

CHAPTERS = sorted((ROOT / "chapters").glob("0*.ipynb"))
NUMBER = r"\d[\d,]*(?:\.\d+)?"
TYPED = re.compile(rf"(?<![\w.^_{{\\-]){NUMBER}(?![\w]|\.\d)")  # not part of a name, an index or a version such as 3.7.1
APART = re.compile(r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$|\]\([^)]*\)", re.S)  # code, formulas and links
CITED = re.compile(r"\b(19|20)\d\d\b|arXiv|\bsections?\b|\bfigures?\b|\btable \d|\btheorem|\balgorithm \d|\bappendix|\bGuide\b|data sheet|\bPTX\b|\bIEEE\b", re.I)
FROM_ELSEWHERE = {  # what no cell computes and no sentence cites
    "00": {"30": "minutes for a chapter, an estimate", "0.01": "the usual tolerance of other courses' tests"},
    "04": {"23": "the format of float32", "7.5": "the T4's compute capability, as in flashedu/hardware.py", **dict.fromkeys(("3.3", "3.6", "3.9"), "a version of Triton")},
    "06": {
        "40.3": "Dao et al. 2022, figure 2, cited in the sentence before", "35": "Shah et al. 2024, cited behind the abbreviation's dot", "3.6": "a version of Triton",
        "1.7": "a paper's figure, in the row of a table that cites it above",
        **dict.fromkeys(("1,171", "1,008", "1,005", "613", "1,099"), "version 3's repository, cited in the sentence before"),
    },
    "07": dict.fromkeys(("2,560", "6,144", "1,152"), "the models' configuration files"),
}


def numbers(text):
    return {float(found.replace(",", "")) for found in re.findall(NUMBER, text)}


def known(notebook):
    """Every number in a code cell or in what it put out."""
    found = set()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            texts = [cell.source, *(output.get("text", "") for output in cell.outputs)]
            texts += [text for output in cell.outputs for kind, text in output.get("data", {}).items() if kind.startswith("text/")]
            found |= numbers(re.sub(r'base64,[^"]*', "", "\n".join(texts)))
    return found


def typed(notebook):
    """(number, sentence) of each number above 10, or with a fraction, that stands in prose and nowhere else."""
    there = known(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for sentence in re.split(r"(?<=[.?!:])\s+|\n\n|\n\|", APART.sub("", cell.source)):
                if not CITED.search(sentence):
                    for found in TYPED.finditer(re.sub(r"\b[Cc]hapters? \d", "", sentence)):
                        value = float(found[0].replace(",", ""))
                        if (value > 10 or value % 1) and not {value, value / 100} & there:  # "5 %" is 0.05 in a cell
                            yield found[0].rstrip(","), " ".join(sentence.split())


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_no_number_is_typed(path):
    listed = FROM_ELSEWHERE.get(path.stem[:2], {})
    found = list(typed(nbformat.read(path, 4)))
    assert [(number, sentence) for number, sentence in found if number not in listed] == []
    assert set(listed) <= {number for number, _ in found}, "a number of the list that the chapter no longer types"


def test_a_typed_number_is_found():
    cell, text = nbformat.v4.new_code_cell("n = 4096\nprint(0.17)"), "Of {} tokens {} % are read, in 3 of 8 tiles."
    both = [nbformat.v4.new_notebook(cells=[cell, nbformat.v4.new_markdown_cell(text.format(*numbers))]) for numbers in (("4,096", 17), ("4,097", 18.5))]
    assert [[number for number, _ in typed(notebook)] for notebook in both] == [[], ["4,097", "18.5"]]
