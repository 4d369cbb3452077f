"""Runs a function in every process of a torch.distributed group on this machine, and brings back what came of each."""
import os
import pickle
import sys
import tempfile
import threading
import time
from datetime import timedelta
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple


class Outcome(NamedTuple):
    """What a process returned, or the exception that it raised (if that cannot be sent, a RuntimeError with its words).

    None if it ended before it could say. exitcode: 0 if it came to its end.
    """

    value: Any
    exitcode: int


def run(job, world, *args, backend="gloo", limit_s=60):
    """The `Outcome` of job(rank, world, *args) for each rank of a group of `world` processes.

    job may be a function of a notebook: it travels by value, with what it uses, through cloudpickle. What it returns must
    be something that torch.save can write. With backend "nccl" every process has a GPU of its own, number `rank`. Whoever
    is still there after limit_s seconds is killed, and its exitcode says so; so is everybody if this process is interrupted
    or ends. Raises ValueError for a group without processes.
    """
    import cloudpickle
    import torch

    if world < 1:
        raise ValueError(f"world must be at least 1, but it is {world}.")
    context = get_context("spawn" if backend == "nccl" or sys.platform == "win32" else "forkserver")  # CUDA does not survive a fork
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(["torch"])  # imported once for all processes
    work = cloudpickle.dumps(lambda rank: job(rank, world, *args))
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=_member, args=(work, rank, world, backend, folder)) for rank in range(world)]
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")  # else each would first run the caller's program again
        try:
            for process in processes:
                process.start()
            sys.modules["__main__"] = main
            until = time.monotonic() + limit_s
            for process in processes:
                process.join(max(0, until - time.monotonic()))
        finally:
            sys.modules["__main__"] = main
            for process in processes:
                if process.is_alive():
                    process.kill()
                    process.join()
        files = [Path(folder, f"{rank}.pt") for rank in range(world)]
        return [Outcome(torch.load(file, weights_only=False) if file.exists() else None, process.exitcode) for file, process in zip(files, processes)]


def _member(work, rank, world, backend, folder):
    import cloudpickle
    import torch
    import torch.distributed as dist

    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if backend == "nccl" else None  # with it, they are connected before anybody can be missing
    if device:
        torch.cuda.set_device(device)
    elif loopback := {"linux": "lo", "darwin": "lo0"}.get(sys.platform):
        os.environ["GLOO_SOCKET_IFNAME"] = loopback
    rendezvous = "file:///" + str(Path(folder, "rendezvous")).replace("\\", "/").lstrip("/")
    dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=world, timeout=timedelta(seconds=60), device_id=device)
    try:
        value = cloudpickle.loads(work)(rank)
    except Exception as error:
        value = error
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # of a class that only the notebook knows, say
            value = RuntimeError(f"{type(error).__name__}: {error}")
    unfinished = Path(folder, f"{rank}.unfinished")
    torch.save(value, unfinished, pickle_protocol=4)  # 2 knows no ConnectionError
    unfinished.replace(Path(folder, f"{rank}.pt"))
    if backend == "nccl":
        os._exit(0)  # whatever may still wait on the GPU
    dist.destroy_process_group()


def _end_with_parent():
    """Wait until the process that called `run` is no more, however it ended, and end this one."""
    wait([parent_process().sentinel])
    os._exit(1)
