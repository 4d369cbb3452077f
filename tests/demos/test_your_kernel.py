"""The demo that runs a learner's function: right ones are measured, wrong ones explained, and nothing gets out of it."""
import itertools
import time
import tracemalloc

import numpy as np
import pytest
from readable import assert_readable, said, texts, words

from flashedu import cost
from flashedu.demos.demo import choices
from flashedu.demos.your_kernel import inputs, your_kernel
from flashedu.exactness import attention_bounds
from flashedu.reference import naive_attention, online_attention, tiled_attention


def size(n_bytes):
    return f"{n_bytes / 2**20:.2f} MiB" if n_bytes >= 2**20 else f"{n_bytes / 2**10:,.0f} KiB"


def in_bytes(words):
    number, unit = words.split()
    return float(number.replace(",", "")) * {"KiB": 2**10, "MiB": 2**20}[unit]


def values(drawing):
    """What stands at the end of the six bars: error, memory and bytes, each yours and naive's."""
    return [text.words for text in texts(drawing) if text.left == 842]


@pytest.mark.parametrize("function", [tiled_attention, online_attention])
def test_every_position_draws_the_right_bytes(function):
    demo = your_kernel(function, n=512)
    seen, positions = set(), 0
    for name in demo.controls:  # pairs of controls, the others as they are
        for other in demo.controls:
            if other <= name:
                continue
            kept = demo.values
            for (_, a), (_, b) in itertools.product(choices(demo.controls[name])[::2], choices(demo.controls[other])[::2]):
                drawing = demo.draw(**{**kept, name: a, other: b})
                chosen = {"block_q": kept["n"], "causal": False, **kept, name: a, other: b}
                if function is online_attention:
                    chosen["block_q"] = chosen["n"]
                n, d = chosen["n"], chosen["d"]
                moved = sum(cost.tiled_traffic(n, n, d, chosen["block_q"], chosen["block_k"], 4, chosen["causal"]))
                naive = sum(cost.naive_traffic(n, d, 1, 1, 4))
                assert values(drawing)[4:] == [size(moved), size(naive)]
                assert f"one N × N matrix: {size(4 * n * n)}" in words(drawing)
                needed = cost.tiled_sram(min(chosen["block_q"], n), min(chosen["block_k"], n), d, 4)
                assert f"SRAM it needs: {size(needed)};" in said(drawing)
                assert words(drawing)[0].startswith("✓ Exact")
                assert_readable(drawing, 520)
                seen.add(drawing.markup)
                positions += 1
    assert len(seen) > positions / 2  # pairs share the positions where only one has moved


@pytest.mark.parametrize("function", [tiled_attention, online_attention])
def test_each_control_changes_the_picture(function):
    demo = your_kernel(function, n=256, block_k=48)
    for control in demo.controls.values():
        before, old = demo.picture.value, control.value
        control.value = next(value for _, value in choices(control) if value != old)
        assert demo.picture.value != before and "could not be drawn" not in demo.picture.value
        control.value = old


def test_error_and_memory_are_measured():
    q, k, v = inputs(256, 64)
    drawing = your_kernel(n=256, block_q=32, block_k=48, causal=True).drawing
    bound, lse_bound = attention_bounds(q, k, v, True, block_k=48)
    mine, naive, peak, naive_peak, *_ = values(drawing)
    o, lse = tiled_attention(q, k, v, 32, 48, True)
    assert mine == f"{max(bound.ratio(o), lse_bound.ratio(lse)):.2g}"
    assert naive == f"{bound.ratio(naive_attention(q, k, v, True)):.2g}"
    assert mine in drawing.caption and peak in drawing.caption
    matrix = 4 * 256 * 256
    assert 4 * 256 * 64 < in_bytes(peak) < matrix  # the output, and less than N x N
    assert 2 * matrix < in_bytes(naive_peak) < 5 * matrix


def test_holding_the_matrix_shows():
    def tiled_attention(q, k, v, block_q, block_k, causal=False):
        s = q @ k.T / np.sqrt(np.float32(q.shape[1]))
        m = s.max(axis=1)
        p = np.exp(s - m[:, None])
        return p @ v / p.sum(axis=1)[:, None], m + np.log(p.sum(axis=1))

    whole, by_tiles = your_kernel(tiled_attention, n=512).drawing, your_kernel(n=512).drawing
    assert in_bytes(values(whole)[2]) > 2 * 4 * 512 * 512 > 4 * in_bytes(values(by_tiles)[2])
    assert "times the bytes of an N × N matrix" in said(whole)
    assert "never the whole one" in said(by_tiles)


def fails(q, k, v, block_size):
    raise NotImplementedError


def raises(q, k, v, block_size):
    return np.zeros(3) @ q


