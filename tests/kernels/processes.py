"""Runs a function in every process of a torch.distributed group on this machine, and brings back what came of each."""
import os
import signal
import sys
import tempfile
import time
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

LOOPBACK = {"linux": "lo", "darwin": "lo0"}


class Outcome(NamedTuple):
    """What a process returned, or the exception that it raised; None if it was killed. exitcode: 0 if it ended by itself."""

    value: Any
    exitcode: int


def run(job, world, *args, backend="gloo", limit_s=60):
    """The `Outcome` of job(rank, world, *args) for each rank of a group of `world` processes.

    job is a function of a module that a new process can import. Whoever is still there after limit_s seconds is killed, and
    its exitcode says so.
    """
    how = "spawn" if backend == "nccl" or sys.platform == "win32" else "forkserver"  # CUDA does not survive a fork
    context = get_context(how)
    if how == "forkserver":
        context.set_forkserver_preload(["torch"])  # imported once for all processes
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=_member, args=(job, rank, world, args, backend, folder)) for rank in range(world)]
        for process in processes:
            process.start()
        until = time.monotonic() + limit_s
        for process in processes:
            process.join(max(0, until - time.monotonic()))
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
        files = [Path(folder, f"{rank}.pt") for rank in range(world)]
        values = [torch.load(file, weights_only=False) if file.exists() else None for file in files]
        return [Outcome(value, process.exitcode) for value, process in zip(values, processes)]


def _member(job, rank, world, args, backend, folder):
    torch.set_num_threads(1)
    options = {}
    if backend == "gloo" and sys.platform in LOOPBACK:
        os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK[sys.platform]
    if backend == "nccl":
        torch.cuda.set_device(rank)
        options["device_id"] = torch.device("cuda", rank)  # connected before anybody can be missing
    rendezvous = "file:///" + str(Path(folder, "rendezvous")).replace("\\", "/").lstrip("/")
    dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=world, timeout=timedelta(seconds=60), **options)
    try:
        value = job(rank, world, *args)
    except Exception as error:
        value = error
    unfinished = Path(folder, f"{rank}.unfinished")
    torch.save(value, unfinished, pickle_protocol=4)  # 2 knows no ConnectionError
    unfinished.replace(Path(folder, f"{rank}.pt"))
    if backend == "nccl":
        os._exit(0)  # whatever may still wait on the GPU
    dist.destroy_process_group()


def fail(how, seconds):
    """One way to be of no more use to the others; a hanging process ends after some seconds."""
    if how == "raise":
        raise ArithmeticError("this process fails on purpose")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(seconds)
    os._exit(1)
