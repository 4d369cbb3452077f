"""The picture of a ring against the mask itself, and against what ring attention says that a process computes."""
import importlib.util
import re

import numpy as np
import pytest
from readable import assert_readable, said

from flashedu.viz.ring import amount, ring_drawing, ring_work

RUNS = [(2 * r, 2 * r + 1) for r in range(4)]
ZIGZAG = [(r, 7 - r) for r in range(4)]


@pytest.mark.parametrize("chunks", [RUNS, ZIGZAG, [(0, 1)], [(3, 0), (1, 2)]])
def test_work_is_what_a_mask_leaves(chunks):
    """But for the diagonal, which is half of itself more."""
    size, world = 10, len(chunks)
    positions = [np.concatenate([np.arange(c * size, (c + 1) * size) for c in held]) for held in chunks]
    for s, step in enumerate(ring_work(chunks)):
        for r, work in enumerate(step):
            queries, keys = positions[r], positions[(r - s) % world]
            pairs = np.sum(keys[None, :] < queries[:, None]) + 0.5 * np.sum(keys[None, :] == queries[:, None])
            assert work * size**2 == pairs


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="there is no torch on this system")
def test_zigzag_is_the_cut_that_ring_attention_makes():
    import torch

    from flashedu.ring import shard, visible

    chunks = [sorted(set((shard(torch.arange(8)[None, None], r, 4, causal=True).flatten()).tolist())) for r in range(4)]
    assert chunks == [list(pair) for pair in ZIGZAG]
    for s, step in enumerate(ring_work(ZIGZAG)):
        for r, work in enumerate(step):
            rows, keys, diagonal = visible(r, (r - s) % 4, 2, True)
            assert work == len(range(2)[rows]) * len(range(2)[keys]) / (2 if diagonal else 1)


def test_the_picture_says_it():
    drawing = ring_drawing({"equal runs": RUNS, "zigzag": ZIGZAG})
    assert_readable(drawing, 428)
    assert "compute 2, 6, 10, 14 squares, and the steps last 14" in drawing.caption
    assert "compute 8, 8, 8, 8 squares, and the steps last 8" in drawing.caption
    assert said(drawing).count("k3") == said(drawing).count("k0") == 8
    filled = [d for d in re.findall(r'<path d="([^"]*)" fill="#8f7100"', drawing.body)]
    assert len(filled) == 16 + 10  # in equal runs six of sixteen squares are empty


def test_amounts():
    assert [amount(x) for x in (0, 0.5, 1, 2.5, 14)] == ["0", "½", "1", "2½", "14"]
