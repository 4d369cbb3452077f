"""Measures on a GPU what chapters 1 and 3 claim: the bytes and the time of naive and of flash attention.

    python tools/measure_traffic.py --out flashedu/results/h200_attention_traffic.json

It needs a CUDA GPU, torch, triton and Nsight Compute (`ncu`) with permission to read hardware counters.
The script runs itself a second time under ncu for the counters; every time_ms is taken without a profiler.
"""

import argparse
import csv
import datetime
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128  # one attention layer of Llama-3-8B
LENGTH = 8192
SWEEP = [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536]
STEPS = [("naive", "qk"), ("naive", "softmax"), ("naive", "pv"), ("flash", "fused")]
REPEATS = 3  # profiled launches of each kernel; the median is kept
SECTOR_BYTES = 32  # the unit in which the L2 cache counts

# field in the result: (counter of Nsight Compute, factor that turns it into the field's unit)
COUNTERS = {
    "hbm_read_bytes": ("dram__bytes_read.sum", 1),
    "hbm_written_bytes": ("dram__bytes_write.sum", 1),
    "l2_bytes": ("lts__t_bytes.sum", 1),
    "l2_from_sm_bytes": ("lts__t_sectors_srcunit_tex.sum", SECTOR_BYTES),
    "l2_from_sm_hit_bytes": ("lts__t_sectors_srcunit_tex_lookup_hit.sum", SECTOR_BYTES),
    "l2_from_other_partition_bytes": ("lts__t_sectors_srcunit_ltcfabric.sum", SECTOR_BYTES),
    "sm_received_bytes": ("l1tex__m_xbar2l1tex_read_bytes.sum", 1),
    "sm_sent_bytes": ("l1tex__m_l1tex2xbar_write_bytes.sum", 1),
    "spill_written_bytes": ("l1tex__t_bytes_pipe_lsu_mem_local_op_st.sum", 1),
    "profiled_ms": ("gpu__time_duration.sum", 1e-6),
}

METHOD = {
    "inputs": "Random normal bf16, batch 1, no mask. q is multiplied by 1/sqrt(head_dim) beforehand, so "
    "naive has no scaling pass. Naive gets k and v expanded to all query heads, flash as they are.",
    "naive": "Three eager torch kernels: s = q @ k.mT, p = softmax(s, -1), o = p @ v.",
    "flash": "scaled_dot_product_attention(enable_gqa=True) under sdpa_kernel(SDPBackend.FLASH_ATTENTION): "
    "FlashAttention-2.",
    "counters": "Nsight Compute, kernel replay, caches flushed before every pass, clocks left alone "
    f"(--clock-control none), medians over {REPEATS} launches after a warm-up launch.",
    "hbm_read_bytes, hbm_written_bytes": "dram__bytes_read.sum and dram__bytes_write.sum. Bytes that are "
    "still in the write-back L2 cache when the kernel ends are not counted.",
    "l2_bytes": "lts__t_bytes.sum: all traffic at the L2 slices, also that between the two L2 partitions.",
    "l2_from_sm_bytes": "lts__t_sectors_srcunit_tex.sum x 32 bytes: the part that the SMs asked for, as the "
    "slices count it; l2_from_sm_hit_bytes is what of it was found in L2.",
    "l2_from_other_partition_bytes": "lts__t_sectors_srcunit_ltcfabric.sum x 32 bytes.",
    "sm_received_bytes, sm_sent_bytes": "l1tex__m_xbar2l1tex_read_bytes.sum and "
    "l1tex__m_l1tex2xbar_write_bytes.sum: the same exchange counted at the SMs' end.",
    "spill_written_bytes": "l1tex__t_bytes_pipe_lsu_mem_local_op_st.sum: registers that a kernel had no room "
    "for, stored in local memory; part of sm_sent_bytes.",
    "profiled_ms": "gpu__time_duration.sum under the profiler, with cold caches.",
    "time_ms": "triton.testing.do_bench (200 ms of warm-up, 1 s of runs) without a profiler, forward only, "
    "median; L2 is flushed between runs. time_ms_p20 and time_ms_p80 are quantiles of the same runs.",
    "peak_bytes": "torch.cuda.max_memory_allocated during one forward pass, inputs included, workspaces that "
    "cuBLAS keeps not included; input_bytes is what the inputs alone hold.",
    "softmax_ms": "Median time of naive's softmax alone at that length.",
    "relative_error": "||o - o*|| / ||o*|| over head 0; o* is computed in float64 from the same inputs.",
    "ceilings": "Copy: 4 GiB device to device, bytes read plus bytes written. Matmul: 8192 x 8192 x 8192, "
    "bf16 random normal, a multiply-add counted as two, timed like everything else; its clock and power are "
    "what nvidia-smi said while it ran.",
}


