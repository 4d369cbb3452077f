"""Launches every kernel once for each kind of program, at small ragged sizes, for NVIDIA's compute-sanitizer.

    compute-sanitizer --tool memcheck python tools/sanitize.py      (also racecheck, initcheck, synccheck)

It needs a CUDA GPU, torch and triton. Each tensor has its own allocation, so that a step outside one is seen.
"""

import os
import sys
from pathlib import Path

os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # before torch is imported
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from flashedu.kernels import DEVICE, flash_attention
from flashedu.kernels.softmax import triton_softmax

PROGRAMS = [("float32", 40), ("float16", 40), ("bfloat16", 128)]
LENGTHS = [(65, 129), (129, 65), (128, 128)]


def main():
    if DEVICE != "cuda":
        sys.exit("There is no CUDA GPU here.")
    for name, d in PROGRAMS:
        dtype = getattr(torch, name)
        assert triton_softmax(torch.randn((5, 1000)).to(DEVICE, dtype)).isfinite().all()
        for causal in (False, True):
            for n_q, n_k in LENGTHS:
                q, k, v = (torch.randn((1, heads, n, d)).to(DEVICE, dtype).requires_grad_() for heads, n in ((4, n_q), (2, n_k), (2, n_k)))
                o, lse = flash_attention(q, k, v, causal=causal, return_lse=True, backend="triton")
                gradients = torch.autograd.grad(o.sum() + lse[lse.isfinite()].sum(), (q, k, v))
                assert all(x.isfinite().all() for x in (o, *gradients))
                print(f"{name}, D = {d}, Nq = {n_q}, Nk = {n_k}, {'causal' if causal else 'full'}", flush=True)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
