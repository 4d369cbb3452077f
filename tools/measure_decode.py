"""Measures one decoding step's attention on a GPU: how much of the memory's bandwidth it reaches at cache lengths up to 131,072.

    python tools/measure_decode.py --out flashedu/results
    python tools/measure_decode.py --tune

It needs a CUDA GPU, torch and triton. With --tune it prints the times of our kernel with other tiles, and writes nothing.
"""
import argparse
import itertools
import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from flashedu.bench import contenders, ladder, speed
from flashedu.bench.result import result, write
from flashedu.bench.rounds import MOST_CALLS, interleave
from flashedu.cost import kv_cache_bytes

HEADS, KV_HEADS, HEAD_DIM, ITEMSIZE = 32, 8, 128, 2  # a layer of Llama-3-8B, bfloat16
PROBLEMS = (*((1, 1024 * 2**i) for i in range(8)), (16, 1024), (16, 4096), (16, 16384))  # batch, tokens in the cache
LARGEST = (1, 131_072)
SPLITS = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 64, 96, 128, 256)
TILES = tuple(itertools.product((32, 64, 128), (4, 8), (2, 3, 4)))  # rows of keys, warps, stages
PLACES = (1, 2, 3, 4)  # programs on a multiprocessor
ROUNDS, SLOT_MS, FILL = 7, 5, 3
COPY_BYTES = 2**30
COLD = 4  # times the L2 cache's size, which the caches that are read in turn have together

METHOD = {
    "shapes": f"q (batch, {HEADS}, 1, {HEAD_DIM}), k and v (batch, {KV_HEADS}, n, {HEAD_DIM}), contiguous, bfloat16, random normal: one new token of every sequence, "
    "one layer. No mask: the last query sees every key.",
    "rounds": "For every problem there are several rounds, and in each of them every contender is timed once, one after the other; each round begins with "
    f"another contender. A sample is the mean over `calls` calls in a row, as many as take about {SLOT_MS} ms, at most {MOST_CALLS}, between two CUDA "
    f"events; the device is kept busy with {2 * FILL} matrix products while they are queued, so that Python's share is not in it. time_ms is the median "
    "of the samples, time_ms_min and time_ms_max are the extremes.",
    "cold": f"Every call reads another cache than the call before, in turn, of so many that together they are at least {COLD} times as large as L2, and "
    "at least two: a model's layers have caches of their own, too.",
    "hbm_bytes": "k and v read once, q read and o written once. bytes_per_s = hbm_bytes / time_ms, whoever computes it, whatever it moved in fact.",
    "copy": f"x.copy_(y) of {COPY_BYTES:,} bytes, a contender in every problem's rounds, credited with reading and writing them; of_copy is the ratio of "
    "bytes_per_s to its bytes_per_s in the same rounds.",
    "decode": "flashedu.kernels.decode.decode_attention with the number of parts that it chooses (splits).",
    "one_part": "The same kernel with splits=1: a program for each key head, and nothing to merge.",
    "torch": "torch's scaled_dot_product_attention(enable_gqa=True), which picks a backend.",
    "fa2, cudnn, efficient": "The same with that backend alone allowed: FLASH_ATTENTION (FlashAttention-2), CUDNN_ATTENTION, EFFICIENT_ATTENTION.",
    "naive": "Separate operations of torch, in bfloat16, the queries of a group side by side: s = (q * scale) @ k.mT, p = softmax(s, -1), o = p @ v.",
    "kernels": f"What was launched on the device for one call at batch {LARGEST[0]}, n = {LARGEST[1]:,}, with its grid, as torch's profiler saw it.",
    "experiment": f"lengths: all contenders. splits: decode_attention with other numbers of parts, at batch {LARGEST[0]}, n = {LARGEST[1]:,}.",
    "relative_error": "||o - o*|| / ||o*|| over the last head of the last sequence; o* is naive attention in float64 on the same inputs.",
    "out_of_memory, refused": "Why a contender has no time: what it raised, with the warnings before it.",
}


