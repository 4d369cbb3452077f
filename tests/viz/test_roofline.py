"""The roofs are the hardware's numbers."""

import pytest

from flashedu.cost import naive_intensity
from flashedu.hardware import GPUS, gpu
from flashedu.viz.roofline import attainable_flops


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
