"""The picture of the causal mask shows what a mask does, score by score."""
import itertools
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from readable import SVG, words

from flashedu.cost import tile_counts
from flashedu.viz import causal
from flashedu.viz.causal import LEFT, LONGEST, SHORTEST, SIDE, TOP, causal_tiles_drawing, masked_share
from flashedu.viz.figure import COLOURS
from flashedu.viz.svg import INK, Plot

SIDES = [(n_q, n_k) for n_q, n_k in itertools.product((96, 128, 200, 256), repeat=2)]


def visible(n_q, n_k):
    """The mask itself, query by query: key j is seen when j <= i + n_k - n_q."""
    return np.arange(n_k) <= np.arange(n_q)[:, None] + n_k - n_q


def counted(n_q, n_k, block_q, block_k):
    """(full, diagonal, skipped), by looking at every score of every tile."""
    seen, kinds = visible(n_q, n_k), []
    for i, j in itertools.product(range(0, n_q, block_q), range(0, n_k, block_k)):
        tile = seen[i : i + block_q, j : j + block_k]
        kinds.append(0 if tile.all() else 2 if not tile.any() else 1)
    return tuple(kinds.count(kind) for kind in range(3))


def corners(d):
    """The points of a path of M, H, V and Z."""
    points, x, y = [], 0.0, 0.0
    for letter, rest in re.findall(r"([MHV])([^MHVZ]*)", d):
        numbers = [float(value) for value in rest.split()]
        x, y = numbers if letter == "M" else (numbers[0], y) if letter == "H" else (x, numbers[0])
        points.append((x, y))
    return np.array(points)


def area(points):
    x, y = points.T
    return abs(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1))) / 2


@pytest.mark.parametrize("n_q, n_k", SIDES)
@pytest.mark.parametrize("block_q, block_k", [(16, 16), (32, 64), (96, 32), (512, 512), (64, 512)])
def test_numbers_are_those_of_the_mask(n_q, n_k, block_q, block_k):
    counts = counted(n_q, n_k, block_q, block_k)
    assert counts == tile_counts(n_q, n_k, block_q, block_k, causal=True)
    drawing = causal_tiles_drawing(n_q, n_k, block_q, block_k)
    full, diagonal, skipped = counts
    assert {f"{full} full: no mask needed", f"{diagonal} diagonal: masked inside", f"{skipped} skipped: never loaded"} <= set(words(drawing))
    assert f"{skipped / sum(counts):.1%} of the tiles are saved" in words(drawing)
    assert f"{diagonal / max(1, full + diagonal):.1%} of the others need a mask" in words(drawing)
    assert f"The mask alone would save {1 - visible(n_q, n_k).mean():.1%}" in drawing.caption


@pytest.mark.parametrize("n_q, n_k, block_q, block_k", [(128, 128, 16, 16), (200, 128, 32, 96), (96, 256, 64, 32), (200, 200, 96, 64)])
def test_the_surfaces_cover_the_tiles(n_q, n_k, block_q, block_k):
    """Full and diagonal surfaces have, in scores, the areas of their tiles, and lie where those are."""
    root = ET.fromstring(causal_tiles_drawing(n_q, n_k, block_q, block_k).svg)
    fills = {"full": COLOURS["scores"], "diagonal": "url(#flashedu-diagonal)"}
    unit, seen = SIDE / max(n_q, n_k), visible(n_q, n_k)
    for kind, fill in fills.items():
        (points,) = [corners(found.get("d")) for found in root.iter(f"{SVG}path") if found.get("fill") == fill]
        scores, right, top = 0, 0, n_q
        for i, j in itertools.product(range(0, n_q, block_q), range(0, n_k, block_k)):
            tile = seen[i : i + block_q, j : j + block_k]
            if tile.all() if kind == "full" else tile.any() and not tile.all():
                scores, right, top = scores + tile.size, max(right, j + tile.shape[1]), min(top, i)
        assert area(points) / unit**2 == pytest.approx(scores, rel=0.01)
        if kind == "diagonal":
            assert points[:, 0].max() == pytest.approx(LEFT + right * unit, abs=0.1)
            inside = points[points[:, 0] > LEFT + 0.2]
            assert inside[:, 1].min() == pytest.approx(TOP + top * unit, abs=0.1)


