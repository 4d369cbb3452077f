import hashlib
from pathlib import Path

import make_minilm_qkv
import numpy as np
import pytest

from flashedu import data
from flashedu.data import load_minilm

FOLDER = Path(data.__file__).parent
BLOCK = 32
NEXT_TOKEN, SINK, FLAT = 8, 10, 1  # heads, as README.md describes them


@pytest.fixture(scope="module")
def real():
    return load_minilm()


@pytest.fixture(scope="module")
def scores(real):
    return real.q @ real.k.swapaxes(1, 2) / np.sqrt(real.q.shape[-1])  # (H, N, N)


@pytest.fixture(scope="module")
def steps(scores):
    """How much each row's running maximum rises when the next block of keys arrives: (H, N, blocks - 1)."""
    block_maxima = [scores[..., start : start + BLOCK].max(-1) for start in range(0, scores.shape[-1], BLOCK)]
    return np.diff(np.maximum.accumulate(np.stack(block_maxima, -1), -1))


def test_the_file_is_small_and_is_the_one_the_readme_describes():
    written = (FOLDER / "minilm.npz").read_bytes()
    assert len(written) <= 1_000_000
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"`{hashlib.sha256(written).hexdigest()}`" in readme
    assert "Apache-2.0" in readme and "Public domain" in readme


def test_shapes_types_and_finite_values(real):
    for x in (real.q, real.k, real.v):
        assert x.shape == (make_minilm_qkv.HEADS, len(real.tokens), make_minilm_qkv.HEAD_DIM)
        assert x.dtype == np.float32 and np.isfinite(x).all()
        assert np.array_equal(x, x.astype(np.float16))  # what is stored is what is loaded


def test_the_tokens_spell_the_text(real):
    first, *inner, last = real.tokens
    assert (first, last) == ("[CLS]", "[SEP]")
    spelled = "".join(token.removeprefix("##") for token in inner)
    assert spelled == real.text.lower().replace(" ", "")


def test_it_says_where_it_comes_from(real):
    assert (real.text, real.layer) == (make_minilm_qkv.TEXT, make_minilm_qkv.LAYER)
    assert "Darwin" in real.source and "all-MiniLM-L6-v2" in real.source
    assert "Apache-2.0" in real.licence and "public domain" in real.licence


def test_every_call_returns_arrays_of_its_own(real):
    load_minilm().q[:] = 0
    assert np.array_equal(load_minilm().q, real.q)


def test_heads_differ_in_sharpness(scores):
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    spread = np.exp(-(p * np.log(p)).sum(-1)).mean(-1)  # keys a row spreads over: 1 is sharp, N is flat
    assert spread[NEXT_TOKEN] < 5 and 100 < spread[FLAT] < len(p[0])


def test_head_8_looks_at_the_next_token_and_its_maxima_jump_there(scores, steps):
    rows = np.arange(scores.shape[1])
    assert (scores[NEXT_TOKEN].argmax(-1) == rows + 1).mean() > 0.85
    own_block = rows[BLOCK:] // BLOCK
    jumps = steps[NEXT_TOKEN][rows[BLOCK:], own_block - 1]  # what the row's own block does to its maximum
    assert (jumps > 0).mean() > 0.9
    factors = np.exp(-steps[NEXT_TOKEN])
    assert 1e-4 < factors.min() < 1e-3
    assert (factors < 0.1).any(-1).mean() > 0.6  # rows whose old sum once shrinks more than tenfold


def test_head_10_looks_at_the_first_token_and_its_maxima_stay(scores, steps):
    assert (scores[SINK].argmax(-1) == 0).mean() > 0.9
    assert (steps[SINK] == 0).all(-1).mean() > 0.9


def test_real_maxima_rise_less_often_than_random_ones(steps):
    ends = np.append(np.arange(BLOCK, steps.shape[1], BLOCK), steps.shape[1])  # keys seen after each block
    chances = np.diff(ends) / ends[1:]  # that the newest block holds the largest key so far, at random
    assert ((steps > 0).sum(-1).mean(-1) < 0.7 * chances.sum()).all()
    assert (steps[FLAT] > 0).sum(-1).mean() == pytest.approx(1.0, abs=0.1)