def make_inputs(n):
    """Returns (q, k, v) for naive and (q, k, v) for flash; q is scaled, and naive's k and v are expanded."""
    import torch

    torch.manual_seed(0)
    options = {"device": "cuda", "dtype": torch.bfloat16}
    q = torch.randn(1, HEADS, n, HEAD_DIM, **options) * HEAD_DIM**-0.5
    k = torch.randn(1, KV_HEADS, n, HEAD_DIM, **options)
    v = torch.randn(1, KV_HEADS, n, HEAD_DIM, **options)
    group = HEADS // KV_HEADS
    return (q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)), (q, k, v)


def naive(q, k, v):
    """softmax(q k^T) v with both N x N matrices in HBM; q carries the scale already."""
    import torch

    return torch.softmax(q @ k.mT, -1) @ v


def flash(q, k, v):
    """The same function by torch's FlashAttention-2; main switches every other backend off."""
    from torch.nn.functional import scaled_dot_product_attention

    return scaled_dot_product_attention(q, k, v, scale=1.0, enable_gqa=True)


def steps(n):
    """Returns {(algorithm, step): a function that launches exactly that step} in the order of STEPS."""
    import torch

    (q, k, v), shared = make_inputs(n)
    s = q @ k.mT  # (1, H, N, N)
    p = torch.softmax(s, -1)
    return {
        ("naive", "qk"): lambda: q @ k.mT,
        ("naive", "softmax"): lambda: torch.softmax(s, -1),
        ("naive", "pv"): lambda: p @ v,
        ("flash", "fused"): lambda: flash(*shared),
    }


def run_profiled(n):
    """What runs under ncu: every step once unseen, then REPEATS times between profiler start and stop."""
    import torch

    launches = steps(n)
    for launch in launches.values():
        launch()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    for _ in range(REPEATS):
        for launch in launches.values():
            launch()
    torch.cuda.cudart().cudaProfilerStop()


def command_output(*command):
    """Runs a command and returns its standard output; a failure shows what the command printed."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"`{' '.join(map(str, command))}` failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def parse_ncu(text):
    """Turns ncu's CSV (page raw, base units) into one dict per launch: column name -> number or string."""
    lines = text.splitlines()
    header = next(i for i, line in enumerate(lines) if line.startswith('"ID"'))
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[header:]))))[1:]  # the first row holds the units

    def value(cell):
        try:
            return float(cell.replace(",", ""))
        except ValueError:
            return cell

    return [{name: value(cell) for name, cell in row.items() if cell is not None} for row in rows]


def summarise(rows):
    """Reduces rows of parse_ncu, in run_profiled's order, to {step: {kernel, field: median over REPEATS}}."""
    if len(rows) != len(STEPS) * REPEATS:
        names = [row["Kernel Name"] for row in rows]
        raise SystemExit(f"{len(rows)} kernels were profiled, expected {len(STEPS)} x {REPEATS}: {names}")
    table = {}
    for index, step in enumerate(STEPS):
        launches = rows[index :: len(STEPS)]
        table[step] = {"kernel": launches[0]["Kernel Name"]}
        for field, (counter, factor) in COUNTERS.items():
            median = statistics.median(row[counter] for row in launches) * factor
            table[step][field] = round(median, 4) if field.endswith("_ms") else round(median)
    return table


def count(n):
    """Profiles this very script under ncu and returns summarise's table."""
    with tempfile.TemporaryDirectory() as folder:
        report = str(Path(folder, "attention.ncu-rep"))
        metrics = ",".join(counter for counter, _ in COUNTERS.values())
        options = ["--profile-from-start", "off", "--clock-control", "none", "--metrics", metrics]
        child = [sys.executable, __file__, "--profiled", "--length", str(n)]
        command_output("ncu", "--force-overwrite", "-o", report, *options, *child)
        text = command_output("ncu", "-i", report, "--csv", "--page", "raw", "--print-units", "base")
    return summarise(parse_ncu(text))


def time_ms(launch):
    """Median, 0.2 and 0.8 quantile of the time of one launch in milliseconds, as fields of a result."""
    from triton.testing import do_bench

    quantiles = do_bench(launch, warmup=200, rep=1000, quantiles=[0.5, 0.2, 0.8])
    return dict(zip(["time_ms", "time_ms_p20", "time_ms_p80"], (round(t, 5) for t in quantiles), strict=True))


def measure_one(function, inputs):
    """Time and peak memory of one forward pass; {"out_of_memory": the message} where it does not fit."""
    import torch

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before_bytes = torch.cuda.memory_allocated()  # the inputs, and workspaces that libraries keep
    input_bytes = sum(x.nbytes for x in inputs)
    try:
        function(*inputs)
        peak_bytes = torch.cuda.max_memory_allocated() - before_bytes + input_bytes
        return {**time_ms(lambda: function(*inputs)), "peak_bytes": peak_bytes, "input_bytes": input_bytes}
    except torch.cuda.OutOfMemoryError as error:
        return {"out_of_memory": str(error).split(" GPU 0")[0]}


