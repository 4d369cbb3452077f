"""What the two loop orders move, tile by tile, as the counting machine saw it."""
import functools
import math
from dataclasses import dataclass

import numpy as np

from flashedu.machine import Machine
from flashedu.reference import fa1_on_machine, tiled_on_machine


@dataclass(frozen=True)
class Step:
    """One tile of scores: the names of what was loaded and stored for it, and the rows moved since the first tile.

    `read` and `written` are pairs: rows of q, k, v, o, which have D elements, and rows of m, l, lse, which have one.
    """

    loads: tuple
    stores: tuple
    read: tuple
    written: tuple

    def moved_bytes(self, head_dim, itemsize):
        """(read_bytes, written_bytes) since the first tile."""
        return tuple((wide * head_dim + narrow) * itemsize for wide, narrow in (self.read, self.written))


NOTHING = Step((), (), (0, 0), (0, 0))


@functools.lru_cache(maxsize=128)
def steps(version, n_q, n_k, block_q, block_k):
    """A `Step` for each tile in the loop order of version 1 or 2, with NOTHING before the first.

    Only rows are counted, so the machine runs with D = 1, and with all lengths divided by what they have in common.
    """
    unit = math.gcd(n_q, n_k, block_q, block_k)
    q, k = (np.zeros((n // unit, 1), np.float32) for n in (n_q, n_k))
    machine = Machine({"q": q, "k": k, "v": k, "o": q, "lse": q[:, 0], "m": q[:, 0] - np.inf, "l": q[:, 0]}, 2**40)
    (fa1_on_machine if version == 1 else tiled_on_machine)(machine, block_q // unit, block_k // unit)
    found, before = [NOTHING], "free"
    moved = {"load": [0, 0], "store": [0, 0]}
    for event in machine.events:
        if event.kind == "load" and before == "free":  # the last tile's work is done: a new one begins
            names = {"load": [], "store": []}
            found.append(names)
        if event.kind in moved:
            names[event.kind].append(event.name)
            moved[event.kind][event.name in ("m", "l", "lse")] += unit * (event.stop - event.start)
            found[-1] = Step(*map(tuple, names.values()), *map(tuple, moved.values()))
        before = event.kind
    return found
