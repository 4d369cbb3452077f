"""What a kernel becomes on a GPU that one does not have: shared memory, registers, spills and matrix instructions.

Triton's compiler and NVIDIA's assembler `ptxas` need no GPU, and they decide what a kernel asks of one. So the launchers of
this package (`flash_forward` and the others) are run in a process of its own, `flashedu/kernels/pretended_gpu.py`. There a
tensor has a shape and no data, and a launch compiles the kernel and goes no further. What is reported is therefore what
a launch on that GPU would run: its types, its tile, its alignment.

The process is another one because kernels are compiled or interpreted, for good, from the moment that Triton is imported.
It starts at the first question, in seconds, and answers each one in about a second.
"""
import functools
import importlib.util
import json
from dataclasses import dataclass

import torch

from flashedu.arguments import boolean, positive_int, short
from flashedu.kernels.compiler import Compiler

# Bytes of shared memory that a block may use, by compute capability (90 is 9.0). Source: CUDA C++ Programming Guide,
# technical specifications: "maximum amount of shared memory per thread block".
SHARED_LIMITS = {75: 65_536, 80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
TENSOR_MEMORY_COLUMNS = 512  # where capability 10.0 keeps the accumulators of tcgen05.mma
MATRIX_INSTRUCTIONS = ("tcgen05.mma", "wgmma.mma_async", "mma.sync")
_compiler = Compiler()


class CompilationFailed(RuntimeError):
    """The kernel cannot be compiled; says why, in one sentence."""


@dataclass(frozen=True)
class Compiled:
    """What one kernel became.

    `constants` are the tl.constexpr arguments of the launch. Sizes are in bytes: `shared_bytes` of a block (one program),
    `stack_bytes` and `spill_bytes` (stored and loaded, together) of a thread, as `registers` are. `counts` is how often an
    instruction stands in the PTX, not how often it runs. `warnings` are those of ptxas that have a code: C7510, C7511,
    C7514 and C7515 say that wgmma instructions must wait for one another.
    """

    kernel: str
    capability: int
    constants: dict
    num_warps: int
    num_stages: int
    shared_bytes: int
    shared_limit_bytes: int
    tensor_memory_columns: int
    registers: int
    stack_bytes: int
    spill_bytes: int
    counts: dict
    warnings: tuple

    @property
    def fits(self):
        """Whether a GPU of this capability can launch it."""
        return self.shared_bytes <= self.shared_limit_bytes and self.tensor_memory_columns <= TENSOR_MEMORY_COLUMNS

    @property
    def matrix_instruction(self):
        """What the products became: "tcgen05.mma", "wgmma.mma_async", "mma.sync", or "fma" without matrix units; None without products."""
        return next((name for name in (*MATRIX_INSTRUCTIONS, "fma") if self.counts[name]), None)

    def __repr__(self):
        rows = [("shared memory", f"{self.shared_bytes:,} of {self.shared_limit_bytes:,} bytes a block{'' if self.fits else ': does not fit'}")]
        if self.tensor_memory_columns:
            rows.append(("tensor memory", f"{self.tensor_memory_columns} of {TENSOR_MEMORY_COLUMNS} columns a block"))
        rows.append(("registers", f"{self.registers} a thread; {self.spill_bytes:,} bytes spilled, {self.stack_bytes:,} bytes of stack"))
        name = self.matrix_instruction
        rows.append(("arithmetic", f"{name}, {self.counts[name]:,} in the code" if name else "no products"))
        rows += [("warning", text) for text in self.warnings]
        constants = ", ".join(f"{name}={value}" for name, value in self.constants.items())
        head = f"{self.kernel} on sm_{self.capability}: {constants}; {self.num_warps} warps, {self.num_stages} stages"
        return "\n".join([head, *(f"  {name:<14}{text}" for name, text in rows)])


def forward(capability, head_dim=128, dtype="bfloat16", causal=False, n=4096, **tile):
    """What `forward_kernel` becomes on a GPU of this compute capability (90 means 9.0), as a `Compiled`.

    For q (1, 32, n, head_dim), k and v (1, 8, n, head_dim). block_q, block_k, num_warps and num_stages are those
    of `flashedu.kernels.tiles` unless given. Raises TypeError or ValueError for a capability that is not in
    SHARED_LIMITS, another dtype than float32, float16 and bfloat16, or sizes that the kernels do not take, and
    CompilationFailed when Triton is missing or the compiler gives up, each with one sentence.
    """
    boolean("causal", causal)
    q, kv = _layer(capability, head_dim, dtype, n)
    return _ask(capability, "flash_forward", (q, kv, kv, bool(causal)), {"forward_kernel": tile}, module="flashedu.kernels.forward")[0]


def backward(capability, head_dim=128, dtype="bfloat16", causal=False, n=4096, dq=None, dkdv=None):
    """What `dq_kernel` and `dkdv_kernel` become, as a pair of `Compiled`; see `forward`.

    dq and dkdv may change either tile: dkdv=dict(block_q=64, block_k=128, num_warps=8, num_stages=3). Raises as `forward`
    does.
    """
    boolean("causal", causal)
    q, kv = _layer(capability, head_dim, dtype, n)
    arguments = (q, kv, kv, q, _tensor("float32", 1, 32, n), q, bool(causal))
    changes = {"dq_kernel": dq or {}, "dkdv_kernel": dkdv or {}}
    return _ask(capability, "flash_backward", arguments, changes, module="flashedu.kernels.backward")


def hopper(head_dim=128, dtype="bfloat16", causal=False, n=4096):
    """What `hopper_kernel` becomes on a GPU of compute capability 9.0, as a `Compiled`; see `forward`.

    head_dim is 64, 128 or 256. Registers are those that a thread has before the warps divide them among themselves.
    Raises as `forward` does, and ValueError for float32.
    """
    boolean("causal", causal)
    q, kv = _layer(90, head_dim, dtype, n)
    if head_dim not in (64, 128, 256) or q.dtype == torch.float32:
        raise ValueError(f"the Hopper kernel takes head_dim 64, 128 and 256 in 16 bits, but they are {short(head_dim)} and {short(dtype)}.")
    return _ask(90, "hopper_forward", (q, kv, kv, bool(causal)), {}, module="flashedu.kernels.hopper_launch")[0]


def hopper_fp8(causal=False, n=4096):
    """What `hopper_fp8_kernel` becomes on a GPU of compute capability 9.0, at head dimension 128, as a `Compiled`; see `hopper`.

    Raises as `forward` does.
    """
    boolean("causal", causal)
    positive_int("n", n)
    shapes = (1, 32, n, 128), (1, 8, n, 128), (1, 8, 128, -(-n // 16) * 16)
    q, k, v = (torch.empty(shape, dtype=torch.float8_e4m3fn, device="meta") for shape in shapes)
    scales = (_tensor("float32", 1, *shape) for shape in ((32, -(-n // 64)), (8, -(-n // 128)), (8,)))
    return _ask(90, "hopper_fp8_forward", (q, k, v, *scales, bool(causal)), {}, module="flashedu.kernels.hopper_fp8")[0]


def softmax(capability, n=4096, dtype="float32", **changes):
    """What `softmax_kernel` becomes for rows of n elements, as a `Compiled`; num_warps may be given.

    Raises as `forward` does, and ValueError for n above 2**20, the largest tile that Triton allows.
    """
    if positive_int("n", n) > 2**20:
        raise ValueError(f"n must be at most 2**20, but it is {short(n)}.")
    x = _tensor(dtype, 4096, n)
    return _ask(capability, "triton_softmax", (x,), {"softmax_kernel": changes}, module="flashedu.kernels.softmax")[0]


def compile_source(source, function, arguments, capability, **changes):
    """What the kernels that `function(*arguments)` launches become, as a tuple of `Compiled`.

    source: the text of a program with the launcher and its kernels, where torch, triton and tl are imported already.
    arguments: numbers, and tensors, whose shapes, strides and dtypes alone matter. `changes` are made to what
    launches give by name: num_warps=8, or block_k=32 for BLOCK_K. Raises as `forward` does.
    """
    return _ask(capability, function, arguments, {"": changes}, source=source)


def _tensor(dtype, *shape):
    kind = getattr(torch, str(dtype).removeprefix("torch."), None)
    if kind not in (torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(f"dtype must be float32, float16 or bfloat16, but it is {short(dtype)}.")
    return torch.empty(shape, dtype=kind, device="meta")


def _layer(capability, head_dim, dtype, n):
    """q, and k and v, of a layer with grouped queries."""
    n, head_dim = positive_int("n", n), positive_int("head_dim", head_dim)
    if head_dim > 256 or n > 2**31:
        raise ValueError(f"head_dim must be at most 256 and n at most 2**31, but they are {short(head_dim)} and {short(n)}.")
    if capability == 75 and str(dtype).removeprefix("torch.") == "bfloat16":
        raise ValueError("bfloat16 needs compute capability 8.0 or later; use float16 or float32 for 75.")
    return _tensor(dtype, 1, 32, n, head_dim), _tensor(dtype, 1, 8, n, head_dim)


def _described(x):
    if not isinstance(x, torch.Tensor):
        return x
    return {"size": list(x.shape), "stride": list(x.stride()), "dtype": str(x.dtype).removeprefix("torch.")}


def _ask(capability, function, arguments, changes, module=None, source=None):
    if not isinstance(capability, int) or capability not in SHARED_LIMITS:
        raise ValueError(f"capability must be one of {', '.join(map(str, SHARED_LIMITS))}, where 90 means 9.0, but it is {short(capability)}.")
    if importlib.util.find_spec("triton") is None:
        raise CompilationFailed("Triton is not installed here (it has wheels for Linux only), so no kernel can be compiled.")
    question = dict(capability=capability, shared_limit_bytes=SHARED_LIMITS[capability], module=module, source=source)
    return _answer(json.dumps(dict(question, function=function, arguments=[_described(x) for x in arguments], changes=changes)))


@functools.cache
def _answer(question):
    answer = _compiler.ask(question)
    if "error" in answer:
        raise CompilationFailed(answer["error"])
    return tuple(Compiled(**{**kernel, "warnings": tuple(kernel["warnings"])}) for kernel in answer["kernels"])
