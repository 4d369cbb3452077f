"""Timing several functions against each other, in rounds: a device that has been working hard is slower than one that rested."""
import math
import statistics
import warnings

MOST_CALLS = 20  # in a slot; few enough that Python queues them while the device is still busy with what came before


def interleave(contenders, clock, rounds, slot_ms, limit_ms=math.inf, most_calls=MOST_CALLS):
    """Time every contender once in each of `rounds` rounds; each round begins with another contender.

    contenders: {name: prepare}, where prepare() returns the function to be timed, which is called without arguments.
    clock(fn, calls): milliseconds of one call, averaged over `calls` calls in a row. A contender is called once untimed
    (it may have to be compiled), and once to see how many calls take about slot_ms; so many, but
    at most most_calls, are one sample. If that one call takes more than limit_ms, there are no others.

    Returns {name: outcome} in the order of `contenders`. An outcome is {"time_ms": the median of the samples,
    "time_ms_min", "time_ms_max", "rounds", "calls": calls in a sample} or, for a contender that raised,
    {"out_of_memory": why} or {"refused": why}, and for one beyond the limit {"not_run": why}.
    """
    functions, calls, failures = {}, {}, {}
    for name, prepare in contenders.items():
        with warnings.catch_warnings(record=True) as heard:  # torch warns of why, then raises that it cannot
            warnings.simplefilter("always")
            try:
                fn = prepare()
                clock(fn, 1)
                once_ms = clock(fn, 1)
                if once_ms > limit_ms:
                    failures[name] = {"not_run": f"one call takes more than {limit_ms:.0f} ms"}
                else:
                    calls[name] = max(1, min(most_calls, round(slot_ms / once_ms)))
                    functions[name] = fn
            except Exception as error:  # whatever a library raises, the others go on
                failures[name] = failure(error, heard)
            fn = None  # what it holds can be freed
    samples = {name: [] for name in functions}
    for number in range(rounds):
        names = list(functions)
        for name in names[number % len(names) :] + names[: number % len(names)] if names else ():
            try:
                samples[name].append(clock(functions[name], calls[name]))
            except Exception as error:
                failures[name] = failure(error)
                del functions[name]
    return {name: failures.get(name) or summary(samples[name], calls[name]) for name in contenders}


def summary(samples, calls):
    """What is kept of the samples of one contender."""
    times = {"time_ms": statistics.median(samples), "time_ms_min": min(samples), "time_ms_max": max(samples)}
    return {**{key: float(f"{value:.5g}") for key, value in times.items()}, "rounds": len(samples), "calls": calls}


def failure(error, heard=()):
    """Why there is no time, in one line: the first line of the error and of each warning that came before it."""
    texts = [str(error) or type(error).__name__, *(str(warning.message) for warning in heard)]
    lines = [text.strip().splitlines()[0].split(" (Triggered internally")[0].strip() for text in texts if text.strip()]
    return {"out_of_memory" if type(error).__name__ == "OutOfMemoryError" else "refused": " | ".join(dict.fromkeys(lines))}
