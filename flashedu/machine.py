"""A machine with two levels of memory that counts every byte.

HBM is large and holds whole arrays. SRAM is small and holds tiles. `load` copies rows of an HBM array into SRAM,
`store` writes rows back, `alloc` takes room for a tile that is computed, `free` gives it back. Arithmetic is plain
NumPy on tiles and costs nothing; only residency and traffic are counted. One element counts `itemsize` bytes, which
may differ from the arrays' own: 2 models bfloat16 while NumPy computes in float32.
"""
import math
from dataclasses import dataclass

import numpy as np

from flashedu.arguments import attention_inputs, float_array, one_dtype, positive_int, short


class SramOverflow(MemoryError):
    """A tile did not fit; the message names what was resident."""


@dataclass(frozen=True)
class Event:
    """One action: kind is load, store, alloc or free; it concerns rows start:stop of `name`; sram_used is the level after it.

    The name of an allocated tile says its shape, as in `tile 16x64`.
    """

    kind: str
    name: str
    start: int
    stop: int
    size_bytes: int
    sram_used: int


class Machine:
    """Two levels of memory, counted.

    Takes `hbm`, a dict of NumPy arrays of any shape that are copied in, the capacity `sram_bytes` and the bytes that one
    element counts (`itemsize`; by default those of the arrays' dtype). Raises TypeError or ValueError unless the arrays
    are float32 or float64, all of one dtype and none empty, and the sizes positive whole numbers. Attributes:
    `sram_bytes`, `itemsize`, `sram_used`, `sram_peak`, `read_bytes` (HBM to SRAM), `written_bytes` (SRAM to HBM),
    `events`, and `hbm`, to look at when the run is over.
    """

    def __init__(self, hbm, sram_bytes, itemsize=None):
        if not isinstance(hbm, dict) or not hbm:
            raise TypeError(f"hbm must be a dict of NumPy arrays by name, but it is {short(hbm)}.")
        for name, array in hbm.items():
            float_array(name, array)
        one_dtype(hbm)
        self._hbm = {name: array.copy() for name, array in hbm.items()}
        self.dtype = next(iter(self._hbm.values())).dtype
        self.sram_bytes = positive_int("sram_bytes", sram_bytes)
        self.itemsize = self.dtype.itemsize if itemsize is None else positive_int("itemsize", itemsize)
        self.sram_used = self.sram_peak = self.read_bytes = self.written_bytes = 0
        self.events = []
        self._resident = {}  # id of a tile -> (tile, its name, start, stop, bytes)

    @classmethod
    def for_attention(cls, q, k, v, sram_bytes, itemsize=None, **extra):
        """A machine whose HBM holds q (Nq, D), k (Nk, D), v (Nk, Dv), and o (Nq, Dv), lse (Nq,) filled with NaN.

        `extra` adds arrays by name, such as s and p for three separate kernels. Raises TypeError or
        ValueError for arrays that do not fit together, extra ones called o or lse, and what `Machine` refuses.
        """
        attention_inputs(q, k, v)
        if {"o", "lse"} & extra.keys():
            raise ValueError(f"extra must not be called o or lse, which the machine makes itself, but it holds {', '.join(extra)}.")
        o = np.full((len(q), v.shape[1]), np.nan, q.dtype)
        return cls({"q": q, "k": k, "v": v, "o": o, "lse": o[:, 0], **extra}, sram_bytes, itemsize)

    def shape(self, name):
        """The shape of an HBM array; raises ValueError, with the names that there are, for another name."""
        return self._array(name).shape

    def load(self, name, start, stop):
        """Copy rows start:stop of an HBM array into SRAM and return the tile, (stop - start, ...); counts as read.

        Raises SramOverflow when the tile does not fit, IndexError for rows that there are not, ValueError for an unknown name
        and TypeError for a start or stop that is no whole number.
        """
        rows = self._rows(name, start, stop)
        self._make_room(rows.size * self.itemsize, "load", name, start, stop)
        tile = self._place(rows.copy(), "load", name, start, stop)
        self.read_bytes += rows.size * self.itemsize
        return tile

    def alloc(self, shape, fill=0.0):
        """Take SRAM for a tile of any shape, such as alloc((rows, columns)), and return it, filled; moves no bytes.

        Raises SramOverflow when it does not fit, and TypeError or ValueError unless shape is a tuple of positive whole numbers
        and fill a number.
        """
        if not isinstance(shape, tuple) or not shape:
            raise TypeError(f"shape must be a tuple such as (8,) or (8, 16), but it is {short(shape)}.")
        if isinstance(fill, bool) or not isinstance(fill, (int, float, np.number)):
            raise TypeError(f"fill must be a number, but it is {short(fill)}.")
        shape = tuple(positive_int("each length in shape", length) for length in shape)
        name = "tile " + "x".join(map(str, shape))
        self._make_room(math.prod(shape) * self.itemsize, "alloc", name, 0, shape[0])
        return self._place(np.full(shape, fill, self.dtype), "alloc", name, 0, shape[0])

    def free(self, tile):
        """Give the SRAM of a tile, of any shape, back; its contents become NaN, so that using it afterwards shows.

        Raises ValueError for what is no resident tile, such as one that has been freed.
        """
        if id(tile) not in self._resident:
            raise ValueError(f"tile must be one that load or alloc returned and that is still resident, not freed before, but it is {short(tile)}: "
                             "tile[:] = ... writes into a tile, tile = ... makes another array.")
        _, name, start, stop, size_bytes = self._resident.pop(id(tile))
        tile.fill(np.nan)
        self.sram_used -= size_bytes
        self._note("free", name, start, stop, size_bytes)

    def store(self, name, start, stop, tile):
        """Write tile (stop - start, ...) to rows start:stop of an HBM array; counts as written.

        The tile stays resident. It must be in SRAM: one that load or alloc returned, or a part of one such as tile[:5]. Raises
        ValueError for another array, another shape or an unknown name, IndexError for rows that there are not, and TypeError
        for a start or stop that is no whole number.
        """
        rows = self._rows(name, start, stop)
        if np.shape(tile) != rows.shape:
            raise ValueError(f"tile must have the shape {rows.shape} of the rows it goes to, but it has {np.shape(tile)}.")
        if id(tile) not in self._resident and id(getattr(tile, "base", None)) not in self._resident:
            raise ValueError("tile must be in SRAM, but it is an array of its own, or was freed: write the result into a tile, "
                             "tile[:] = ..., and store that.")
        rows[:] = tile
        self.written_bytes += rows.size * self.itemsize
        self._note("store", name, start, stop, rows.size * self.itemsize)

    @property
    def hbm(self):
        """The HBM arrays by name, to look at when the run is over; they cannot be written to."""
        return {name: _read_only(array) for name, array in self._hbm.items()}

    @property
    def resident(self):
        """What is in SRAM now: a list of (name, start, stop, bytes)."""
        return [entry[1:] for entry in self._resident.values()]

    def _array(self, name):
        if not isinstance(name, str) or name not in self._hbm:
            raise ValueError(f"name must be one of {', '.join(self._hbm)}, but it is {short(name)}.")
        return self._hbm[name]

    def _rows(self, name, start, stop):
        n = len(self._array(name))
        for label, value in (("start", start), ("stop", stop)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise TypeError(f"{label} must be a whole number, but it is {short(value)}.")
        if not 0 <= start < stop <= n:
            raise IndexError(f"start and stop must lie within the {n} rows of {name}, start before stop, but they are {start} and {stop}.")
        return self._hbm[name][start:stop]

    def _make_room(self, size_bytes, kind, name, start, stop):
        free = self.sram_bytes - self.sram_used
        if size_bytes > free:
            tiles = [f"{_label(n, a, b)} ({size:,} B)" for n, a, b, size in self.resident]
            held = ", ".join([*tiles[:12], *([f"and {len(tiles) - 12} more"] if tiles[12:] else [])]) or "nothing"
            raise SramOverflow(f"{kind} of {_label(name, start, stop)} needs {size_bytes:,} bytes, but of {self.sram_bytes:,} "
                               f"only {free:,} are free; resident: {held}.")

    def _place(self, tile, kind, name, start, stop):
        size_bytes = tile.size * self.itemsize
        self._resident[id(tile)] = (tile, name, start, stop, size_bytes)
        self.sram_used += size_bytes
        self.sram_peak = max(self.sram_peak, self.sram_used)
        self._note(kind, name, start, stop, size_bytes)
        return tile

    def _note(self, kind, name, start, stop, size_bytes):
        self.events.append(Event(kind, name, int(start), int(stop), int(size_bytes), self.sram_used))


def _label(name, start, stop):
    """`k 64:128` for rows of an HBM array, and just the name for a tile of one's own, which says its shape."""
    return name if name.startswith("tile") else f"{name} {start}:{stop}"


def _read_only(array):
    view = array.view()
    view.flags.writeable = False
    return view
