"""Measures on a GPU what the rungs of the ladder do to the hardware: bytes, and how busy the tensor cores and the unit of exp are.

    python tools/measure_counters.py --out flashedu/results

It needs a GPU of compute capability 9.0, torch, triton and Nsight Compute (`ncu`) with permission to read hardware
counters. The script runs itself a second time under ncu. Chapter 6 shows the result beside the times of
`python -m flashedu bench --ladder`, which are taken without a profiler.
"""
import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import measure_traffic
from measure_fp8 import fp8_call

from flashedu.bench import contenders, speed
from flashedu.bench.result import result, write

N, HEAD_DIM = 8192, 128
REPEATS = 3  # profiled calls of each rung; the median is kept
MARK = "spin_kernel"  # torch's kernel that waits: one before every call
SUMS = {name: measure_traffic.COUNTERS[name] for name in ("hbm_read_bytes", "hbm_written_bytes", "l2_bytes", "spill_written_bytes", "profiled_ms")}
SHARES = {
    "tensor_busy": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "exp_unit_busy": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_elapsed",
}

METHOD = {
    "shapes": f"q, k, v (batch, heads, {N}, {HEAD_DIM}), bfloat16, random normal, no mask; batch * n = {speed.TOKENS:,}, heads * head_dim = {speed.WIDTH:,}.",
    "contender": "As in h200_ladder.json. fp8: flashedu.kernels.hopper_fp8 on inputs that were rounded beforehand.",
    "counters": f"Nsight Compute, kernel replay, caches flushed before every pass, clocks left alone (--clock-control none), medians over {REPEATS} calls after "
    "one that is not profiled. A call may launch several kernels (kernels): bytes and profiled_ms are sums, and the shares are means weighted with time.",
    "hbm_read_bytes, hbm_written_bytes": "dram__bytes_read.sum and dram__bytes_write.sum. Bytes that are still in the write-back L2 cache when a kernel ends are not counted.",
    "l2_bytes": "lts__t_bytes.sum: all traffic at the L2 slices, also that between the two L2 partitions.",
    "spill_written_bytes": "l1tex__t_bytes_pipe_lsu_mem_local_op_st.sum: registers that a kernel had no room for, stored in local memory.",
    "profiled_ms": "gpu__time_duration.sum under the profiler, with cold caches.",
    "tensor_busy": f"{SHARES['tensor_busy']} / 100: the share of the kernel's cycles in which the tensor cores work.",
    "exp_unit_busy": f"{SHARES['exp_unit_busy']} / 100: the share of its peak at which the unit that computes exp2 is given instructions; it converts numbers as well.",
    "least_bytes": "q, k and v read once and o written once.",
}


def calls():
    """{rung: a call without arguments}."""
    q, k, v, _ = contenders.random_inputs(speed.TOKENS // N, speed.WIDTH // HEAD_DIM, N, HEAD_DIM)
    found = {name: lambda attend=attend: attend(q, k, v) for name, attend in contenders.rungs(N, False).items()}
    return {**found, "fp8": fp8_call(q, k, v, False)}


def run_profiled():
    """What runs under ncu: every rung once unseen, then REPEATS times between profiler start and stop, each behind a mark."""
    import torch

    found = calls()
    for call in found.values():
        call()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    for _ in range(REPEATS):
        for call in found.values():
            torch.cuda._sleep(1)
            call()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


def divided(rows):
    """The rows of `parse_ncu`, which are launches in their order, as a list for each mark of those that follow it."""
    parts = []
    for row in rows:
        if MARK in row["Kernel Name"]:
            parts.append([])
        elif parts:
            parts[-1].append(row)
        else:
            raise SystemExit(f"{row['Kernel Name']} was launched before the first mark, {MARK}.")
    return parts


def one_call(launches):
    """What the launches of one call did together."""
    times = [row[SUMS["profiled_ms"][0]] for row in launches]
    summed = {field: sum(row[counter] for row in launches) * factor for field, (counter, factor) in SUMS.items()}
    shares = {field: sum(row[counter] * time for row, time in zip(launches, times)) / sum(times) / 100 for field, counter in SHARES.items()}
    return {**summed, **shares}


def summarise(parts, names):
    """Rows of the result: for each rung the median over its REPEATS calls; `parts` is what `divided` returned."""
    if len(parts) != REPEATS * len(names) or not all(parts):
        raise SystemExit(f"{[len(part) for part in parts]} kernels were profiled behind the marks, for {REPEATS} times {', '.join(names)}.")
    table = []
    for i, name in enumerate(names):
        own = parts[i :: len(names)]
        row = {"contender": name, "kernels": [launch["Kernel Name"][:120] for launch in own[0]]}
        for field in (*SUMS, *SHARES):
            median = statistics.median(one_call(launches)[field] for launches in own)
            row[field] = round(median) if field.endswith("_bytes") else round(median, 4)
        table.append(row)
    return table


def count(names):
    """Profile this very script under ncu."""
    with tempfile.TemporaryDirectory() as folder:
        report = str(Path(folder, "ladder.ncu-rep"))
        metrics = ",".join([*(counter for counter, _ in SUMS.values()), *SHARES.values()])
        options = ["--profile-from-start", "off", "--clock-control", "none", "--metrics", metrics]
        measure_traffic.command_output("ncu", "--force-overwrite", "-o", report, *options, sys.executable, __file__, "--profiled")
        text = measure_traffic.command_output("ncu", "-i", report, "--csv", "--page", "raw", "--print-units", "base")
    return summarise(divided(measure_traffic.parse_ncu(text)), names)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="the folder to write the file into")
    parser.add_argument("--profiled", action="store_true", help="the child mode that runs under ncu")
    options = parser.parse_args()
    sentence = speed.missing()
    if sentence:
        raise SystemExit(sentence)
    if options.profiled:
        return run_profiled()
    if options.out is None:
        parser.error("--out is missing: the folder to write the file into")
    least = 4 * speed.TOKENS * speed.WIDTH * 2
    rows = [{"head_dim": HEAD_DIM, "n": N, "least_bytes": least, **row} for row in count([*contenders.RUNGS, "fp8"])]
    what = "What forward attention does to the hardware of one GPU, for each rung of the ladder: bytes, tensor cores, the unit of exp."
    measured = result(what, "tools/measure_counters.py", METHOD, rows)
    measured["environment"]["ncu"] = measure_traffic.environment()["ncu"]
    options.out.mkdir(parents=True, exist_ok=True)
    print(write(options.out, "counters", measured))
    for row in rows:
        print({name: cell for name, cell in row.items() if name != "kernels"}, len(row["kernels"]), "kernels")


if __name__ == "__main__":
    main()
