"""What answers of chapter 6 are compared with: ranges of bytes, counts, and what holds whatever random signs somebody draws."""
from dataclasses import dataclass
from inspect import unwrap

import numpy as np

from flashedu import cost, exactness, reference
from flashedu.exactness import SLACK, Bound


@dataclass(frozen=True)
class Range(Bound):
    """Anything from low to high is right; None is no limit. exact has the shape and the kind of what is compared."""

    low: float = None
    high: float = None

    def errors(self, value):
        value = np.asarray(value, dtype=self.exact.dtype)
        inside = (self.low is None or value >= self.low) & (self.high is None or value <= self.high)
        return np.where(inside, 0.0, np.inf)

    def __str__(self):
        low, high = (f"{x:,}" if isinstance(x, int) else f"{x or 0:.7g}" for x in (self.low, self.high))
        return f"at most {high}" if self.low is None else f"at least {low}" if self.high is None else f"{low} to {high}"


def _range(low=None, high=None):
    return Range(np.array(0 if isinstance(low, int) else 0.0), np.array(0), low, high)


class ByChance(Bound):
    """Wrong values depend on chance: to name a mistake, it only counts whether they are wrong."""


# fa1_on_machine


def fa1_bytes(machine, block_q, block_k):
    """From o alone as the state, not loaded for the first keys, to o, m and l loaded and stored for every pair of tiles."""
    (n_q, d), n_k, itemsize = machine.shape("q"), machine.shape("k")[0], machine.itemsize
    read, written = cost.fa1_traffic(n_q, n_k, d, block_q, block_k, itemsize)
    statistics = 2 * -(-n_k // block_k) * n_q * itemsize
    return [
        ("read_bytes", _range(read - statistics - n_q * d * itemsize, read)),
        ("written_bytes", _range(written - statistics, written)),
        ("hbm_looks", Bound(np.array(0), np.array(0))),
    ]


def fa1_peak(machine, block_q, block_k):
    """The least that k, v, s and q, or o, need while a pair of tiles is at work."""
    rows, (keys, d) = min(block_q, machine.shape("q")[0]), machine.shape("k")
    keys = min(keys, block_k)
    return [("sram_peak", _range(low=(rows * d + 2 * keys * d + rows * keys) * machine.itemsize))]


def peak(args, result):
    return (args[0].sram_peak,)


FA1_NUMBERS = {  # what more or less than is right means
    "read_bytes": ("More means that k or v, or a tile of q and its state, was loaded again that was there.",
                   "Fewer means that q or o stayed outside SRAM from one tile of keys to the next, or that the queries are outside, as in version 2."),
    "written_bytes": ("More means that something else than o, m and l is stored for every pair of tiles: lse is stored once.",
                      "Fewer means that o stayed outside SRAM from one tile of keys to the next, or that the queries are outside, as in version 2."),
    "sram_peak": ("", "Tiles of k, v, s and q need that much: something was kept outside, or the tiles are smaller than block_q and block_k."),
}


# lazy_attention


def lazy(q, k, v, block_size, threshold):
    o, _ = exactness.attention_bounds(q, k, v, block_k=block_size)
    _, count = unwrap(reference.lazy_attention)(*(x.astype(np.float64) for x in (q, k, v)), block_size, threshold)
    return [("o", o), ("rescalings", Bound(np.array(count), np.array(0)))]


def pair(args, result):
    """The two results as they are."""
    return result


# rotate: there is no one right answer, since everybody may draw signs in another way. q' and k' need only be finite; what
# follows from them is compared.


def _finite(q, k):
    return [(name, ByChance(np.zeros(x.shape), np.array(np.inf))) for name, x in (("q'", q), ("k'", k))]


def derived(count, measure):
    """The outputs of an exercise that returns q', k': these, and the `count` values that measure(q', k') makes of them."""

    def outputs(args, result):
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            return None
        fit = all(type(x) is np.ndarray and x.shape == y.shape and x.dtype.kind == "f" for x, y in zip(result, args))
        return [*result, *(measure(*result) if fit else [None] * count)]

    return outputs


def _length(x):
    return np.sqrt((x.astype(np.longdouble) ** 2).sum(axis=1))


def _rounding(x):
    """How far rounding may carry an element of a rotated row, a sum of D terms: (N, 1)."""
    return exactness.unit_roundoff(x.dtype) * (np.sqrt(x.shape[1]) + 3) * _length(x)[:, None]


def _inner(a, b):
    return (a.astype(np.longdouble) @ b.astype(np.longdouble).T).astype(a.dtype)


def kept(q, k, seed):
    """Products and lengths: within the errors of two rows and of the product itself."""
    pairs = (("q' k'T", q, k), ("q' q'T", q, q), ("k' k'T", k, k))
    products = [(name, ByChance(a.astype(np.longdouble) @ b.astype(np.longdouble).T, SLACK * 3 * _rounding(a) * _length(b))) for name, a, b in pairs]
    lengths = [(f"Length of {name}", Bound(_length(x), SLACK * 2 * _rounding(x)[:, 0])) for name, x in (("q'", q), ("k'", k))]
    return [*_finite(q, k), *products, *lengths]


kept_outputs = derived(5, lambda q, k: (_inner(q, k), _inner(q, q), _inner(k, k), _length(q).astype(q.dtype), _length(k).astype(k.dtype)))


def spread(q, k, seed, share=None):
    """No element as large as this share of its row's length; by default half, and more where there are few dimensions."""
    share = (1 + q.shape[1] ** -0.5) / 2 if share is None else share
    return [*_finite(q, k), *((f"The largest element of {name}", _range(high=float(share * _length(x).max()))) for name, x in (("q'", q), ("k'", k)))]


spread_outputs = derived(2, lambda q, k: (np.abs(q).max(), np.abs(k).max()))


def even(q, k, seed):
    """One element among zeros comes out as D elements of one size: what random signs, then Hadamard, do, and other matrices do not."""
    sizes = [(name, ByChance(np.full(x.shape, _length(x)[:, None] * x.shape[1] ** -0.5), SLACK * _rounding(x))) for name, x in (("|q'|", q), ("|k'|", k))]
    return [*_finite(q, k), *sizes]


even_outputs = derived(2, lambda q, k: (np.abs(q), np.abs(k)))


def with_seeds(step):
    """How a check calls an answer: with a seed, and with the seed that is `step` more."""
    return lambda fn: lambda q, k, seed: (fn(q, k, seed), fn(q, k, seed + step))


def _second(measure):
    """Outputs of both calls together: q', k' of the first, and measure(first, second) for q' and for k'."""

    def outputs(args, result):
        first, second = result
        return derived(2, lambda q, k: [measure(a, b) for a, b in zip((q, k), second)])(args, first)

    return outputs


def same_again(q, k, seed):
    change = [(f"{name} of the second call minus {name}", ByChance(np.zeros(x.shape), SLACK * 2 * _rounding(x))) for name, x in (("q'", q), ("k'", k))]
    return [*_finite(q, k), *change]


same_outputs = _second(lambda first, second: second - first)


def other_signs(q, k, seed):
    return [*_finite(q, k), *((f"The number of elements of {name} that another seed changes", _range(low=1)) for name in ("q'", "k'"))]


other_outputs = _second(lambda first, second: int((np.abs(second - first) > 2 * _rounding(first)).sum()))
