"""The memory demo: every position of every control, and its numbers against adding up bytes, and against autograd."""
import itertools

import pytest
from readable import assert_readable, words

from flashedu.demos.demo import choices
from flashedu.demos.memory import draw, memory
from flashedu.hardware import GPUS
from flashedu.viz.memory import MODELS, PLOT, Model, all_layers_bytes, longest
from flashedu.viz.roofline import triangle

POSITIONS = {name: [value for _, value in choices(control)] for name, control in memory().controls.items()}
NAMES = ("naive", "flash")


def by_hand(name, n, batch, itemsize):
    """{"naive": bytes, "flash": bytes} of all layers: q, k, v and P; q, k, v, o and a float32 lse."""
    layers, heads, kv_heads, d = MODELS[name]
    qkv = (heads + kv_heads + kv_heads) * n * d * itemsize
    return {"naive": layers * batch * (qkv + heads * n * n * itemsize),
            "flash": layers * batch * (qkv + heads * n * d * itemsize + heads * n * 4)}


@pytest.mark.parametrize("name", POSITIONS)
def test_every_position_draws_another_picture(name):
    demo, seen = memory(), set()
    for value in POSITIONS[name]:
        demo.controls[name].value = value
        assert "could not be drawn" not in demo.picture.value
        assert_readable(demo.drawing, 490)
        seen.add(demo.picture.value)
    assert len(seen) == len(POSITIONS[name])


@pytest.mark.parametrize("model, gpu", list(itertools.product(MODELS, GPUS)))
def test_extremes(model, gpu):
    for n, batch, itemsize in itertools.product((128, 8192, 2**20), (1, 64), (2, 4)):
        drawing, whole = draw(model, gpu, n, batch, itemsize), by_hand(model, n, batch, itemsize)
        assert_readable(drawing, 490)
        verdicts = [said for said in words(drawing) if said in ("fits", "too much")]
        assert verdicts == ["fits" if whole[name] <= GPUS[gpu].hbm_bytes else "too much" for name in NAMES]
        low, high = PLOT.ranges["y"]
        for name in NAMES:
            assert whole[name] > low
            marker = triangle(PLOT.x(n), PLOT.y(whole[name]), name) in drawing.svg
            assert marker is (whole[name] <= high)
        assert ("above the picture" in drawing.note) is (whole["naive"] > high)
        if whole["naive"] <= high:
            assert ("saves nothing" in drawing.note) is (whole["flash"] >= whole["naive"])


@pytest.mark.parametrize("model, gpu, batch, itemsize", list(itertools.product(MODELS, GPUS, (1, 64), (2, 4))))
def test_the_longest_sequence_fits_and_one_token_more_does_not(model, gpu, batch, itemsize):
    capacity = GPUS[gpu].hbm_bytes
    found = longest(MODELS[model], batch, itemsize, capacity)
    for name, n in found.items():
        assert n and by_hand(model, n, batch, itemsize)[name] <= capacity < by_hand(model, n + 1, batch, itemsize)[name]
    said = words(draw(model, gpu, 1024, batch, itemsize))
    assert f"naive fills the {gpu} at N = {found['naive']:,} tokens" in said
    assert f"flash fills the {gpu} at N = {found['flash']:,}, {found['flash'] / found['naive']:.3g} times as many" in said


def test_a_memory_too_small_for_one_token():
    assert longest(MODELS["Llama-3-8B"], 1, 2, 1000) == {"naive": 0, "flash": 0}


def test_llama_3_8b_in_numbers():
    drawing = draw("Llama-3-8B", "H200", 8192, 1, 2)
    said = words(drawing)
    for number in ("101 MB", "4.29 GB", "67.1 MB", "1.05 MB", "4.4 GB", "141 GB", "5.4 GB"):  # chapter 5's table
        assert number in said
    assert "naive attention keeps 141 GB, flash attention 5.4 GB" in drawing.caption
    assert "141 GiB" in drawing.caption and "Weights" in drawing.caption


def test_what_autograd_keeps_of_a_small_layer():
    """The two lists of arrays, against what torch puts aside for the real functions."""
    torch = pytest.importorskip("torch")
    from flashedu.kernels import flash_attention

    heads, n, d = 3, 24, 16

    def naive(q, k, v):
        return (q @ k.mT * d**-0.5).softmax(-1) @ v

    def flash(q, k, v):
        return flash_attention(q, k, v, backend="reference")

    expected = all_layers_bytes(Model(1, heads, heads, d), n, 2, 4)
    for name, function in (("naive", naive), ("flash", flash)):
        inputs = [torch.randn(2, heads, n, d, requires_grad=True) for _ in range(3)]
        kept = {}

        def put_aside(x, kept=kept):
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(put_aside, lambda x: x):
            output = function(*inputs)
        assert sum(kept.values()) == expected[name], name
        assert output.requires_grad
