from types import SimpleNamespace

import pytest
from matplotlib.patches import Rectangle

from flashedu.hardware import KIB
from flashedu.viz import kernels


@pytest.fixture
def drawn(monkeypatch):
    """Makes a picture function return (figure, caption, alt) instead of a Picture."""
    monkeypatch.setattr(kernels, "Picture", lambda figure, caption, alt: (figure, caption, alt))


def bars(axes):
    return [patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_height() < 1]


@pytest.mark.parametrize("rows, n, block", [(5, 6, 8), (1, 1, 4), (3, 16, 16)])
def test_memory_strip_draws_every_tile_where_it_lies(drawn, rows, n, block):
    figure, caption, _ = kernels.memory_strip(rows, n, block)
    spans = [(bar.get_x(), bar.get_width(), bar.get_hatch() == "///") for bar in bars(figure.axes[0])]
    expected = [[(row * n, n, False), (row * n + n, block - n, True)] for row in range(rows)]
    assert spans == [span for pair in expected for span in pair]
    assert f"Tiles of {block} elements over rows of {n}" in caption


def kernel(block_q, block_k, shared_bytes, limit):
    constants = {"BLOCK_Q": block_q, "BLOCK_K": block_k}
    fits = shared_bytes <= limit
    return SimpleNamespace(constants=constants, shared_bytes=shared_bytes, shared_limit_bytes=limit, fits=fits)


def test_what_fits_shows_sizes_and_limits_and_marks_what_does_not_fit(drawn):
    small, large = kernel(64, 32, 48 * KIB, 64 * KIB), kernel(128, 64, 96 * KIB, 64 * KIB)
    figure, _, alt = kernels.what_fits([("T4", small), ("T4", large)])
    axes = figure.axes[0]
    assert [(bar.get_width(), bar.get_hatch()) for bar in bars(axes)] == [(48, ""), (96, "///")]
    assert [line.get_xdata()[0] for line in axes.lines] == [64, 64]
    assert [text.get_text() for text in axes.texts] == ["48 of 64", "96 of 64: does not fit"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["T4  64 x 32", "T4  128 x 64"]
    assert "T4 128 x 64: 98,304 of 65,536 bytes" in alt


def test_speeds_draws_what_has_a_time_and_says_it(drawn):
    rows = [
        {"contender": name, "causal": causal, "n": n, "of_matmul": share}
        for name, share in (("matmul", 1.0), ("flashedu", 0.5), ("naive", 0.1))
        for causal in (False, True)
        for n in (4096, 512)
    ]
    rows.append({"contender": "naive", "causal": True, "n": 16384, "out_of_memory": "no"})
    figure, caption, alt = kernels.speeds(rows, "One GPU, forward")
    full, causal = figure.axes
    assert [axes.get_title() for axes in (full, causal)] == ["full", "causal"]
    for axes in (full, causal):
        lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
        assert lines == {"this package": [[512, 0.5], [4096, 0.5]], "naive": [[512, 0.1], [4096, 0.1]]}
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["512", "4k", "16k"]
    assert caption.startswith("One GPU, forward: ") and "naive, causal, 4,096 tokens: 10%" in alt


def test_they_are_pictures():
    some = kernel(64, 32, 48 * KIB, 64 * KIB)
    assert kernels.memory_strip(2, 3, 4).png and kernels.what_fits([("T4", some)]).alt
