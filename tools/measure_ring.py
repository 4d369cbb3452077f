"""Measures ring attention on the GPUs of one host against one of them: is it right, how much faster, and is communication hidden.

    python tools/measure_ring.py --out flashedu/results            two GPUs, in about two minutes
    python tools/measure_ring.py --dry-run --out /tmp/ring         the same program on the CPU, with tiny sizes

It needs torch, triton and two CUDA GPUs (or as many as --gpus says), and writes one file into the folder.
"""
import argparse
import datetime
import statistics
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

from flashedu import ring
from flashedu.bench.result import result, write
from flashedu.cost import attention_flops
from flashedu.exactness import Bound, attention_bounds
from flashedu.gradient_bounds import gradient_bounds
from flashedu.kernels import flash_attention
from flashedu.ring import ring_attention, shard, unshard

SHAPE = {"n": 131_072, "heads": 16, "kv_heads": 4, "head_dim": 128}
TINY = {"n": 256, "heads": 4, "kv_heads": 2, "head_dim": 16}
ROUNDS, TIMEOUT_S = 7, 120
BLOCK_K = 64  # no kernel has smaller tiles of keys at this head dimension
RESULTS = ("o", "lse", "dq", "dk", "dv")

METHOD = {
    "shapes": f"Batch 1, {SHAPE['heads']} query heads, {SHAPE['kv_heads']} key heads, head_dim {SHAPE['head_dim']}, n = {SHAPE['n']:,}, causal, bfloat16, "
    "random normal. In a ring every GPU holds two chunks of the sequence, one from each end (flashedu.ring.shard).",
    "one_gpu": "flashedu.kernels.flash_attention on the whole sequence, on one GPU, while the others rest.",
    "ring": "flashedu.ring.ring_attention on all GPUs, one process each, over NCCL.",
    "ring_that_waits": "The same, but every message is waited for before the step that it could travel during.",
    "ring_without_messages": "The same work without messages: every process computes each step on its own keys (and gives a wrong answer).",
    "phase": "forward; backward alone, by torch.autograd.grad(o, (q, k, v), do, retain_graph=True) on one graph.",
    "time_ms": f"Wall clock from a barrier, with idle GPUs, until the GPU of the slowest process is idle again. There are {ROUNDS} rounds, after one that is not "
    "counted; in each every contender runs once, and each round begins with another one. time_ms is the median, time_ms_min and time_ms_max are the extremes.",
    "flops": "Credited FLOPs: 2 n^2 head_dim for each query head forward, 2.5 times as much backward. flops_per_s = flops / time_ms, of all GPUs together.",
    "speedup": "one_gpu's time_ms over this one's, in the same rounds.",
    "message": "One step of the ring alone: keys and values of one process to the next, all processes at once. bytes_per_s is what each of them sends.",
    "error_over_bound": "Largest error in units of what rounding alone may cause (flashedu.exactness, flashedu.gradient_bounds): o, lse and dq in some rows of "
    "two heads, dk and dv everywhere, for a do that is 0 but in these rows.",
}


class Silent(ring.Ring):
    """Sends nothing: what would arrive is what is there already."""

    def pass_on(self, x, tag, arriving=None):
        return [], x, x


class Patient(ring.Ring):
    """Waits for a message as soon as it is under way."""

    def pass_on(self, x, tag, arriving=None):
        return [], self.arrived(super().pass_on(x, tag, arriving)), x


RINGS = {"ring": ring.Ring, "ring_that_waits": Patient, "ring_without_messages": Silent}


def inputs(n, heads, kv_heads, head_dim, device):
    """q, k, v and do, the same in every process."""
    source = torch.Generator(device).manual_seed(0)
    return [torch.randn(1, h, n, head_dim, generator=source, device=device, dtype=torch.bfloat16) for h in (heads, kv_heads, kv_heads, heads)]


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def clock(fn, device):
    """Milliseconds of fn() in the slowest process."""
    dist.barrier()
    synchronize(device)
    start = time.perf_counter()
    fn()
    synchronize(device)
    spent_ms = torch.tensor(1e3 * (time.perf_counter() - start), device=device)
    dist.all_reduce(spent_ms, dist.ReduceOp.MAX)
    return float(spent_ms)


