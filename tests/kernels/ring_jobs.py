"""What the processes of the ring's tests do. Each function is called in every process of a group, with its rank first."""
import os
import signal
import time
from dataclasses import dataclass
from unittest import mock

import torch
import torch.distributed as dist

from flashedu import ring
from flashedu.kernels import numpy_passes
from flashedu.ring import ring_attention, shard, unshard

NAMES = ("o", "lse", "dq", "dk", "dv")


@dataclass(frozen=True)
class Sequence:
    """A whole sequence: shape is (batch, heads, kv_heads, n_q, n_k, d); q is multiplied by `magnitude`; lse_too: it has a
    gradient as well; sparse: only its last query has one."""

    shape: tuple
    dtype: str = "float32"
    causal: bool = False
    magnitude: float = 1.0
    scale: float | None = None
    lse_too: bool = False
    sparse: bool = False
    backend: str = "auto"

    def tensors(self, device="cpu"):
        """q, k, v, do and dlse, the gradients of the output and of lse."""
        batch, heads, kv_heads, n_q, n_k, d = self.shape
        source = torch.Generator().manual_seed(sum(self.shape))
        shapes = [(batch, heads, n_q, d), (batch, kv_heads, n_k, d), (batch, kv_heads, n_k, d), (batch, heads, n_q, d)]
        dtype = getattr(torch, self.dtype)
        numbers = [torch.randn(shape, generator=source, dtype=torch.float64) for shape in (*shapes, shapes[0][:3])]
        q, k, v, do, dlse = (x.to(torch.float64 if dtype == torch.float64 else torch.float32) for x in numbers)
        if self.sparse:
            do[:, :, :-1] = 0
        return *(x.to(dtype).to(device) for x in (q * self.magnitude, k, v, do)), dlse.to(device)


def solve(rank, world, sequences, device="cpu", timeout_s=60):
    """For each sequence: the whole answer {"o": ..., "dv": ...} in the process of rank 0, and whether a second run gave the same bits."""
    answers = [_answer(rank, world, sequence, device, timeout_s) for sequence in sequences]
    dist.barrier()  # nobody leaves while others still read
    return answers


def _answer(rank, world, sequence, device, timeout_s):
    device = f"cuda:{rank}" if device == "cuda" else device
    *leaves, do, dlse = (shard(x, rank, world, sequence.causal) for x in sequence.tensors(device))
    before = [x.clone() for x in leaves]
    leaves = [x.requires_grad_() for x in leaves]
    runs = []
    for _ in range(2):
        options = {"causal": sequence.causal, "scale": sequence.scale, "backend": sequence.backend, "timeout_s": timeout_s}
        o, lse = ring_attention(*leaves, return_lse=True, **options)
        outputs = (o, lse) if sequence.lse_too else (o,)
        gradients = torch.autograd.grad(outputs, leaves, (do, dlse)[: len(outputs)])
        runs.append([x.detach() for x in (o, lse, *gradients)])
    assert all(torch.equal(x, y) for x, y in zip(leaves, before)), "an input was changed"
    same = all(torch.equal(x, y) for x, y in zip(*runs))
    whole = {}
    for name, x in zip(NAMES, runs[0]):
        shards = [torch.empty_like(x) for _ in range(world)]
        dist.all_gather(shards, x.contiguous())
        whole[name] = unshard(shards, sequence.causal).cpu()
    return (whole if rank == 0 else None), same


def some_of_all(rank, world, members, sequence):
    """o of a member's shard, in a ring of some of the processes; the others are not in it."""
    group = dist.new_group(members)
    place = members.index(rank) if rank in members else 0
    q, k, v = (shard(x, place, len(members), sequence.causal) for x in sequence.tensors()[:3])
    try:
        return ring_attention(q, k, v, causal=sequence.causal, group=group, timeout_s=10)
    finally:
        dist.barrier()


def suffer(rank, world, victim, how, turn, timeout_s, device="cpu"):
    """(error, seconds) of a forward and a backward pass in which the victim fails as its `turn`-th step begins."""
    turns, visible = iter(range(1000)), ring.visible

    def watched(*args):
        if next(turns) == turn and rank == victim:
            fail(how, 3 * timeout_s)
        return visible(*args)

    device = f"cuda:{rank}" if device == "cuda" else device
    q = torch.randn(1, 2, 128, 64, generator=torch.Generator().manual_seed(rank)).to(device).requires_grad_()
    ring_attention(q, q, q, causal=True, timeout_s=60).sum().backward()  # all is well, and what has to be compiled is
    with mock.patch.object(ring, "visible", watched):
        start = time.monotonic()
        try:
            ring_attention(q, q, q, causal=True, timeout_s=timeout_s).sum().backward()
        except ConnectionError as error:
            return error, time.monotonic() - start
    return None, time.monotonic() - start


def fail(how, seconds):
    """One way to be of no more use to the others; a hanging process ends after some seconds."""
    if how == "raise":
        raise ArithmeticError("this process fails on purpose")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(seconds)
    os._exit(1)


def disagree(rank, world, calls):
    """Every process makes a call of its own: calls[rank] is (shape of q, options)."""
    shape, options = calls[rank]
    q = torch.zeros(shape)
    return ring_attention(q, q, q, timeout_s=10, **options)


def events(rank, world):
    """In which order a process sends, computes and waits, forward and backward."""
    found = []

    def told(name, function):
        return lambda *args, **options: (found.append(name), function(*args, **options))[1]

    q = torch.randn(1, 1, 8, 4).requires_grad_()
    with (
        mock.patch.object(dist, "batch_isend_irecv", told("send", dist.batch_isend_irecv)),
        mock.patch.object(ring.Ring, "arrived", told("wait", ring.Ring.arrived)),
        mock.patch.object(numpy_passes, "forward", told("compute", numpy_passes.forward)),
        mock.patch.object(numpy_passes, "backward", told("compute", numpy_passes.backward)),
    ):
        o = ring_attention(q, q, q)
        forward = found.copy()
        found.clear()
        o.sum().backward()
    return forward, found
