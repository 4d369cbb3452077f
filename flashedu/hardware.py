"""GPUs as data: memory sizes and rates from the vendor's documents, each with its source.

Rates are nominal peaks. What a program reaches is lower: what an H200 was seen to do is in `flashedu/results/`.
"""
from dataclasses import dataclass

KIB, MIB, GIB = 1024, 1024**2, 1024**3


@dataclass(frozen=True)
class Gpu:
    """One GPU, as its vendor describes it.

    Rates are per second, sizes in bytes. `l1_bytes` is L1 cache and shared memory together, on one multiprocessor (SM); `shared_bytes` is the part of it that
    can be shared memory, `block_shared_bytes` what one block (one Triton program) may use: this is the SRAM of a tile.
    `hbm_bytes` and `hbm_bytes_per_s` are those of the device memory, HBM or GDDR; the data sheet's GB of capacity are
    units of 2**30, and a driver reports a little less. `matmul_flops` is dense 16-bit matrix FLOP/s, and `clock_hz` the
    clock at which the multiprocessors would reach it; `exp_rate` is exponentials/s, 16 each clock on each of them.
    """

    name: str
    compute_capability: tuple
    sms: int
    l1_bytes: int
    shared_bytes: int
    block_shared_bytes: int
    l2_bytes: int
    hbm_bytes: int
    hbm_bytes_per_s: float
    matmul_flops: float
    clock_hz: float
    source: str

    @property
    def exp_rate(self):
        """Exponentials per second of all multiprocessors together."""
        return 16 * self.sms * self.clock_hz

    @property
    def ridge(self):
        """FLOP per byte at which the memory and the matrix units take equally long."""
        return self.matmul_flops / self.hbm_bytes_per_s


TURING = "; shared memory: CUDA C++ Programming Guide, technical specifications, compute capability 7.5"
AMPERE = "; shared memory: NVIDIA Ampere GPU Architecture Tuning Guide, section 1.4"
ADA = "; shared memory: NVIDIA Ada GPU Architecture Tuning Guide, section 1.4"
HOPPER = "; shared memory: NVIDIA Hopper Tuning Guide, section 1.4"
BLACKWELL = "; shared memory: NVIDIA Blackwell Tuning Guide, section 1.4"

GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("T4", (7, 5), 40, 96 * KIB, 64 * KIB, 64 * KIB, 4 * MIB, 16 * GIB, 320e9, 65e12, 1.59e9,
            "NVIDIA T4 datasheet" + TURING),
        Gpu("A100 40GB", (8, 0), 108, 192 * KIB, 164 * KIB, 163 * KIB, 40 * MIB, 40 * GIB, 1555e9, 312e12, 1.41e9,
            "NVIDIA A100 datasheet, SXM" + AMPERE),
        Gpu("A100 80GB", (8, 0), 108, 192 * KIB, 164 * KIB, 163 * KIB, 40 * MIB, 80 * GIB, 2039e9, 312e12, 1.41e9,
            "NVIDIA A100 datasheet, SXM" + AMPERE),
        Gpu("RTX 3090", (8, 6), 82, 128 * KIB, 100 * KIB, 99 * KIB, 6 * MIB, 24 * GIB, 936e9, 71e12, 1.695e9,
            "NVIDIA Ampere GA102 whitepaper, float32 accumulation" + AMPERE),
        Gpu("RTX 4090", (8, 9), 128, 128 * KIB, 100 * KIB, 99 * KIB, 72 * MIB, 24 * GIB, 1008e9, 165.2e12, 2.52e9,
            "NVIDIA Ada whitepaper, float32 accumulation" + ADA),
        Gpu("H100 PCIe", (9, 0), 114, 256 * KIB, 228 * KIB, 227 * KIB, 50 * MIB, 80 * GIB, 2000e9, 756e12, 1.62e9,
            "NVIDIA H100 datasheet, dense" + HOPPER),
        Gpu("H100 SXM", (9, 0), 132, 256 * KIB, 228 * KIB, 227 * KIB, 50 * MIB, 80 * GIB, 3350e9, 989e12, 1.83e9,
            "NVIDIA H100 datasheet, dense" + HOPPER),
        Gpu("H200", (9, 0), 132, 256 * KIB, 228 * KIB, 227 * KIB, 60 * MIB, 141 * GIB, 4800e9, 989e12, 1.83e9,
            "NVIDIA H200 datasheet, dense; L2 as the device reports it" + HOPPER),
        Gpu("B200", (10, 0), 148, 256 * KIB, 228 * KIB, 227 * KIB, 126 * MIB, 180 * GIB, 8000e9, 2250e12, 1.85e9,
            "NVIDIA DGX B200 datasheet, dense; SMs and L2 as the device reports them" + BLACKWELL),
    )
}


def gpu(name):
    """The GPU of that name; raises ValueError, with the names that exist, for another."""
    if not isinstance(name, str) or name not in GPUS:
        raise ValueError(f"name must be one of {', '.join(GPUS)}, but it is {name!r}.")
    return GPUS[name]
