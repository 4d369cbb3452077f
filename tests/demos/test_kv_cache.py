"""The demo of the cache: every position of every control, and its numbers against adding up bytes."""
import itertools

import pytest
from readable import assert_readable, words

from flashedu.demos.demo import choices
from flashedu.demos.kv_cache import draw, kv_cache
from flashedu.hardware import GPUS
from flashedu.viz.curves import duration, size
from flashedu.viz.kv_cache import PLOT, step
from flashedu.viz.memory import MODELS

POSITIONS = {name: [value for _, value in choices(control)] for name, control in kv_cache().controls.items()}
ROWS = ("kv_heads", "cache", "FLOP / byte", "of the ridge", "at best", "tokens / s", "naive adds", "fits")


def table(drawing):
    """{"MHA": {row: words}, "model": .., "MQA": ..} as it is drawn: a head, then its rows."""
    found = words(drawing)
    return {which: dict(zip(ROWS, found[found.index(which) + 1 :])) for which in ("MHA", "model", "MQA")}


def by_hand(name, gpu, n, batch, itemsize):
    """{"MHA": (bytes, seconds), ..}: keys and values read, and the longer of reading all arrays and multiplying."""
    layers, heads, kv_heads, d = MODELS[name]
    for which, kv in (("MHA", heads), ("model", kv_heads), ("MQA", 1)):
        cache = sum(batch * kv * n * d * itemsize for _ in range(layers) for _ in "kv")
        moved = cache + layers * batch * heads * d * itemsize * 2  # q and o
        flops = layers * batch * heads * n * (2 * d + 2 * d)
        yield which, (cache, max(moved / GPUS[gpu].hbm_bytes_per_s, flops / GPUS[gpu].matmul_flops))


@pytest.mark.parametrize("name", POSITIONS)
def test_every_position_draws_another_picture(name):
    demo, seen = kv_cache(), set()
    for value in POSITIONS[name]:
        demo.controls[name].value = value
        assert "could not be drawn" not in demo.picture.value
        assert_readable(demo.drawing, 490)
        seen.add(demo.picture.value)
    assert len(seen) == len(POSITIONS[name])


@pytest.mark.parametrize("model, gpu", list(itertools.product(MODELS, GPUS)))
def test_extremes(model, gpu):
    low, high = PLOT.ranges["y"]
    for n, batch, itemsize in itertools.product((1024, 2**20), (1, 64), (1, 2)):
        drawing = draw(model, gpu, n, batch, itemsize)
        assert_readable(drawing, 490)
        shown = table(drawing)
        for which, (cache, seconds) in by_hand(model, gpu, n, batch, itemsize):
            assert low <= cache <= high
            assert shown[which]["cache"] == size(cache)
            assert shown[which]["at best"] == duration(seconds)
            assert shown[which]["fits"] == ("yes" if cache <= GPUS[gpu].hbm_bytes else "no")
        assert ("that of MHA" in drawing.note) is (MODELS[model].heads == MODELS[model].kv_heads)


def test_llama_3_8b_in_numbers():
    drawing = draw("Llama-3-8B", "H200", 131_072, 1, 2)
    shown = table(drawing)
    assert [shown[which]["kv_heads"] for which in shown] == ["32", "8", "1"]
    assert [shown[which]["cache"] for which in shown] == ["68.7 GB", "17.2 GB", "2.15 GB"]
    assert [shown[which]["FLOP / byte"] for which in shown] == ["1", "4", "32"]  # one for each head of a group
    assert shown["model"]["of the ridge"] == "1.9%" and shown["model"]["tokens / s"] == f"{4.8e12 / 17.18e9:.0f}"
    assert "A decoding step of Llama-3-8B reads 17.2 GB: 3.58 ms at best" in words(drawing)
    assert "17.2 GB are read, with any exact kernel" in drawing.caption


@pytest.mark.parametrize("kv_heads", [32, 8, 1])
def test_what_naive_attention_adds_is_its_s_and_p(kv_heads):
    model, n, itemsize = MODELS["Llama-3-8B"], 4096, 2
    added = sum(model.layers * model.heads * n * itemsize for _ in ("S written", "S read", "P written", "P read"))
    cache_bytes, _, _, share = step(model, kv_heads, GPUS["H200"], n, 1, itemsize)
    assert share == added / cache_bytes == 2 * (32 / kv_heads) / 128


def test_many_heads_on_one_head_of_keys_can_reach_the_ridge():
    """256 FLOP a byte on a GPU that needs 164: the time is that of the products."""
    assert table(draw("Llama-3.1-405B", "RTX 4090", 2**20, 1, 1))["MQA"]["of the ridge"] == f"{256 / (165.2e12 / 1008e9):.1%}"
