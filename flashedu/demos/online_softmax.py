"""A row of scores arrives block by block: what online softmax keeps, repairs and adds, and what the repair is worth."""
from functools import lru_cache

import numpy as np

from flashedu.data import load_minilm
from flashedu.demos.demo import Demo, counter, menu, player, slider
from flashedu.reference import update_normalizer
from flashedu.viz.online_steps import online_steps_drawing

BLOCKS = [1, 4, 7, 8, 16, 32, 64]  # 7 divides neither 48 nor 272
MADE_UP = {"random": "random scores", "rising": "the maximum rises", "falling": "the maximum comes first", "huge": "one huge score, late"}
REAL = {  # (head, query): what the head does, as the README beside the data says
    (8, 210): "looks at the next token",
    (10, 180): "looks at the first token",
    (1, 220): "looks at nothing in particular",
}


@lru_cache
def row_of(name):
    """A row of scores (N,) in float64: 48 made-up ones by name, or 272 of the model's for (head, query)."""
    if name in REAL:
        real, (head, query) = load_minilm(), name
        return (real.q[head, query].astype(float) @ real.k[head].T) / np.sqrt(real.q.shape[2])
    noise = np.random.default_rng(345).normal(0, 1.6, 48)  # the row of chapter 2
    if name in ("rising", "falling"):
        noise = np.linspace(-4, 4, 48) + 0.3 * noise
    if name == "huge":
        noise[37] = 15.0
    return noise[::-1] if name == "falling" else noise


@lru_cache
def history_of(name, block_size):
    """For each block of the row (m, alpha, kept, added), as `online_steps_drawing` takes it."""
    row, history = row_of(name), []
    m, l = np.full(1, -np.inf), np.zeros(1)
    for start in range(0, len(row), block_size):
        block = row[None, start : start + block_size]
        m_new, l_new = update_normalizer(m, l, block)
        alpha, added = np.exp(m - m_new), np.exp(block - m_new).sum()
        history.append((float(m_new[0]), float(alpha[0]), float(l[0] * alpha[0]), float(added)))
        m, l = m_new, l_new
    return history


def online_softmax(row="random", block_size=8, step=3):
    """A widget: block size and step over a row of scores, made up or a model's.

    `row` is random, rising, falling, huge, or (head, query) as in `REAL`.
    """
    real = load_minilm()
    rows = [(f"made up: {words}", name) for name, words in MADE_UP.items()]
    rows += [(f"model, head {head} {words}: query {query} ({real.tokens[query]})", (head, query)) for (head, query), words in REAL.items()]
    steps = counter("blocks seen", step, len(history_of(row, block_size)))
    controls = {"step": steps, "block_size": slider("block size (keys)", BLOCKS, block_size), "row": menu("row", rows, row)}

    def adjust(controls):
        controls["step"].max = len(history_of(controls["row"].value, controls["block_size"].value))

    return Demo(_draw, controls, moves="step", adjust=adjust, extra=[player(steps)])


def _draw(step, block_size, row):
    """Online softmax: a row of scores block by block"""
    return online_steps_drawing(row_of(row), block_size, step, history_of(row, block_size))
