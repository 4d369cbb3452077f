import pytest

from flashedu.viz import gradients


@pytest.fixture
def drawn(monkeypatch):
    """Makes a picture function return (figure, caption, alt) instead of a Picture."""
    monkeypatch.setattr(gradients, "Picture", lambda figure, caption, alt: (figure, caption, alt))


def values(axes):
    return [list(line.get_ydata()) for line in axes.lines]


def test_against_differences_draws_every_curve_and_says_where_it_is_lowest(drawn):
    errors = {"dq": [1e-2, 1e-9, 1e-6], "without delta": [0.3, 0.2, 0.4]}
    figure, _, alt = gradients.against_differences([0.1, 1e-5, 1e-9], errors)
    (axes,) = figure.axes
    assert values(axes) == list(errors.values())
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.lines[0].get_linestyle() != axes.lines[1].get_linestyle()  # not by colour alone
    assert "dq: 1e-09 at h = 1e-05" in alt and "without delta: 0.2 at h = 1e-05" in alt


def test_owners_marks_a_column_with_two_sums_and_a_row_with_one(drawn):
    figure, _, _ = gradients.owners(tiles=4)
    marked = []
    for axes in figure.axes:
        squares = [square for square in axes.patches if hasattr(square, "get_xy") and square.get_width() == 1]
        colours = [square.get_facecolor() for square in squares]
        mine = max(set(colours[:16]), key=lambda colour: colour[0] - colour[2])  # gold, not grey
        marked.append({square.get_xy() for square, colour in zip(squares[:16], colours, strict=False) if colour == mine})
    assert marked == [{(1, row) for row in range(4)}, {(column, 1) for column in range(4)}]
    names = [{text.get_text() for text in axes.texts} & {"dQ", "dK", "dV"} for axes in figure.axes]
    assert names == [{"dK", "dV"}, {"dQ"}]


def test_training_draws_losses_and_their_differences_in_millionths(drawn):
    figure, _, alt = gradients.training({"naive": [4.0, 3.0], "flash": [4.0, 3.5]}, {"flash - naive": [0.0, 0.5]})
    left, right = figure.axes
    assert values(left) == [[4.0, 3.0], [4.0, 3.5]]
    assert values(right) == [[0.0, 500_000.0]]
    assert "from 4.00 to 3.00" in alt and "flash - naive: at most 5.0e-01" in alt


def test_kept_draws_megabytes(drawn):
    figure, _, alt = gradients.kept([128, 256], {"naive": [1e6, 4e6], "flash": [5e5, 1e6]})
    (axes,) = figure.axes
    assert values(axes) == [[1, 4], [0.5, 1]]
    assert "naive: 1 to 4 MB; flash: 0.5 to 1 MB" in alt