def interleave(functions, device):
    """{name: milliseconds of each round}."""
    samples, names = {name: [] for name in functions}, list(functions)
    for number in range(-1, ROUNDS):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            spent_ms = clock(functions[name], device)
            if number >= 0:
                samples[name].append(spent_ms)
    return samples


def attends(rank):
    """{contender: (attend(q, k, v), whether it takes whole sequences)}; one_gpu is that of rank 0."""
    def by(kind, q, k, v):
        with mock.patch.object(ring, "Ring", kind):
            return ring_attention(q, k, v, causal=True, timeout_s=TIMEOUT_S)

    alone = partial(flash_attention, causal=True) if rank == 0 else None
    return {"one_gpu": (alone, True), **{name: (partial(by, kind), False) for name, kind in RINGS.items()}}


def measure(whole, own, shape, device, rank, world):
    """Rows (phase, contender); whole and own are q, k, v, do of the sequence and of this process."""
    forward, backward = {}, {}
    for name, (attend, takes_whole) in attends(rank).items():
        *qkv, do = whole if takes_whole else own
        forward[name] = partial(attend, *qkv) if attend else lambda: None
        backward[name] = lambda: None
        if attend:
            leaves = [x.detach().requires_grad_() for x in qkv]
            backward[name] = partial(torch.autograd.grad, attend(*leaves), leaves, do, retain_graph=True)
    rows = []
    for phase, functions, factor in (("forward", forward, 1), ("backward", backward, 2.5)):
        samples = interleave(functions, device)
        flops = int(factor * attention_flops(shape["n"], shape["n"], shape["head_dim"], shape["heads"]) // 2)
        alone_ms = statistics.median(samples["one_gpu"])
        for name, values in samples.items():
            time_ms = statistics.median(values)
            row = {"phase": phase, "contender": name, "gpus": 1 if name == "one_gpu" else world, **shape, **times(values)}
            rows.append(row | {"flops": flops, "flops_per_s": short(flops / time_ms * 1e3), "speedup": short(alone_ms / time_ms)})
    return rows


def times(values):
    spread = {"time_ms": statistics.median(values), "time_ms_min": min(values), "time_ms_max": max(values)}
    return {**{name: short(value) for name, value in spread.items()}, "rounds": len(values)}


def short(value):
    return float(f"{value:.5g}")


def measure_message(own, device):
    """The row of one message: this process's keys and values, to the next process."""
    here, kv = ring.Ring(None, TIMEOUT_S), torch.stack(own[1:3])
    samples = interleave({"message": lambda: here.arrived(here.pass_on(kv, ring.KEYS))}, device)["message"]
    size_bytes = kv.numel() * kv.element_size()
    rate = short(size_bytes / statistics.median(samples) * 1e3)
    return {"phase": "message", "contender": "ring", "message_bytes": size_bytes, **times(samples), "bytes_per_s": rate}


def sampled(n, world):
    """Rows that are looked at: the ends of the sequence and of chunks."""
    return sorted({0, 1, n // (2 * world) - 1, n // 2, n - 1})


def gathered(x, rank, world):
    """The whole sequence in rank 0, from the shards of all."""
    shards = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(world)]
    dist.all_gather(shards, x.contiguous())
    return unshard(shards, causal=True) if rank == 0 else None


def check(whole, device, rank, world):
    """{contender: {result: largest error over bound}} in rank 0, for the ring and for one GPU."""
    (q, k, v, do), rows, heads = whole, sampled(whole[0].shape[2], world), (0, whole[0].shape[1] - 1)
    sparse = torch.zeros_like(do)
    for h in heads:
        sparse[:, h, rows] = do[:, h, rows]
    leaves = [shard(x, rank, world, causal=True).requires_grad_() for x in (q, k, v)]
    o, lse = ring_attention(*leaves, causal=True, return_lse=True, timeout_s=TIMEOUT_S)
    gradients = torch.autograd.grad(o, leaves, shard(sparse, rank, world, causal=True))
    found = {"ring": [gathered(x.detach(), rank, world) for x in (o, lse, *gradients)]}
    if rank == 0:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        o, lse = flash_attention(*leaves, causal=True, return_lse=True)
        found["one_gpu"] = [x.detach() for x in (o, lse, *torch.autograd.grad(o, leaves, sparse))]
        return judge(q, k, v, sparse, rows, heads, found)
    return None


def judge(q, k, v, do, rows, heads, found):
    """{contender: {result: largest error over bound}}: o, lse and dq in these rows and heads, dk and dv of all keys."""
    array = lambda x: x.to("cpu", torch.float32).numpy()  # noqa: E731
    group, ratios = q.shape[1] // k.shape[1], {name: dict.fromkeys(RESULTS, 0.0) for name in found}
    for h in heads:
        k_h, v_h = (array(x[0, h // group]) for x in (k, v))
        sums = {name: (np.zeros(k_h.shape), np.zeros(k_h.shape)) for name in ("dk", "dv")}  # exact, bound
        for i in rows:
            qkv = array(q[0, h, i : i + 1]), k_h[: i + 1], v_h[: i + 1]
            options = {"block_k": BLOCK_K, "dtype": "bfloat16"}
            dq, *shared = gradient_bounds(*qkv, array(do[0, h, i : i + 1]), **options)
            limits = dict(zip(RESULTS, (*attention_bounds(*qkv, **options), dq)))
            for contender, values in found.items():
                for name, value in zip(RESULTS, values):
                    if name in limits:
                        ratios[contender][name] = max(ratios[contender][name], limits[name].ratio(array(value[0, h, i : i + 1])))
            for name, part in zip(sums, shared, strict=True):
                sums[name][0][: i + 1] += part.exact
                sums[name][1][: i + 1] += part.bound
        for contender, values in found.items():
            for name, value in zip(("dk", "dv"), values[3:], strict=True):
                ratio = Bound(*sums[name]).ratio(array(value[0, h // group]))
                ratios[contender][name] = max(ratios[contender][name], ratio)
    return {contender: {name: float(f"{ratio:.3g}") for name, ratio in each.items()} for contender, each in ratios.items()}


def link():
    """How nvidia-smi calls what connects the first two GPUs, such as NV18."""
    table = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=False).stdout
    rows = [line.split("\t") for line in table.splitlines() if line.startswith("GPU0")]
    return rows[0][2].strip() if rows and len(rows[0]) > 2 else "not told"


def process(rank, world, dry_run, out, folder):
    """What each process does."""
    device = torch.device("cpu") if dry_run else torch.device("cuda", rank)
    if not dry_run:
        torch.cuda.set_device(device)
    options = {} if dry_run else {"device_id": device}
    dist.init_process_group("gloo" if dry_run else "nccl", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world, **options)
    shape = TINY if dry_run else SHAPE
    whole = inputs(**shape, device=device)
    own = [shard(x, rank, world, causal=True) for x in whole]
    ratios = check(whole, device, rank, world)
    dist.barrier()  # rank 0 has judged
    rows = [*measure(whole, own, shape, device, rank, world), measure_message(own, device)]
    if rank == 0:
        finish(rows, ratios, world, dry_run, out)
    dist.barrier()
    dist.destroy_process_group()


def finish(rows, ratios, world, dry_run, out):
    """Print the rows and write the file."""
    for row in rows:
        if row["phase"] == "backward" and row["contender"] in ratios:
            row["error_over_bound"] = ratios[row["contender"]]
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    what = "Time of causal attention and of its backward pass on several GPUs of one host, by a ring, and on one of them."
    if dry_run:
        measured = {"what": what, "date": datetime.date.today().isoformat(), "environment": {"device": "dry run"}, "rows": rows}
    else:
        measured = result(what, "tools/measure_ring.py", METHOD, rows)
        measured["environment"] |= {"gpus": world, "link": link(), "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    print(write(out, "ring", measured))
    worst = max(max(each.values()) for each in ratios.values())
    if worst > 1:
        raise SystemExit(f"wrong: an error is {worst:g} times what rounding may cause")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder to write the file into")
    parser.add_argument("--gpus", type=int, default=2, help="how many GPUs, or processes of the dry run (default: 2)")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, over gloo, with tiny sizes: shows that the program works")
    options = parser.parse_args()
    if not options.dry_run and (count := torch.cuda.device_count()) < options.gpus:
        raise SystemExit(f"measure_ring needs {options.gpus} CUDA GPUs, and torch sees {count} on this machine.")
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(process, (options.gpus, options.dry_run, options.out, folder), nprocs=options.gpus)


if __name__ == "__main__":
    main()
