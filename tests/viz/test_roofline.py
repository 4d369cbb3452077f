"""The roofline's roofs are the hardware's numbers, and its points sit where they were measured."""

import pytest

from flashedu.cost import naive_intensity
from flashedu.hardware import GPUS, gpu
from flashedu.viz import roofline as module
from flashedu.viz.roofline import attainable_flops, roofline


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were handed to Picture."""
    figures = []
    real = module.Picture
    monkeypatch.setattr(
        module, "Picture", lambda figure, *text: (figures.append(figure), real(figure, *text))[1]
    )
    return figures


@pytest.mark.parametrize("name", GPUS)
def test_the_roof_has_its_corner_at_the_ridge(name):
    g = gpu(name)
    assert attainable_flops(g, g.ridge) == pytest.approx(g.matmul_flops)
    assert attainable_flops(g, 2 * g.ridge) == g.matmul_flops
    assert attainable_flops(g, g.ridge / 2) == pytest.approx(g.matmul_flops / 2)


def test_the_ridges_that_the_text_quotes():
    assert (round(gpu("H100 SXM").ridge), round(gpu("H200").ridge)) == (295, 206)


def test_naive_attention_is_memory_bound_on_every_gpu():
    for head_dim in (64, 128):
        intensity = naive_intensity(8192, head_dim, 32, 8, 2)
        assert intensity == pytest.approx(head_dim / 2, rel=0.05)
        for g in GPUS.values():
            assert attainable_flops(g, intensity) < g.matmul_flops


def test_lines_points_and_words(drawn):
    picture = roofline([gpu("H200"), gpu("H100 SXM")], {"naive": (64, 94e12), "fused": (6554, 358e12)})
    lines = drawn[0].axes[0].lines
    assert list(lines[0].get_xdata()) == [1, gpu("H200").ridge, 20_000]
    assert lines[0].get_ydata() == pytest.approx([4.8, 989, 989])
    marked = [
        (line.get_xdata()[0], line.get_ydata()[0]) for line in lines if line.get_marker() in module.MARKS
    ]
    assert marked == [(64, pytest.approx(94)), (6554, pytest.approx(358))]
    legend = [text.get_text() for text in drawn[0].axes[0].get_legend().get_texts()]
    assert legend == ["H200: ridge at 206 FLOP/byte", "H100 SXM: ridge at 295 FLOP/byte"]
    assert "naive: 64 FLOP per byte, 94 TFLOP/s under a roof of 307" in picture.alt
    assert "fused: 6554 FLOP per byte, 358 TFLOP/s under a roof of 989" in picture.alt
