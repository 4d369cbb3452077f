"""The roofline demo: every position of every control, and its numbers against the formulas, written out once more."""
import itertools
import re

import pytest
from readable import assert_readable, words

from flashedu.demos.demo import choices
from flashedu.demos.roofline import draw, measurements, roofline
from flashedu.hardware import GPUS
from flashedu.results import load
from flashedu.viz.roofline import PLOT, triangle

LAYER = {"gpu": "H200", "n": 8192, "head_dim": 128, "heads": 32, "kv_heads": 8, "itemsize": 2}
POSITIONS = {name: [value for _, value in choices(control)] for name, control in roofline().controls.items()}


def by_hand(gpu, n, head_dim, heads, kv_heads, itemsize):
    """(FLOPs, bytes, seconds at best) of naive and of flash attention."""
    flops = heads * (2 * n * n * head_dim + 2 * n * n * head_dim)
    io_bytes = itemsize * n * head_dim * (heads + kv_heads + kv_heads + heads)
    for moved in (io_bytes + itemsize * 4 * heads * n * n, io_bytes):
        yield flops, moved, max(flops / GPUS[gpu].matmul_flops, moved / GPUS[gpu].hbm_bytes_per_s)


@pytest.mark.parametrize("name", POSITIONS)
def test_every_position_draws_another_picture(name):
    demo = roofline()
    demo.controls["kv_heads"].value = 1  # divides every number of heads
    seen = set()
    for value in POSITIONS[name]:
        demo.controls[name].value = value
        assert "could not be drawn" not in demo.picture.value
        assert_readable(demo.drawing, 490)
        seen.add(demo.picture.value)
    assert len(seen) == len(POSITIONS[name])


@pytest.mark.parametrize("heads, kv_heads", list(itertools.product(POSITIONS["heads"], POSITIONS["kv_heads"])))
def test_heads_that_cannot_be_shared_explain_themselves(heads, kv_heads):
    drawing = draw(**{**LAYER, "heads": heads, "kv_heads": kv_heads})
    assert_readable(drawing, 490)
    impossible = heads not in range(kv_heads, 129, kv_heads)
    assert (f"{heads} query heads cannot share {kv_heads}" in drawing.note) is impossible
    assert any("FLOP per byte," in said for said in words(drawing)) is not impossible


@pytest.mark.parametrize("gpu", GPUS)
def test_extremes_stay_inside(gpu):
    for n, head_dim, heads, kv_heads, itemsize in itertools.product((128, 65536), (64, 256), (1, 128), (1, 32), (2, 4)):
        drawing = draw(gpu, n, head_dim, heads, kv_heads, itemsize)
        assert_readable(drawing, 490)
        if heads % kv_heads == 0:
            for flops, moved, seconds in by_hand(gpu, n, head_dim, heads, kv_heads, itemsize):
                for place, value, (low, high) in (("x", flops / moved, PLOT.ranges["x"]), ("y", flops / seconds / 1e12, PLOT.ranges["y"])):
                    assert low < value < high, place


def test_the_llama_layer_in_numbers():
    said = words(draw(**LAYER))
    assert "naive: 63.4 FLOP per byte, 31% of the ridge: memory-bound" in said
    assert "flash: 6,554 FLOP per byte, 31.8 times the ridge: compute-bound" in said
    measured = {row["n"]: row for row in load("h200_attention_traffic")["sweep"]}[8192]
    for name, (flops, moved, seconds) in zip(("naive", "flash"), by_hand(**LAYER)):
        assert f"{seconds * 1e3:.3g} ms" in said and f"{measured[name]['time_ms']:.3g} ms" in said
        assert f"{flops / 1e12:.3g} TFLOP" in said
        assert (f"{moved / 1e9:.3g} GB" if name == "naive" else f"{moved / 1e6:.3g} MB") in said


@pytest.mark.parametrize("gpu, n, head_dim", list(itertools.product(("T4", "H200"), (128, 2048, 65536), (64, 80, 256))))
def test_points_lie_where_the_formulas_put_them(gpu, n, head_dim):
    drawing = draw(gpu, n, head_dim, 16, 4, 2)
    for name, (flops, moved, seconds) in zip(("naive", "flash"), by_hand(gpu, n, head_dim, 16, 4, 2)):
        intensity = flops / moved
        assert triangle(PLOT.x(intensity), PLOT.y(flops / seconds / 1e12), name) in drawing.svg
        sentence = next(said for said in words(drawing) if said.startswith(f"{name}: "))
        found, share = float(re.search(r"([\d,.]+) FLOP", sentence)[1].replace(",", "")), intensity / GPUS[gpu].ridge
        assert found == pytest.approx(intensity, rel=0.006) and ("compute-bound" in sentence) is (share >= 1)


def hollow(drawing):
    return drawing.svg.count('fill="none" stroke="#b93a48" stroke-width="2.5"') + drawing.svg.count('fill="none" stroke="#00755e" stroke-width="2.5"')


def test_measured_points_are_drawn_exactly_where_there_is_a_measurement():
    shapes = itertools.product(POSITIONS["n"], POSITIONS["head_dim"], POSITIONS["heads"], POSITIONS["kv_heads"])
    drawn = 0
    for shape in shapes:
        if shape[2] % shape[3] == 0:
            found = measurements().get(shape, ({}, ""))[0]
            drawing = draw("H200", *shape, 2)
            assert hollow(drawing) == len(found), shape
            for name, seconds in found.items():
                flops = 4 * shape[2] * shape[0] ** 2 * shape[1]
                assert seconds > [s for *_, s in by_hand("H200", *shape, 2)][name == "flash"], "faster than the roof"
                assert PLOT.y(flops / seconds / 1e12) < PLOT.box[3]
            assert drawing.note, "measured how, or why not"
            drawn += len(found)
    assert drawn == 3 * 6 * 2 + 8 + 7  # three head dimensions, six lengths; the Llama layer, where naive ran out of memory once
    for other in ({"gpu": "H100 SXM"}, {"itemsize": 4}):
        assert hollow(draw(**{**LAYER, **other})) == 0


def test_a_batch_is_divided():
    row = next(r for r in load("h200_attention_speed")["rows"] if (r["direction"], r["contender"], r["n"], r["head_dim"], r["causal"]) == (
        "forward", "flashedu", 2048, 128, False))
    assert row["batch"] == 8 and measurements()[2048, 128, 16, 16][0]["flash"] == pytest.approx(row["time_ms"] / 8000)
    assert f"{row['time_ms'] / 8 * 1e3:.3g} µs" in words(draw("H200", 2048, 128, 16, 16, 2))


def test_notes_say_what_is_missing():
    assert "16-bit" in draw(**{**LAYER, "itemsize": 4}).note
    assert "does not run" in draw(**{**LAYER, "n": 65536}).note
    assert "D = 80" in draw(**{**LAYER, "head_dim": 80}).note
    assert "H200 only" in draw(**{**LAYER, "gpu": "B200"}).note
    assert "32 heads with 8 kv_heads" in draw(**{**LAYER, "kv_heads": 4}).note
