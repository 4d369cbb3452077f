"""Right answers to chapter 6's exercises: other states, orders of loads, bases, ways to a Hadamard matrix, precisions."""
import math

import numpy as np
from right_answers import answer, stacked

# fa1_on_machine


def _version_1(machine, block_q, block_k, state, first_loads=True, reverse=False, wide=False, scratch=False):
    """Keys outside. `state` says what waits in HBM beside o: "m l", or "lse" alone, with o normalised; or "sums", m, l and sums."""
    (n_q, d), n_k, d_v = machine.shape("q"), machine.shape("k")[0], machine.shape("v")[1]
    names = ("o", "lse") if state == "lse" else ("o", "m", "l")
    starts = list(range(0, n_k, block_k))
    for number, j in enumerate(starts[::-1] if reverse else starts):
        v = machine.load("v", j, min(j + block_k, n_k))
        k = machine.load("k", j, min(j + block_k, n_k))
        for i in range(0, n_q, block_q):
            stop = min(i + block_q, n_q)
            q = machine.load("q", i, stop)
            s = machine.alloc((stop - i, len(k)))
            s[:] = (q.astype(np.float64) @ k.T.astype(np.float64) if wide else q @ k.T) / math.sqrt(d)
            machine.free(q)
            new_m = s.max(axis=1)
            s[:] = np.exp(s - new_m[:, None])
            part = new_m, s.sum(axis=1), s @ v
            machine.free(s)
            if number == 0 and not first_loads:
                tiles = [machine.alloc((stop - i, d_v)), *(machine.alloc((stop - i,)) for _ in names[1:])]
                before = np.full(stop - i, -np.inf, v.dtype), np.zeros(stop - i, v.dtype), np.zeros((stop - i, d_v), v.dtype)
            else:
                tiles = [machine.load(name, i, stop) for name in names]
                if number == 0 and state == "lse":
                    tiles[1][:] = -np.inf  # HBM holds NaN there
                before = _as_sums(state, tiles)
            scratch_tile = machine.alloc((stop - i,)) if scratch else None
            m, l, o = stacked(before, part)
            tiles[0][:] = o if state == "sums" and number < len(starts) - 1 else o / l[:, None]
            if state == "lse":
                tiles[1][:] = m + np.log(l)
            else:
                tiles[1][:], tiles[2][:] = m, l
            for name, tile in zip(names, tiles):
                machine.store(name, i, stop, tile)
            if number == len(starts) - 1 and state != "lse":
                tiles[2][:] = m + np.log(l)
                machine.store("lse", i, stop, tiles[2])
            for tile in (*tiles, *([scratch_tile] if scratch else [])):
                machine.free(tile)
        machine.free(k)
        machine.free(v)


def _as_sums(state, tiles):
    if state == "lse":  # the sum relative to lse is 1
        return tiles[1], (tiles[1] > -np.inf).astype(tiles[1].dtype), tiles[0]
    o, m, l = tiles
    return m, l, o if state == "sums" else o * l[:, None]


@answer("fa1_on_machine")
def merging_normalised(machine, block_q, block_k):
    _version_1(machine, block_q, block_k, "m l")


@answer("fa1_on_machine")
def lse_as_the_whole_state(machine, block_q, block_k):
    _version_1(machine, block_q, block_k, "lse")


@answer("fa1_on_machine")
def nothing_loaded_at_first(machine, block_q, block_k):
    _version_1(machine, block_q, block_k, "m l", first_loads=False)


@answer("fa1_on_machine")
def least_traffic(machine, block_q, block_k):
    _version_1(machine, block_q, block_k, "lse", first_loads=False)


@answer("fa1_on_machine")
def divided_after_the_last_keys(machine, block_q, block_k):
    _version_1(machine, block_q, block_k, "sums")


@answer("fa1_on_machine")
def last_keys_first(machine, block_q, block_k):
    _version_1(machine, block_q, block_k, "m l", reverse=True, scratch=True)


@answer("fa1_on_machine")
def scores_in_float64(machine, block_q, block_k):
    _version_1(machine, block_q, block_k, "m l", wide=True)


# lazy_attention


@answer("lazy_attention")
def row_by_row_lazily(q, k, v, block_size, threshold):
    out, count = np.empty((len(q), v.shape[1]), q.dtype), 0
    for i, row in enumerate(q):
        m = None
        for j in range(0, len(k), block_size):
            s = k[j : j + block_size] @ row / math.sqrt(len(row))
            if m is None:
                m, l, o = s.max(), q.dtype.type(0), np.zeros(v.shape[1], q.dtype)
            elif s.max() - m > threshold:
                count += 1
                l, o, m = l * np.exp(m - s.max()), o * np.exp(m - s.max()), s.max()
            p = np.exp(s - m)
            l, o = l + p.sum(), o + p @ v[j : j + block_size]
        out[i] = o / l
    return out, count


@answer("lazy_attention")
def only_rows_that_move(q, k, v, block_size, threshold):
    """As a kernel would: nothing is multiplied where the reference stays. The count is a NumPy integer."""
    s = (q * q.shape[1] ** -0.5) @ k[:block_size].T
    m = s.max(axis=1)
    p = np.exp(s - m[:, None])
    l, o, count = p.sum(axis=1), p @ v[:block_size], np.int64(0)
    for j in range(block_size, len(k), block_size):
        s = (q * q.shape[1] ** -0.5) @ k[j : j + block_size].T
        rows = np.flatnonzero(s.max(axis=1) - m > threshold)
        if len(rows):
            factor = np.exp(m[rows] - s[rows].max(axis=1))
            m[rows] = s[rows].max(axis=1)
            l[rows] *= factor
            o[rows] *= factor[:, None]
            count += len(rows)
        p = np.exp(s - m[:, None])
        l += p.sum(axis=1)
        o += p @ v[j : j + block_size]
    return o / l[:, None], count


