"""Real attention inputs, for the chapters to look at; README.md says where they come from."""

from dataclasses import dataclass
from importlib.resources import files

import numpy as np


@dataclass(frozen=True, eq=False)
class RealAttention:
    """The inputs of all heads of one attention layer while a model reads a text.

    q, k, v: (heads, N, D) float32; q is not scaled, so the scores are q @ k.T / sqrt(D), without a mask.
    tokens: N strings; text: what was read; layer: which one, from 0; source, licence: of text and model.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    tokens: tuple[str, ...]
    text: str
    layer: int
    source: str
    licence: str


def load_minilm():
    """Returns a `RealAttention`: one layer of all-MiniLM-L6-v2 while it reads the last paragraph of Darwin's Origin.

    q, k, v: (heads, N, D) = (12, 272, 32), float32, rounded to float16 when stored.
    Head 8 is sharp and looks at the next token: a row's maximum jumps when its own block of keys arrives.
    Head 10 looks at the first token, [CLS]: its maxima hardly rise. Head 1 is flat: small rises, any time.
    Source: README.md beside this file.
    """
    path = files(__name__).joinpath("minilm.npz")
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        return RealAttention(
            *(stored[name].astype(np.float32) for name in "qkv"),
            tokens=tuple(stored["tokens"].tolist()),
            layer=int(stored["layer"]),
            **{name: str(stored[name]) for name in ("text", "source", "licence")},
        )
