import pytest

from flashedu.bench import contenders
from flashedu.viz import ladder

RATES = {"matmul": 700e12, "naive": 100e12, "version1": 20e12, "version2": 400e12, "version3": 600e12, "fa2": 300e12}


@pytest.fixture
def measured():
    rows = [
        {"contender": name, "head_dim": head_dim, "causal": causal, "n": n, "time_ms": 2.5, "flops_per_s": rate / (2 if n == 512 else 1), "of_matmul": rate / 700e12}
        for n in (4096, 512) for head_dim in (64, 128) for causal in (False, True) for name, rate in RATES.items()
    ]
    why = {"head_dim": 128, "causal": True, "refused": "no engine"}
    rows += [{"contender": "cudnn", "n": n, **why} for n in (4096, 512)]
    rows = [row for row in rows if not (row["contender"] == "naive" and row["n"] == 4096 and row["causal"])]  # as if out of memory
    return {"environment": {"device": "NVIDIA H200"}, "rows": rows}


@pytest.fixture
def drawn(monkeypatch):
    """Makes a picture function return (figure, caption, alt) instead of a Picture."""
    monkeypatch.setattr(ladder, "Picture", lambda figure, caption, alt: (figure, caption, alt))


def test_the_rungs_are_those_that_are_measured():
    assert list(ladder.RUNGS) == list(contenders.RUNGS)


def test_no_two_rungs_look_the_same():
    assert len({rung[1:] for rung in ladder.RUNGS.values()}) == len({rung[2] for rung in ladder.RUNGS.values()}) == len(ladder.RUNGS)


def test_rates_draws_a_line_for_every_rung_that_has_times(measured, drawn):
    figure, caption, alt = ladder.rates(measured, 128, causal=True)
    (axes,) = figure.axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert lines == {
        "matrix product": [[512, 350], [4096, 700]], "naive": [[512, 50]], "version 1, Triton": [[512, 10], [4096, 20]],
        "version 2, Triton": [[512, 200], [4096, 400]], "version 3, Gluon": [[512, 300], [4096, 600]], "torch, FlashAttention-2": [[512, 150], [4096, 300]],
    }
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["512", "4k"]
    assert caption.startswith("Forward attention on one NVIDIA H200, D = 128, causal, bfloat16: ")
    assert "version 3, Gluon: 300 at N = 512, 600 at 4,096" in alt and "cuDNN" not in alt


def test_steps_draws_a_bar_for_every_rung_at_the_greatest_length(measured, drawn):
    figure, caption, alt = ladder.steps(measured, 64)
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == [100, 20, 400, 600, 300]
    assert [bar.get_hatch() for bar in axes.patches] == ["//", "", "", "", "//"]
    assert [label.get_text() for label in axes.get_yticklabels()][3] == "version 3, Gluon"
    assert axes.texts[3].get_text() == "600 TFLOP/s, 2.50 ms" and axes.lines[0].get_xdata()[0] == 700
    assert "D = 64, no mask, bfloat16, N = 4,096" in caption and "version 3, Gluon: 600 TFLOP/s, 2.50 ms, 86% of the matrix product" in alt
    figure, _, alt = ladder.steps(measured, 128, causal=True)
    assert len(figure.axes[0].patches) == 4 and "naive" not in alt


def test_they_are_pictures(measured):
    assert ladder.rates(measured).png and ladder.steps(measured).png
