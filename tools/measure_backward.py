"""Measures on a GPU what chapter 5 claims: a backward pass that stores P against one that recomputes it, and a checkpoint around attention.

    python tools/measure_backward.py --out flashedu/results

It needs a CUDA GPU, torch and triton, and writes two files into the folder.
"""
import argparse
from functools import partial
from pathlib import Path

from flashedu.bench import contenders, speed
from flashedu.bench.result import result, write
from flashedu.bench.rounds import interleave

HEADS, HEAD_DIM = 16, 128
LENGTHS = (1024, 2048, 4096, 8192, 16384)
TUNED_AT, CHECKPOINT_AT = 4096, 8192
ROUNDS, SLOT_MS = 5, 10
VARIANTS = {"stored": True, "recomputed": False}  # name: STORED of tools/stored_p.py

# (query rows, key rows, warps, stages); a variant takes the fastest; no more key rows than stored_p.FORWARD_BLOCK_K
CANDIDATES = {
    "forward": ((128, 64, 8, 3), (128, 64, 8, 2)),
    "dq": ((128, 64, 8, 3), (128, 64, 8, 2), (64, 64, 4, 3)),
    "dkdv": ((64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 8, 3)),
}

TIMING = {
    "inputs": f"Batch 1, {HEADS} heads, head_dim {HEAD_DIM}, bfloat16, random normal, no mask.",
    "time_ms": speed.METHOD["rounds"].replace("(direction, head_dim, n, causal)", "(phase, n)"),
    "kept_bytes": "What lives between the passes, o included, the inputs not: torch.cuda.memory_allocated after the forward pass less before.",
    "peak_bytes": "The most that forward and backward held at once beyond the inputs, o and the gradients included: "
    "torch.cuda.max_memory_allocated less what was allocated before.",
    "out_of_memory, refused": "Why there is no time: what was raised.",
}
STORED_P = {
    **TIMING,
    "stored, recomputed": "tools/stored_p.py: one forward kernel and two backward kernels (dQ with delta; dK and dV), each compiled with and without P "
    "in memory, and equal in everything else. Storing, the forward kernel writes exp(S - m) in bfloat16, m the maximum of the row so far, and m for each row and "
    "key tile in float32; both backward kernels read them instead of computing S and exp(S - lse): five matrix products instead of seven.",
    "tiles": f"Each variant has, for each of its kernels, the fastest of the candidates at n = {TUNED_AT}: "
    f"(query rows, key rows, warps, stages) {CANDIDATES}.",
    "flashedu, naive": "The package's flash_attention, and separate operations of torch, both by autograd, for comparison.",
    "phase": "forward; backward alone, on what one forward pass has kept; both, one after the other.",
    "relative_error": "||x - x*|| / ||x*|| over the first head, the worst of dq, dk and dv; x* by naive attention in float32.",
}
CHECKPOINT = {
    **TIMING,
    "flash, naive": "flash_attention of this package; separate operations of torch.",
    "block": "attention: q, k, v to o. projections: x (1, n, 2048) to q, k, v by one matrix, attention, and o by another matrix to the output; "
    "that matrix takes o as (1, n, 2048), which is a copy, since flash_attention lays out o as (1, heads, n, head_dim).",
    "checkpoint": "What was wrapped in torch.utils.checkpoint.checkpoint(use_reentrant=False): nothing, the attention, or all of the block.",
    "phase": "both: forward and backward, one after the other, with gradients of the inputs and the matrices.",
}


def best_tiles(clock, q, k, v, do):
    """{variant: {kernel: its fastest tile}} for inputs (heads, n, head_dim)."""
    import stored_p

    from flashedu.kernels.tiles import Tile

    chosen = {}
    for variant, stored in VARIANTS.items():
        saved = stored_p.forward(stored, Tile(*CANDIDATES["forward"][0]), q, k, v)
        _, delta = stored_p.gradient_of_q(stored, Tile(*CANDIDATES["dq"][0]), q, k, v, do, *saved)
        launchers = {
            "forward": (stored_p.forward, (q, k, v)),
            "dq": (stored_p.gradient_of_q, (q, k, v, do, *saved)),
            "dkdv": (stored_p.gradients_of_k_and_v, (q, k, v, do, delta, *saved[1:])),
        }
        chosen[variant] = {}
        for kernel, (launch, inputs) in launchers.items():
            trials = {tile: partial(partial, launch, stored, Tile(*tile), *inputs) for tile in CANDIDATES[kernel]}
            outcomes = interleave(trials, clock, ROUNDS, SLOT_MS)
            chosen[variant][kernel] = Tile(*min(trials, key=lambda tile: outcomes[tile].get("time_ms", float("inf"))))
    return chosen


def by_kernels(stored, tiles, q, k, v, do):
    """(forward, backward) of a variant; backward takes what forward returned and returns dq, dk, dv."""
    import stored_p

    def forward():
        return stored_p.forward(stored, tiles["forward"], q, k, v)

    def backward(saved, retain_graph=False):  # there is no graph: nothing can be freed before the end
        dq, delta = stored_p.gradient_of_q(stored, tiles["dq"], q, k, v, do, *saved)
        return dq, *stored_p.gradients_of_k_and_v(stored, tiles["dkdv"], q, k, v, do, delta, *saved[1:])

    return forward, backward


def by_autograd(function, leaves, do):
    """(forward, backward) of a function of torch; only a graph that is retained can be gone through again."""
    import torch

    def forward():
        return (function(*leaves),)

    def backward(saved, retain_graph=False):
        return torch.autograd.grad(saved[0], leaves, do, retain_graph=retain_graph)

    return forward, backward