def softmax_ms(n):
    """Time of naive's softmax alone."""
    import torch

    s = torch.randn(1, HEADS, n, n, device="cuda", dtype=torch.bfloat16)
    return time_ms(lambda: torch.softmax(s, -1))["time_ms"]


def sweep(lengths):
    """Time and peak memory of naive and flash for each length; each has only its own inputs on the device."""
    rows = []
    for n in lengths:
        row = {"n": n}
        for which, (name, function) in enumerate({"naive": naive, "flash": flash}.items()):
            inputs = make_inputs(n)[which]
            row[name] = measure_one(function, inputs)
            del inputs
        if "time_ms" in row["naive"]:
            row["naive"]["softmax_ms"] = softmax_ms(n)
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def ceilings():
    """What this device reaches at best: a large copy, and a large bf16 matrix product."""
    import torch

    source = torch.randn(2**30, device="cuda")  # 4 GiB
    target = torch.empty_like(source)
    copy_ms = time_ms(lambda: target.copy_(source))["time_ms"]
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    matmul_ms = time_ms(lambda: a @ b)["time_ms"]
    for _ in range(round(2000 / matmul_ms)):  # two seconds of work, queued
        torch.matmul(a, b)
    load = command_output("nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits")
    sm_clock_mhz, power_w = map(float, load.splitlines()[0].split(","))
    return {
        "copy_ms": copy_ms,
        "copy_bytes_per_s": round(2 * source.nbytes / copy_ms * 1e3, -7),
        "matmul_ms": matmul_ms,
        "matmul_flops_per_s": round(2 * 8192**3 / matmul_ms * 1e3, -10),
        "matmul_sm_clock_mhz": sm_clock_mhz,
        "matmul_power_w": power_w,
    }


def agreement(n):
    """Relative error of naive and of flash on head 0, against float64."""
    import torch

    for_naive, for_flash = make_inputs(n)
    q, k, v = (x[0, 0].double() for x in for_flash)
    exact = torch.softmax(q @ k.mT, -1) @ v  # (N, D)
    outputs = {"naive": naive(*for_naive), "flash": flash(*for_flash)}
    return {name: float(f"{(o[0, 0] - exact).norm() / exact.norm():.3g}") for name, o in outputs.items()}


def environment():
    """The device and the versions of everything that took part."""
    import torch
    import triton

    device = torch.cuda.get_device_properties(0)
    driver = command_output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return {
        "device": device.name,
        "sm_count": device.multi_processor_count,
        "l2_capacity_bytes": device.L2_cache_size,
        "hbm_capacity_bytes": device.total_memory,
        "driver": driver.split()[0],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
        "ncu": command_output("ncu", "--version").split("Version")[-1].split()[0],
        "python": platform.python_version(),
    }


def measure(n, lengths):
    """The whole experiment; the counters come first, while the device's memory is still free."""
    import torch

    table = count(n)
    timed = {label: time_ms(launch) for label, launch in steps(n).items()}
    torch.cuda.empty_cache()
    kernels = []
    for (algorithm, step), times in timed.items():
        kernels.append({"algorithm": algorithm, "step": step, **table[algorithm, step], **times})
    names = ("hbm_read_bytes", "hbm_written_bytes", "l2_bytes", "time_ms")
    totals = {}
    for algorithm in ("naive", "flash"):
        rows = [row for row in kernels if row["algorithm"] == algorithm]
        totals[algorithm] = {field: round(sum(row[field] for row in rows), 5) for field in names}
    return {
        "what": "Bytes, time and memory of naive and of flash attention: forward, one layer of Llama-3-8B.",
        "date": datetime.date.today().isoformat(),
        "environment": environment(),
        "made_by": "tools/measure_traffic.py",
        "method": METHOD,
        "shape": {"heads": HEADS, "kv_heads": KV_HEADS, "n": n, "head_dim": HEAD_DIM, "itemsize_bytes": 2},
        "ceilings": ceilings(),
        "kernels": kernels,
        "totals": totals,
        "relative_error": agreement(n),
        "sweep": sweep(lengths),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    parser.add_argument("--length", type=int, default=LENGTH, help="tokens, for the counters")
    parser.add_argument("--sweep", type=int, nargs="*", default=SWEEP, help="tokens, for the curves")
    parser.add_argument("--profiled", action="store_true", help="the child mode that runs under ncu")
    options = parser.parse_args()
    if options.out is None and not options.profiled:
        parser.error("--out is missing: the JSON file to write")
    os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"  # lets S and P of N = 32768 share 140 GiB
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # outside flash: it would count in a short time
        if options.profiled:
            run_profiled(options.length)
            return
        result = measure(options.length, options.sweep)
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    for row in result["kernels"]:
        print({name: cell for name, cell in row.items() if name != "kernel"})


if __name__ == "__main__":
    main()