def exits(q, k, v, block_size):
    raise SystemExit("a very long farewell " * 40)


def shaped(q, k, v, block_size):
    return q @ k.T


def empty(q, k, v, block_size):
    pass


def nan(q, k, v, block_size):
    o = online_attention(q, k, v, block_size)
    o[3, 1:] = np.nan
    return o


def doubled(q, k, v, block_size):
    return online_attention(q, k, v, block_size).astype(np.float64)


def scaled(q, k, v, block_size):
    return online_attention(q, k, v, block_size) * np.float32(1.01)


def enormous(q, k, v, block_size):
    return np.full_like(v, 3e38)


def overwrites(q, k, v, block_size):
    o = online_attention(q, k, v, block_size)
    q[:] = 0
    return o


def noisy(q, k, v, block_size):
    print("hello")
    np.log(np.zeros(1))
    return online_attention(q, k, v, block_size)


def few(q, k, v):
    return q


def untraced(q, k, v, block_size):
    tracemalloc.stop()
    return online_attention(q, k, v, block_size)


class Odd(np.ndarray):
    def __repr__(self):
        raise RuntimeError("no")


def strange(q, k, v, block_size):
    return q.view(Odd)


@pytest.mark.parametrize(("function", "says"), [
    (fails, "Not attempted yet"), (raises, "It raised ValueError"), (exits, "It raised SystemExit"), (shaped, "The result has the wrong form"),
    (empty, "It returned nothing"), (nan, "Wrong: NaN or infinity in the result"), (doubled, "The result has the wrong form"),
    (scaled, "Wrong: more than rounding can explain"), (enormous, "Wrong: more than rounding can explain"),
    (overwrites, "It changed its inputs"), (few, "It raised TypeError"), (strange, "The result has the wrong form"), (noisy, "✓ Exact"), (untraced, "Its memory is unknown")])
def test_what_goes_wrong_is_said_and_the_demo_lives_on(function, says, capfd, recwarn):
    demo = your_kernel(function, exercise="online_attention", n=64, d=16, block_k=32)
    for block in (48, 64, 512):
        demo.controls["block_k"].value = block
        assert says in demo.picture.value and "could not be drawn" not in demo.picture.value
    drawing = demo.drawing
    assert words(drawing)[0].startswith(says)
    assert_readable(drawing, 520, plain_numbers=False)  # it quotes what the function returned
    assert sum(cost.naive_traffic(64, 16, 1, 1, 4)) == pytest.approx(in_bytes(values(drawing)[-1]), rel=0.01)
    assert capfd.readouterr() == ("", "") and not recwarn.list
    demo.controls["n"].value = 128
    assert "N = 128" in demo.picture.value


def test_details_help():
    """The line, the shapes, the first bad element and the right value."""

    def details(function):
        return " ".join(words(your_kernel(function, "online_attention", n=64, d=16, block_k=32).drawing)[1:3])

    assert f"In line {raises.__code__.co_firstlineno + 1}, in raises: ValueError" in details(raises)
    assert "(64, 16)" in details(shaped) and "(64, 64)" in details(shaped)
    assert "float64" in details(doubled)
    assert "o[3, 1] is nan" in details(nan)
    q, k, v = inputs(64, 16)
    assert f"right is {attention_bounds(q, k, v)[0].exact[0, 0]:.7g}" in details(enormous)
    assert details(exits).endswith("…")


def test_a_wrong_pair():
    def tiled_attention(q, k, v, block_q, block_k, causal=False):
        o = online_attention(q, k, v, block_k)
        return o, np.zeros(len(o), np.float32)

    drawing = your_kernel(tiled_attention).drawing
    assert "lse[0] is 0" in words(drawing)[1]
    assert words(drawing)[0] == "Wrong: more than rounding can explain"
    one = your_kernel(lambda q, k, v, block_q, block_k, causal: q, exercise="tiled_attention").drawing
    assert words(one)[1].startswith("It must return (o, lse)")


def test_an_endless_loop_is_stopped():
    def online_attention(q, k, v, block_size):
        while True:
            pass

    start = time.monotonic()
    assert words(your_kernel(online_attention).drawing)[0].startswith("Stopped after")
    assert time.monotonic() - start < 8  # two drawings


@pytest.mark.parametrize("function", [np.dot, 3, lambda q: q])
def test_what_is_no_answer_to_an_exercise(function):
    drawing = your_kernel(function).drawing
    assert words(drawing)[0] == "Nothing was run"
    assert_readable(drawing, 520)


def test_inputs_are_kept_from_the_function():
    demo = your_kernel(overwrites, exercise="online_attention", n=64, d=16)
    assert demo.draw(**demo.values) == demo.drawing
    assert np.abs(inputs(64, 16)[0]).max() > 1
