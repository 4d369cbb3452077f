"""Tables are Markdown."""

import pytest


def test_rows_and_alignment():
    pytest.importorskip("IPython")
    from flashedu.viz.table import table

    assert (
        table(["a", "b"], [("x", 1), ("y", 2.5)]).data == "| a | b |\n| :-- | --: |\n| x | 1 |\n| y | 2.5 |"
    )
