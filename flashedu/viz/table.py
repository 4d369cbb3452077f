"""Rows of numbers as a table."""


def table(columns, rows):
    """A Markdown table for a notebook: the first column is aligned left, the others right."""
    from IPython.display import Markdown

    lines = [columns, [":--"] + ["--:"] * (len(columns) - 1), *rows]
    return Markdown("\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines))
