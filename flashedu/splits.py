"""Into how many parts the keys of a decoding step are best cut: a model of its time on a GPU.

The unit of time is that in which the memory can bring a tile of keys and values to each multiprocessor. START and MERGE were
read off times on an H200, `flashedu/results/h200_decode.json`. All arguments are whole numbers of at least 1: `heads` key
heads (of the whole batch) of `tiles` tiles of keys each, cut into `splits` parts, on a GPU of so many multiprocessors. Source
of the cut: Dao, Haziza, Massa and Sizov 2023 (Flash-Decoding).
"""
import functools

PROGRAMS = 2  # that a multiprocessor works on at a time: its shared memory holds so many of the decoding kernel's tiles
START, MERGE = 4, 5  # what a program takes to begin and to end, and what the second kernel takes, which merges the parts


def waves_time(heads, tiles, splits, multiprocessors):
    """What programs take that never wait for each other: one for its tiles, and START to begin and to end, and as many waves of them."""
    return -(-heads * splits // (PROGRAMS * multiprocessors)) * (-(-tiles // splits) + START)


def step_time(heads, tiles, splits, multiprocessors):
    """What a step takes: its waves, or the memory if that takes longer, and MERGE if there is something to merge."""
    memory = heads * tiles / multiprocessors + START
    return max(waves_time(heads, tiles, splits, multiprocessors), memory) + MERGE * (splits > 1)


def bandwidth_share(heads, tiles, splits, multiprocessors):
    """The share of the memory's bandwidth that the step reaches, between 0 and 1."""
    return heads * tiles / multiprocessors / step_time(heads, tiles, splits, multiprocessors)


@functools.lru_cache(1024)  # it is asked before each launch
def splits_for(heads, tiles, multiprocessors):
    """The number of parts, up to that of tiles and of places, with the shortest step; of equals that with the shortest waves, then the fewest."""
    most = max(1, min(tiles, PROGRAMS * multiprocessors))

    def times(splits):
        problem = heads, tiles, splits, multiprocessors
        return step_time(*problem), waves_time(*problem)

    return min(range(1, most + 1), key=times)
