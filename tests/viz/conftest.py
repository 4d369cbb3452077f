"""Every figure that a test of this folder draws is looked at afterwards: no words lie on others or leave the figure."""
import pytest
from readable import words_in_the_way


@pytest.fixture(autouse=True)
def words_are_apart(monkeypatch):
    from matplotlib.figure import Figure

    figures, make = [], Figure.__init__

    def remember(self, *given, **options):
        make(self, *given, **options)
        figures.append(self)

    monkeypatch.setattr(Figure, "__init__", remember)
    yield
    assert [found for figure in figures if (found := words_in_the_way(figure))] == []