@pytest.mark.parametrize("n_q, n_k", [(256, 256), (128, 256), (256, 128), (200, 96)])
def test_the_edge_of_the_mask_lies_where_the_mask_does(n_q, n_k):
    """It passes through the last score that each query sees, if it sees any."""
    root, unit = ET.fromstring(causal_tiles_drawing(n_q, n_k, 32, 32).svg), SIDE / max(n_q, n_k)
    (edge,) = [[float(found.get(key)) for key in ("x1", "y1", "x2", "y2")] for found in root.iter(f"{SVG}line")
               if found.get("stroke") == INK and float(found.get("x2")) < 500]
    x1, y1, x2, y2 = [(value - start) / unit for value, start in zip(edge, (LEFT, TOP, LEFT, TOP), strict=True)]
    last = [(i, seen.sum() - 1) for i, seen in enumerate(visible(n_q, n_k)) if seen.any()]
    assert all(j < x1 + (i + 0.5 - y1) * (x2 - x1) / (y2 - y1) < j + 1 for i, j in last)
    assert (y1, y2) == pytest.approx((last[0][0], n_q), abs=0.2 / unit)


@pytest.mark.parametrize("n_q, n_k", [(1, 1), (1, 7), (7, 1), (5, 9), (9, 5), (64, 64)])
def test_the_masks_share(n_q, n_k):
    assert masked_share(n_q, n_k) == pytest.approx(1 - visible(n_q, n_k).mean(), abs=1e-12)


@pytest.mark.parametrize("n_q, n_k, block_q, block_k", [(1024, 1024, 128, 128), (1000, 1000, 96, 96), (256, 1024, 64, 96), (512, 128, 16, 32)])
def test_the_curve(n_q, n_k, block_q, block_k, monkeypatch):
    """Every point of the curve is the share of skipped tiles at its length, and the mark is the present one."""
    plots = []
    monkeypatch.setattr(causal, "Plot", lambda *given, **options: plots.append(Plot(*given, **options)) or plots[-1])
    drawing = causal_tiles_drawing(n_q, n_k, block_q, block_k)
    (plot,), root, longer = plots, ET.fromstring(drawing.svg), max(n_q, n_k)
    full, diagonal, skipped = tile_counts(n_q, n_k, block_q, block_k, causal=True)
    (mark,) = root.iter(f"{SVG}circle")
    assert (float(mark.get("cx")), float(mark.get("cy"))) == pytest.approx((plot.x(longer), plot.y(skipped / (full + diagonal + skipped))), abs=0.06)
    lines = {found.get("stroke"): found for found in root.iter(f"{SVG}path") if "L" in found.get("d") and found.get("stroke") != INK}
    assert lines[COLOURS["masked"]].get("stroke-dasharray") and not lines[COLOURS["scores"]].get("stroke-dasharray")
    for colour, block in ((COLOURS["scores"], (block_q, block_k)), (COLOURS["masked"], (1, 1))):
        points = [tuple(map(float, point.split())) for point in lines[colour].get("d")[1:].split("L")]
        lengths = [round(SHORTEST * (LONGEST / SHORTEST) ** ((x - plot.box[0]) / (plot.box[2] - plot.box[0]))) for x, _ in points]
        assert lengths[0] == SHORTEST and abs(lengths[-1] - LONGEST) < 5 and len(points) >= 25
        wanted = [n for n in (128, 256, 512, 1000, 1024) if n in lengths or n == longer]
        assert len(wanted) >= 3
        for n in wanted:
            y = points[min(range(len(points)), key=lambda at: abs(points[at][0] - plot.x(n)))][1]
            counts = tile_counts(round(n * n_q / longer), round(n * n_k / longer), *block, causal=True)
            assert y == pytest.approx(plot.y(counts[2] / sum(counts)), abs=0.06)


def test_notes_explain_what_one_would_not_expect():
    assert "One tile holds everything" in causal_tiles_drawing(256, 256, 512, 512).note
    assert "The first 128 queries see no key" in causal_tiles_drawing(256, 128, 64, 64).note
    assert "262,144 tiles are too small" in causal_tiles_drawing(8192, 8192, 16, 16).note
    assert "cut off" in causal_tiles_drawing(1000, 1000, 96, 96).note
    assert causal_tiles_drawing(1024, 1024, 128, 128).note == ""
    assert "not to scale" in causal_tiles_drawing(8192, 128, 64, 64).svg
    assert "not to scale" not in causal_tiles_drawing(1024, 512, 64, 64).svg