@answer("lazy_attention")
def lazily_in_base_two(q, k, v, block_size, threshold):
    log2_e = 1.4426950408889634
    m = np.full(len(q), -np.inf, q.dtype)
    l, o, count = np.zeros_like(m), np.zeros((len(q), v.shape[1]), q.dtype), 0
    for j in range(0, len(k), block_size):
        s = (q @ k[j : j + block_size].T) * (q.shape[1] ** -0.5 * log2_e)
        top = s.max(axis=1)
        moves = top > m + threshold * log2_e
        count += int(np.count_nonzero(moves & np.isfinite(m)))
        new = np.where(moves, top, m)
        factor, m = np.exp2(m - new), new
        p = np.exp2(s - m[:, None])
        l, o = l * factor + p.sum(axis=1), o * factor[:, None] + p @ v[j : j + block_size]
    return [o / l[:, None], count]


@answer("lazy_attention")
def lazily_in_float64(q, k, v, block_size, threshold):
    wide = [x.astype(np.longdouble) for x in (q, k, v)] if len(k) < 100 else [x.astype(np.float64) for x in (q, k, v)]
    o, count = only_rows_that_move(*wide, block_size, threshold)
    return o.astype(q.dtype), count


@answer("lazy_attention")
def references_first(q, k, v, block_size, threshold):
    """One pass finds the last reference of every row and counts, another sums relative to it: no rescaling is carried out."""
    starts, scale = range(0, len(k), block_size), q.shape[1] ** -0.5
    m, count = np.full(len(q), -np.inf, q.dtype), 0
    for number, j in enumerate(starts):
        top = (q @ k[j : j + block_size].T * scale).max(axis=1)
        rises = np.greater(top, m + threshold)
        count += rises.sum() if number else 0
        np.copyto(m, top, where=rises)
    l, o = 0, 0
    for j in starts:
        p = np.exp(q @ k[j : j + block_size].T * scale - m[:, None])
        l, o = l + p.sum(axis=1, keepdims=True), o + p @ v[j : j + block_size]
    return o / l, count


# rotate


def hadamard(d, dtype=np.float64):
    """Sylvester's matrix, by doubling."""
    h = np.ones((1, 1), dtype)
    while len(h) < d:
        h = np.block([[h, h], [h, -h]])
    return h


@answer("rotate")
def as_a_product(q, k, seed):
    d = q.shape[1]
    signs = np.random.default_rng(seed).integers(0, 2, d) * 2 - 1
    matrix = (signs[:, None] * hadamard(d) / np.sqrt(d)).astype(q.dtype)
    return q @ matrix, k @ matrix


@answer("rotate")
def in_place_on_copies(q, k, seed):
    rng = np.random.RandomState(seed % 2**32)
    signs = np.where(rng.rand(q.shape[1]) < 0.5, -1, 1).astype(q.dtype)
    both = np.concatenate([q, k]) * signs
    run = 1
    while run < both.shape[1]:
        for start in range(0, both.shape[1], 2 * run):
            a, b = both[:, start : start + run].copy(), both[:, start + run : start + 2 * run].copy()
            both[:, start : start + run], both[:, start + run : start + 2 * run] = a + b, a - b
        run *= 2
    both /= both.dtype.type(math.sqrt(both.shape[1]))
    return both[: len(q)], both[len(q) :]


@answer("rotate")
def halves_first(q, k, seed):
    """Recursively, normalised at every level, from the longest run to the shortest."""
    signs = np.sign(np.random.default_rng([seed, 1]).standard_normal(q.shape[1])).astype(q.dtype)

    def transform(x):
        d = x.shape[1]
        if d == 1:
            return x
        a, b = x[:, : d // 2], x[:, d // 2 :]
        return np.concatenate([transform(a + b), transform(a - b)], axis=1) * x.dtype.type(0.5**0.5)

    return [transform(x * signs) for x in (q, k)]


@answer("rotate")
def bits_of_the_index(q, k, seed):
    """H[i, j] is -1 to the number of ones that i and j have in common, in float64 inside."""
    d = q.shape[1]
    common = np.arange(d)[:, None] & np.arange(d)
    ones = sum((common >> bit) & 1 for bit in range(max(1, d.bit_length())))
    matrix = (-1.0) ** ones * (-1.0) ** np.random.default_rng(seed).integers(0, 2, d) * d**-0.5  # columns carry the signs
    return tuple((x.astype(np.float64) @ matrix.T).astype(x.dtype) for x in (q, k))


@answer("rotate")
def shuffled_outputs(q, k, seed):
    """Sums and differences side by side, so that the elements come out in another order: Hadamard all the same."""
    d = q.shape[1]
    signs = np.random.default_rng(seed).choice([-1, 1], d).astype(q.dtype)
    results = []
    for x in (q, k):
        y = x * signs
        for _ in range(d.bit_length() - 1):
            y = np.stack([y[:, : d // 2] + y[:, d // 2 :], y[:, : d // 2] - y[:, d // 2 :]], axis=2).reshape(len(x), d)
        results.append(y * d**-0.5)
    return tuple(results)
