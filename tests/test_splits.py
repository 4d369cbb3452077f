"""The model of a decoding step: the number of parts that it chooses is the best of all."""
import pytest

from flashedu.splits import MERGE, PROGRAMS, START, splits_for


def busiest(heads, tiles, multiprocessors, splits):
    """Tiles that the busiest place on the device works through, place by place: programs are dealt out in waves."""
    work = [0] * (PROGRAMS * multiprocessors)
    for program in range(heads * splits):
        work[program % len(work)] += -(-tiles // splits) + START
    return max(work)


@pytest.mark.parametrize("multiprocessors", [1, 16, 132])
@pytest.mark.parametrize("heads, tiles", [(1, 1), (1, 2048), (8, 1), (8, 16), (8, 2048), (100, 64), (128, 128), (263, 512), (264, 512), (265, 512), (1000, 100)])
def test_the_number_of_parts_is_the_best(heads, tiles, multiprocessors):
    def time(splits):
        waves = busiest(heads, tiles, multiprocessors, splits)
        return max(waves, heads * tiles / multiprocessors + START) + (MERGE if splits > 1 else 0), waves, splits

    assert splits_for(heads, tiles, multiprocessors) == min(map(time, range(1, min(tiles, PROGRAMS * multiprocessors) + 1)))[2]