def backward_alone(forward, backward):
    saved = forward()
    return lambda: backward(saved, retain_graph=True)


def both(forward, backward):
    return lambda: backward(forward())


PHASES = {"forward": lambda forward, backward: forward, "backward": backward_alone, "both": both}


def memory(forward, backward):
    """kept_bytes and peak_bytes of one forward and backward pass, what forward returned first, and the gradients."""
    import torch

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before_bytes = torch.cuda.memory_allocated()
    saved = forward()
    kept_bytes = torch.cuda.memory_allocated() - before_bytes
    gradients = backward(saved)
    torch.cuda.synchronize()
    return {"kept_bytes": kept_bytes, "peak_bytes": torch.cuda.max_memory_allocated() - before_bytes}, saved[0], gradients


def measure_stored_p(matmul, clock, lengths=LENGTHS):
    """Rows (n, variant, phase)."""
    q, k, v, do = contenders.random_inputs(1, HEADS, TUNED_AT, HEAD_DIM)
    tiles = best_tiles(clock, *(x[0] for x in (q, k, v, do)))
    rows = []
    for n in lengths:
        q, k, v, do = contenders.random_inputs(1, HEADS, n, HEAD_DIM)
        right = contenders.exact(q, k, v, do, False)
        leaves = [x.requires_grad_() for x in (q, k, v)]
        heads = [x.detach()[0] for x in (q, k, v, do)]
        passes = {variant: by_kernels(stored, tiles[variant], *heads) for variant, stored in VARIANTS.items()}
        for name in ("flashedu", "naive"):
            passes[name] = by_autograd(contenders.attentions(n, HEAD_DIM, False)[name], leaves, do)
        for phase, prepare in PHASES.items():
            prepared = {name: partial(prepare, *pair) for name, pair in passes.items()}
            for name, outcome in interleave({"matmul": lambda: matmul, **prepared}, clock, ROUNDS, SLOT_MS).items():
                row = {"n": n, "variant": name, "phase": phase, **outcome}
                if name in VARIANTS:
                    row["tiles"] = {kernel: list(tile) for kernel, tile in tiles[name].items()}
                if phase == "both" and name != "matmul" and "time_ms" in outcome:
                    bytes_of, o, gradients = memory(*passes[name])
                    found = [x.reshape(1, HEADS, n, HEAD_DIM).detach() for x in (o, *gradients)]
                    row |= {**bytes_of, "relative_error": contenders.relative_errors(found, right)["backward"]}
                    del o, gradients, found
                rows.append(row)
                show(row)
    return rows


def measure_checkpoint(clock, n=CHECKPOINT_AT):
    """Rows (variant, block, checkpoint)."""
    import torch
    from torch.utils.checkpoint import checkpoint

    width = HEADS * HEAD_DIM
    q, k, v, do = contenders.random_inputs(1, HEADS, n, HEAD_DIM)
    x = do.transpose(1, 2).reshape(1, n, width).contiguous().requires_grad_()
    w_in, w_out = (torch.randn(size, width, device=q.device, dtype=q.dtype).mul_(width**-0.5).requires_grad_() for size in (3 * width, width))
    leaves = [t.requires_grad_() for t in (q, k, v)]

    def wrapped(function):
        return lambda *inputs: checkpoint(function, *inputs, use_reentrant=False)

    def projected(attend):
        def block(x, w_in, w_out):
            q, k, v = (x @ w_in.mT).view(1, n, 3, HEADS, HEAD_DIM).permute(2, 0, 3, 1, 4)  # (1, heads, n, head_dim) each
            return attend(q, k, v).transpose(1, 2).reshape(1, n, width) @ w_out.mT

        return block

    passes = {}
    for name, key in (("flash", "flashedu"), ("naive", "naive")):
        attend = contenders.attentions(n, HEAD_DIM, False)[key]
        passes[name, "attention", "nothing"] = by_autograd(attend, leaves, do)
        passes[name, "attention", "attention"] = by_autograd(wrapped(attend), leaves, do)
        weights = (x, w_in, w_out)
        passes[name, "projections", "nothing"] = by_autograd(projected(attend), weights, x.detach())
        passes[name, "projections", "attention"] = by_autograd(projected(wrapped(attend)), weights, x.detach())
        passes[name, "projections", "all"] = by_autograd(wrapped(projected(attend)), weights, x.detach())
    prepared = {key: partial(both, *pair) for key, pair in passes.items()}
    rows = []
    for key, outcome in interleave(prepared, clock, ROUNDS, SLOT_MS).items():
        row = {**dict(zip(("variant", "block", "checkpoint"), key)), "n": n, "phase": "both", **outcome}
        if "time_ms" in outcome:
            row |= memory(*passes[key])[0]
        rows.append(row)
        show(row)
    return rows


def show(row):
    print("  ".join(f"{key} {value}" for key, value in row.items() if key not in ("rounds", "calls", "tiles")), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder to write the two files into")
    options = parser.parse_args()
    sentence = speed.missing()
    if sentence:
        raise SystemExit(sentence)
    options.out.mkdir(parents=True, exist_ok=True)
    matmul = contenders.matmul()
    clock = contenders.device_clock(matmul)
    made_by = "tools/measure_backward.py"
    rows = measure_stored_p(matmul, clock)
    what = "Time and memory of attention whose backward pass reads a stored P, and of one that recomputes it; naive attention beside them."
    print(write(options.out, "backward_stored_p", result(what, made_by, STORED_P, rows)))
    what = "Time and memory of attention, alone and between projections, with and without torch.utils.checkpoint around it."
    print(write(options.out, "checkpoint", result(what, made_by, CHECKPOINT, measure_checkpoint(clock))))


if __name__ == "__main__":
    main()
