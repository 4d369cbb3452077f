"""The process behind `flashedu.kernels.compiled`: it pretends to have a GPU, and compiles what would be launched there.

It reads questions from stdin and writes answers to stdout, one JSON object a line. It is run as a script, since importing
`flashedu.kernels` without a GPU would switch Triton's interpreter on.
"""
import contextlib
import importlib
import inspect
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget

INSTRUCTIONS = {  # how often each stands in the PTX
    "tcgen05.mma": r"\btcgen05\.mma\.",
    "wgmma.mma_async": r"\bwgmma\.mma_async\.",
    "mma.sync": r"\smma\.sync\.",
    "fma": r"\bfma\.rn\.",
    "ex2": r"\bex2\.",
    "ld.global": r"\bld\.global\.",
    "cp.async": r"\bcp\.async\.c[ag]\.",
    "cp.async.bulk.tensor": r"\bcp\.async\.bulk\.tensor\.",
    "setmaxnreg": r"\bsetmaxnreg\.",
}


class Refused(Exception):
    """What cannot be asked; its text is the sentence."""


class Gpu:
    """As much of a Triton driver, and of torch's account of the device, as a launch looks at before it starts a kernel."""

    def __init__(self, number, capability, shared_limit_bytes):
        facts = SimpleNamespace(major=capability // 10, minor=capability % 10, shared_memory_per_block_optin=shared_limit_bytes,
                                multi_processor_count=132)  # how many decides what programs do, not what they are
        torch.cuda.get_device_properties = lambda device=None: facts
        torch.cuda.get_device_capability = lambda device=None: (facts.major, facts.minor)
        self.get_current_target = lambda: GPUTarget("cuda", capability, 32)
        self.get_current_device = lambda: number  # never the same: one for which nothing has been compiled
        self.get_current_stream = lambda device: 0


def launches(number, scratch, capability, shared_limit_bytes, module, source, function, arguments, changes):
    """Run a launcher and compile what it launches; for each kernel a dict with the fields of `Compiled`."""
    triton.runtime.driver.set_active(Gpu(number, capability, shared_limit_bytes))
    namespace = load(source, scratch / f"program_{number}.py") if source else vars(importlib.import_module(module))
    if not callable(namespace.get(function)):
        raise Refused(f"the program defines no function {function}")
    compiled = {}

    def compile_only(kernel, *args, grid, warmup, **options):
        name = kernel.fn.__name__
        for change, value in {**changes.get("", {}), **changes.get(name, {})}.items():
            key = change.upper() if change.startswith("block_") else change
            if key not in (*options, "num_warps", "num_stages"):
                raise Refused(f"{change} cannot be changed, since the launch of {name} gives no {key} by name")
            options[key] = value
        constants = {p.name: options[p.name] for p in kernel.params if p.is_constexpr and p.name in options}  # those given by name
        log = io.StringIO()
        try:
            with contextlib.redirect_stdout(log):
                result = run(kernel, *args, grid=grid, warmup=True, **options)
        except Exception as error:  # the compiler's and ptxas's have many types
            settings = ", ".join(f"{key}={value}" for key, value in constants.items())
            raise Refused(f"{name} does not compile for sm_{capability} with {settings}: {reason(error)}") from None
        if log.getvalue():  # else the same kernel was launched before
            fixed = dict(kernel=name, capability=capability, constants=constants, shared_limit_bytes=shared_limit_bytes)
            compiled[result.hash] = {**fixed, **report(result, log.getvalue())}
        return result

    run, triton.JITFunction.run = triton.JITFunction.run, compile_only
    try:
        inspect.unwrap(namespace[function])(*map(without_data, arguments))  # without checks: these tensors are nowhere
    finally:
        triton.JITFunction.run = run
    if not compiled:
        raise Refused(f"{function} launched no kernel")
    return list(compiled.values())


def load(source, path):
    """The names that a program defines; it stands in a file, from which Triton reads the text of its kernels."""
    path.write_text(source)
    namespace = dict(__name__=path.stem, __file__=str(path), torch=torch, triton=triton, tl=tl)
    exec(compile(source, path, "exec"), namespace)
    return namespace


def without_data(x):
    if not isinstance(x, dict):
        return x
    return torch.empty_strided(x["size"], x["stride"], dtype=getattr(torch, x["dtype"]), device="meta")


def report(result, log):
    """What the compiler's metadata, the PTX and the words of `ptxas -v` say."""
    def numbers(pattern):
        return [int(number) for number in re.findall(pattern, log)]

    return dict(
        num_warps=result.metadata.num_warps,
        num_stages=result.metadata.num_stages,
        shared_bytes=result.metadata.shared,
        tensor_memory_columns=getattr(result.metadata, "tmem_size", 0),
        registers=max(numbers(r"Used (\d+) registers")),
        stack_bytes=max(numbers(r"(\d+) bytes stack frame")),
        spill_bytes=sum(numbers(r"(\d+) bytes spill (?:stores|loads)")),
        counts={name: len(re.findall(pattern, result.asm["ptx"])) for name, pattern in INSTRUCTIONS.items()},
        warnings=[f"{code}: {text.strip()}" for code, text in dict(re.findall(r"\((C\d+)\) *(.+)", log)).items()],
    )


def reason(error):
    """Why, in one line: what ptxas said, or the innermost of Triton's errors."""
    said = re.search(r"error *: *(.+)", str(error)) if "ptxas" in str(error) else None
    if said:
        return "ptxas says: " + said[1].strip()
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def serve():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing else that is printed is an answer
    triton.knobs.compilation.always_compile = True  # Triton's cache does not keep what ptxas says
    triton.knobs.nvidia.dump_ptxas_log = True
    with tempfile.TemporaryDirectory() as scratch:
        triton.knobs.cache.dir = scratch
        for number, line in enumerate(sys.stdin):
            try:
                answer = {"kernels": launches(number, Path(scratch), **json.loads(line))}
            except BaseException as error:  # a program of the reader's may raise anything
                answer = {"error": reason(error).rstrip(".") + "."}
            print(json.dumps(answer, default=str), file=answers, flush=True)


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    torch.cuda.is_available = lambda: True
    serve()
