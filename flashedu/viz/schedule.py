"""One multiprocessor (SM) at work on attention: which unit is busy when, under the loops of FlashAttention 2 and 3.

Time 1 is what the tensor core needs at full rate for the two products of one key tile with all query rows of the
block. Three units do one job at a time each, in the order given to them: loads, tensor core, exp unit. A job starts
when its unit is free and all that it needs is done. Left out: maxima, sums, rescaling and conversions, barriers,
storing O, the latency of a load beyond its length, a second block on the same SM. Real kernels are therefore slower
than both schedules, and version 2 gains more than version 3 from a second block.
"""
from collections import deque, namedtuple

LOADS, MATMUL, SOFTMAX = "loads", "tensor core", "exp unit"
Job = namedtuple("Job", "unit name consumer tile start stop")  # name: K, V (loads), S = QK^T, exp, PV; consumer "A", "B" or ""


def run(queues, lengths, needs):
    """The jobs of `queues` (unit -> names in order), each started as early as its unit and what it needs allow.

    A name is (kind, consumer, tile); `lengths` has the length of each kind; needs(name) lists names, of which those
    in no queue are ignored. Raises ValueError if jobs wait for each other.
    """
    queues = {unit: deque(names) for unit, names in queues.items()}
    missing = {name for names in queues.values() for name in names}  # not done yet
    free, stops, jobs = dict.fromkeys(queues, 0.0), {}, []
    while missing:
        before = len(jobs)
        for unit, names in queues.items():
            while names and missing.isdisjoint(needed := needs(names[0])):
                name = names.popleft()
                start = max(free[unit], *(stops.get(need, 0.0) for need in needed))
                free[unit] = stops[name] = start + lengths[name[0]]
                missing.remove(name)
                jobs.append(Job(unit, *name, start, stops[name]))
        if len(jobs) == before:
            raise ValueError("jobs wait for each other")
    return jobs


def version_2(tiles, softmax, load):
    """FlashAttention 2: one set of warps does everything in turn; one buffer for K and one for V.

    The next load runs in the background (V beside QK^T, the next K beside softmax and PV), and the softmax waits until
    it has landed. `softmax` and `load` are times for one key tile (K and V together). Source: Dao 2023, algorithm 1;
    flash_fwd_kernel.h of version 2.
    """

    def needs(job):
        kind, _, j = job
        return {
            "K": [("S", "", j - 1), ("V", "", j - 1)],  # the buffer is free, the load before has landed
            "S": [("K", "", j), ("PV", "", j - 1)],
            "V": [("K", "", j), ("PV", "", j - 1)],
            "exp": [("S", "", j), ("V", "", j)],
            "PV": [("exp", "", j)],
        }[kind]

    each = {kind: [(kind, "", j) for j in range(tiles)] for kind in ("K", "V", "S", "exp", "PV")}
    queues = {LOADS: _in_turn(each["K"], each["V"]), MATMUL: _in_turn(each["S"], each["PV"]), SOFTMAX: each["exp"]}
    return run(queues, _lengths(softmax, load), needs)


def version_3(tiles, softmax, load, stages, ping_pong=True, inside=False):
    """FlashAttention 3: a producer loads into rings of `stages` buffers, one for K and one for V; consumers compute.

    With `ping_pong` two consumers share the rows and take turns: while one uses the tensor core, the other does its
    softmax. Without it one consumer has all rows. With `inside` a consumer issues the next QK^T before PV, so that PV
    runs beside its own next softmax. Source: Shah et al. 2024, section 3.1 and algorithm 2.
    """
    consumers = "AB" if ping_pong else "A"

    def needs(job):
        kind, who, j = job
        return {
            "K": [("S", each, j - stages) for each in consumers],  # every consumer has released the buffer
            "V": [("PV", each, j - stages) for each in consumers],
            "S": [("K", "", j), ("exp", who, j - 1)],  # one tile of scores at a time; PV is ordered by the queue
            "exp": [("S", who, j)],
            "PV": [("V", "", j), ("exp", who, j)],
        }[kind]

    k, v = ([(kind, "", j) for j in range(tiles)] for kind in "KV")
    loads = [k[0], *_in_turn(k[1:], v[:-1]), v[-1]] if inside else _in_turn(k, v)  # as they are needed
    products = [("S", who, 0) for who in consumers]
    for j in range(tiles):
        for who in consumers:
            turn = [("PV", who, j), *([("S", who, j + 1)] if j + 1 < tiles else [])]
            products += reversed(turn) if inside else turn
    queues = {LOADS: loads, MATMUL: products, SOFTMAX: [("exp", who, j) for j in range(tiles) for who in consumers]}
    return run(queues, _lengths(softmax, load, len(consumers)), needs)


def _lengths(softmax, load, consumers=1):
    """How long each kind of job takes: both products of a tile take 1 together, shared between the consumers."""
    return {"K": load / 2, "V": load / 2, "S": 0.5 / consumers, "PV": 0.5 / consumers, "exp": softmax / consumers}


def _in_turn(first, second):
    return [job for pair in zip(first, second) for job in pair]


def finish(jobs):
    """When the last job ends."""
    return max(job.stop for job in jobs)


def utilisation(jobs, unit=MATMUL):
    """The share of the time until `finish` in which a unit is busy."""
    return sum(job.stop - job.start for job in jobs if job.unit == unit) / finish(jobs)
