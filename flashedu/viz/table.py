"""Rows of numbers as a table."""


def table(columns, rows):
    """A Markdown table for a notebook: the first column to the left, the others to the right; `rows` hold strings or numbers."""
    from IPython.display import Markdown

    lines = [columns, [":--"] + ["--:"] * (len(columns) - 1), *rows]
    return Markdown("\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines))
