"""The timeline is a schedule: no unit does two jobs at once, nothing starts before what it needs, and nothing idles."""
import itertools
from collections import defaultdict

import pytest

from flashedu.viz.schedule import LOADS, MATMUL, SOFTMAX, finish, run, utilisation, version_2, version_3

SHARES, LOAD_TIMES, STAGES = (0.0625, 0.25, 0.5, 1.0, 1.5, 2.0), (0.125, 0.5, 0.75, 1.0, 1.5), (1, 2, 3, 4)
WAYS = list(itertools.product((True, False), repeat=2))
UNITS = {"K": LOADS, "V": LOADS, "S": MATMUL, "PV": MATMUL, "exp": SOFTMAX}


def index(jobs):
    """Jobs by (name, consumer, tile), each once."""
    found = {(job.name, job.consumer, job.tile): job for job in jobs}
    assert len(found) == len(jobs)
    return found


def check(jobs, needs):
    """No overlap on a unit, needs first, and each job as early as its unit's last job and its needs allow."""
    found, last = index(jobs), defaultdict(float)
    for job in sorted(jobs, key=lambda job: (job.start, job.stop)):
        assert job.unit == UNITS[job.name]
        ready = max([0.0, *(found[need].stop for need in needs(job) if need in found)])
        assert job.start >= last[job.unit] and job.start >= ready, job
        assert job.start == max(last[job.unit], ready), f"{job} could start earlier"
        last[job.unit] = job.stop


@pytest.mark.parametrize("softmax, load", list(itertools.product(SHARES, LOAD_TIMES)))
def test_version_2_waits_for_what_it_needs(softmax, load):
    def needs(job):
        j = job.tile
        return {
            "K": [("S", "", j - 1), ("V", "", j - 1)],
            "V": [("PV", "", j - 1), ("K", "", j)],
            "S": [("K", "", j), ("PV", "", j - 1)],
            "exp": [("S", "", j), ("V", "", j)],
            "PV": [("exp", "", j), ("V", "", j)],
        }[job.name]

    jobs = version_2(5, softmax, load)
    assert len(jobs) == 25
    check(jobs, needs)
    computing = sorted((job.start, job.stop) for job in jobs if job.unit != LOADS)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(computing))  # one after the other


@pytest.mark.parametrize("softmax, load", list(itertools.product(SHARES, LOAD_TIMES)))
@pytest.mark.parametrize("ping_pong, inside", WAYS)
def test_version_3_waits_for_what_it_needs(softmax, load, ping_pong, inside):
    consumers = "AB" if ping_pong else "A"
    for stages in STAGES:
        def needs(job, stages=stages):
            who, j = job.consumer, job.tile
            return {
                "K": [("S", each, j - stages) for each in consumers],
                "V": [("PV", each, j - stages) for each in consumers],
                "S": [("K", "", j), ("exp" if inside else "PV", who, j - 1)],
                "exp": [("S", who, j), ("exp", who, j - 1)],
                "PV": [("V", "", j), ("exp", who, j)],
            }[job.name]

        jobs = version_3(5, softmax, load, stages, ping_pong, inside)
        assert len(jobs) == 5 * (2 + 3 * len(consumers))
        check(jobs, needs)
        for kind, user in (("K", "S"), ("V", "PV")):  # a ring never holds more than its buffers
            found = index(jobs)
            for time in sorted(job.start for job in jobs):
                held = [j for j in range(5) if found[kind, "", j].start <= time < max(found[user, who, j].stop for who in consumers)]
                assert len(held) <= stages


@pytest.mark.parametrize("softmax, load", list(itertools.product(SHARES, LOAD_TIMES)))
def test_both_versions_do_the_same_work_and_utilisation_is_busy_over_total(softmax, load):
    tiles = 6
    for jobs in (version_2(tiles, softmax, load), *(version_3(tiles, softmax, load, 2, *ways) for ways in WAYS)):
        for unit, work in ((MATMUL, 1.0), (SOFTMAX, softmax), (LOADS, load)):
            edges = sorted({edge for job in jobs for edge in (job.start, job.stop)})
            busy = sum(b - a for a, b in itertools.pairwise(edges) if any(job.unit == unit and job.start <= a < job.stop for job in jobs))
            assert busy == pytest.approx(tiles * work)
            assert utilisation(jobs, unit) == pytest.approx(busy / edges[-1])
        assert finish(jobs) == edges[-1] >= tiles * max(1.0, softmax, load)


@pytest.mark.parametrize("softmax, load, tiles", list(itertools.product(SHARES, LOAD_TIMES, (1, 4, 8))))
def test_version_2_in_closed_form(softmax, load, tiles):
    half = load / 2
    total = half + tiles * max(0.5, half) + (tiles - 1) * max(softmax + 0.5, half) + softmax + 0.5
    assert utilisation(version_2(tiles, softmax, load)) == pytest.approx(tiles / total)
    if load <= 1:  # hidden but for the first one
        assert utilisation(version_2(tiles, softmax, load)) == pytest.approx(tiles / (half + tiles * (1 + softmax)))


@pytest.mark.parametrize("softmax", SHARES)
def test_version_3_in_the_long_run(softmax):
    """Time for one more tile, with two buffers and loads that fit: what the busiest unit needs under ping-pong."""
    periods = {(True, False): max(1, softmax), (True, True): max(1, softmax), (False, True): 0.5 + max(softmax, 0.5), (False, False): 1 + softmax}
    for ways, period in periods.items():
        longer, shorter = (finish(version_3(tiles, softmax, 0.5, 2, *ways)) for tiles in (64, 32))
        assert (longer - shorter) / 32 == pytest.approx(period)


def test_cheap_exponentials_and_loads_leave_the_tensor_core_busy():
    assert utilisation(version_3(64, 1e-3, 1e-3, 2)) > 0.999
    assert utilisation(version_3(64, 1.0, 1e-3, 2)) > 0.98 > 0.51 > utilisation(version_2(64, 1.0, 1e-3))


@pytest.mark.parametrize("ping_pong, inside", WAYS)
def test_more_buffers_and_shorter_jobs_never_cost_time(ping_pong, inside):
    for softmax, load in itertools.product(SHARES, LOAD_TIMES):
        times = [finish(version_3(6, softmax, load, stages, ping_pong, inside)) for stages in STAGES]
        assert times == sorted(times, reverse=True)
    for stages, fixed in itertools.product(STAGES, (0.25, 1.0)):
        for times in ([finish(version_3(6, e, fixed, stages, ping_pong, inside)) for e in SHARES],
                      [finish(version_3(6, fixed, load, stages, ping_pong, inside)) for load in LOAD_TIMES]):
            assert times == sorted(times)


def test_one_buffer_costs_time_and_two_hide_the_loads():
    one, two = (utilisation(version_3(64, 0.5, 1.0, stages)) for stages in (1, 2))
    assert one < 0.7 < 0.98 < two


def test_jobs_that_wait_for_each_other_are_refused():
    a, b = ("S", "", 0), ("K", "", 0)
    with pytest.raises(ValueError, match="wait for each other"):
        run({MATMUL: [a], LOADS: [b]}, {"S": 1.0, "K": 1.0}, lambda name: [b if name == a else a])