def inputs(batch, n):
    """q, and caches (k, v) enough that reading them in turn finds nothing in L2."""
    import torch

    torch.manual_seed(0)
    make = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    count = max(2, -(-COLD * torch.cuda.get_device_properties(0).L2_cache_size // (batch * kv_cache_bytes(n, 1, KV_HEADS, HEAD_DIM, ITEMSIZE))))
    return make(batch, HEADS, 1, HEAD_DIM), [tuple(make(2, batch, KV_HEADS, n, HEAD_DIM)) for _ in range(count)]


def by_torch(backend, q, k, v):
    """torch's fused attention by that backend, or by the one that it picks."""
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    if backend is None:
        return scaled_dot_product_attention(q, k, v, enable_gqa=True)
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(q, k, v, enable_gqa=True)


def naive(q, k, v):
    """Attention as separate operations, each key read once for its group."""
    import torch

    rows = q.reshape(*k.shape[:2], -1, q.shape[-1])  # (B, Hkv, group, D)
    p = torch.softmax((rows * q.shape[-1] ** -0.5) @ k.mT, -1)  # (B, Hkv, group, N)
    return (p @ v).reshape(q.shape)


def ours(q, k, v, splits=None, tile=None):
    from flashedu.kernels.decode import decode_attention

    return decode_attention(q, k, v, splits=splits, tile=tile)[0]


def chosen_splits(batch, n):
    """The number of parts that decode_attention chooses."""
    import torch

    from flashedu.kernels.tiles import DECODE, pick
    from flashedu.splits import splits_for

    tile = pick(DECODE, torch.empty(1, HEAD_DIM, device="cuda", dtype=torch.bfloat16))
    return splits_for(batch * KV_HEADS, -(-n // tile.block_k), multiprocessors())


def multiprocessors():
    import torch

    return torch.cuda.get_device_properties(0).multi_processor_count


def attentions():
    """{name: attend(q, k, v)} for every contender."""
    from torch.nn.attention import SDPBackend

    return {
        "decode": ours,
        "one_part": partial(ours, splits=1),
        "torch": partial(by_torch, None),
        "fa2": partial(by_torch, SDPBackend.FLASH_ATTENTION),
        "cudnn": partial(by_torch, SDPBackend.CUDNN_ATTENTION),
        "efficient": partial(by_torch, SDPBackend.EFFICIENT_ATTENTION),
        "naive": naive,
    }


def in_turn(attend, q, caches):
    """A function that attends to another cache in every call."""
    turns = itertools.cycle(caches)
    return lambda: attend(q, *next(turns))


def copy():
    """A copy within the device's memory, ready to run."""
    import torch

    source, target = (torch.zeros(COPY_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2))
    return lambda: target.copy_(source)


def launched(fn):
    """The kernels that one call launches, each with its grid; empty where the profiler sees none."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    try:
        with tempfile.TemporaryDirectory() as folder:
            with profile(activities=[ProfilerActivity.CUDA]) as profiler:
                fn()
                torch.cuda.synchronize()
            profiler.export_chrome_trace(f"{folder}/trace.json")
            events = json.loads(Path(folder, "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    except Exception:  # not every machine lets itself be profiled, and the times are there already
        return []
    kernels = sorted((event for event in events if event.get("cat") == "kernel"), key=lambda event: event["ts"])
    return [{"name": event["name"][:160], "grid": event["args"].get("grid")} for event in kernels]


def measure(experiment, batch, n, trials, duplicate, clock, rounds=None):
    """Rows of one problem. trials: {name: (attend, what a row says of it)}; duplicate is the copy that all are compared with."""
    q, caches = inputs(batch, n)
    prepared = {name: partial(in_turn, attend, q, caches) for name, (attend, _) in trials.items()}
    outcomes = interleave({"copy": lambda: duplicate, **prepared}, clock, rounds or ROUNDS, SLOT_MS)
    rate = 2 * COPY_BYTES / outcomes["copy"]["time_ms"] * 1e3
    where, right = ladder.exact_rows(q, *caches[0], False)
    rows = []
    for name, outcome in outcomes.items():
        attend, more = trials.get(name, (None, {}))
        hbm_bytes = batch * (kv_cache_bytes(n, 1, KV_HEADS, HEAD_DIM, ITEMSIZE) + 2 * HEADS * HEAD_DIM * ITEMSIZE) if attend else 2 * COPY_BYTES
        row = {"experiment": experiment, "batch": batch, "n": n, "contender": name if experiment == "lengths" or not attend else "decode", **more}
        row |= {"hbm_bytes": hbm_bytes, **outcome}
        if "time_ms" in outcome:
            reached = hbm_bytes / outcome["time_ms"] * 1e3
            row |= {"bytes_per_s": float(f"{reached:.5g}"), "of_copy": float(f"{reached / rate:.4g}")}
            if attend:
                row["relative_error"] = ladder.relative_error(attend(q, *caches[0]), where, right)
                if experiment == "lengths" and (batch, n) == LARGEST:
                    row["kernels"] = launched(partial(attend, q, *caches[0]))
        rows.append(row)
        show(row)
    return rows


def by_length(batch, n, duplicate, clock):
    """Rows of all contenders."""
    splits = {"decode": chosen_splits(batch, n), "one_part": 1}
    trials = {name: (attend, {"splits": splits[name]} if name in splits else {}) for name, attend in attentions().items()}
    return measure("lengths", batch, n, trials, duplicate, clock)


def by_splits(duplicate, clock):
    """Rows of our kernel with other numbers of parts."""
    trials = {splits: (partial(ours, splits=splits), {"splits": splits}) for splits in SPLITS}
    return measure("splits", *LARGEST, trials, duplicate, clock)


def by_tile(duplicate, clock):
    """Rows of our kernel with other tiles, each with as many parts as fill the device's places, the fastest last."""
    from flashedu.kernels.tiles import Tile

    trials = {}
    for (block_k, warps, stages), programs in itertools.product(TILES, PLACES):
        splits = max(2, programs * multiprocessors() // (LARGEST[0] * KV_HEADS))
        tile = Tile(64, block_k, warps, stages)
        trials[tile, programs] = (partial(ours, splits=splits, tile=tile), {"tile": list(tile), "programs": programs, "splits": splits})
    compile_ahead([attend for (_, programs), (attend, _) in trials.items() if programs == PLACES[0]])
    rows = measure("tiles", *LARGEST, trials, duplicate, clock, rounds=3)
    return sorted(rows, key=lambda row: -row.get("time_ms", float("inf")))


def compile_ahead(attends):
    """Launch each kernel once, several at a time. What fails here fails again where it is timed, and is reported then."""
    import torch

    q, caches = inputs(*LARGEST)

    def launch(attend):
        torch.cuda.set_device(0)  # in this thread
        attend(q, *caches[0])

    with ThreadPoolExecutor() as threads:
        threads.submit(launch, attends[0]).exception()  # alone: it starts Triton
        for attend in attends[1:]:
            threads.submit(launch, attend)
    torch.cuda.synchronize()


def show(row):
    """A row in a line."""
    name = f"{row['experiment']:8} batch {row['batch']:>2}, n {row['n']:>7,}: {row['contender']:9}"
    more = "".join(f" {key} {row[key]}" for key in ("splits", "tile", "programs") if key in row)
    if "time_ms" not in row:
        print(name + more, *(f"{why}: {row[why]}" for why in ("refused", "out_of_memory") if why in row), flush=True)
        return
    print(f"{name}{1e3 * row['time_ms']:9.1f} us {row['bytes_per_s'] / 1e12:6.3f} TB/s {100 * row['of_copy']:6.1f}% of a copy{more}",
          *(f"\n    {kernel['name']} {kernel['grid']}" for kernel in row.get("kernels", ())), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="the folder to write the file into")
    parser.add_argument("--tune", action="store_true", help="other tiles, printed, the fastest last")
    options = parser.parse_args()
    if options.out is None and not options.tune:
        parser.error("--out is missing: the folder to write the file into")
    sentence = speed.missing()
    if sentence:
        raise SystemExit(sentence)
    matmul, duplicate = contenders.matmul(), copy()
    clock = contenders.device_clock(lambda: [matmul() for _ in range(FILL)])
    if options.tune:
        rows = by_tile(duplicate, clock)
        print("\nThe fastest last:")
        for row in rows:
            show(row)
        return
    rows = [row for batch, n in PROBLEMS for row in by_length(batch, n, duplicate, clock)]
    rows += by_splits(duplicate, clock)
    what = "Time of attention of one new token over a cache of keys and values on one GPU, by cache length and by number of parts, beside a copy."
    options.out.mkdir(parents=True, exist_ok=True)
    print(write(options.out, "decode", result(what, "tools/measure_decode.py", METHOD, rows)))


if __name__ == "__main__":
    main()
