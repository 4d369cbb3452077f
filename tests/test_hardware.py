"""The table of GPUs holds the vendors' numbers, and they fit together."""
import dataclasses

import pytest

from flashedu.hardware import GPUS, Gpu, gpu


@pytest.mark.parametrize("name, flop_per_byte", [
    ("H100 SXM", 295), ("H100 PCIe", 378), ("H200", 206), ("A100 80GB", 153), ("A100 40GB", 201), ("RTX 4090", 164), ("B200", 281),
])
def test_ridge(name, flop_per_byte):
    assert round(gpu(name).ridge) == flop_per_byte


@pytest.mark.parametrize("names, l1_kib, shared_kib, block_bytes", [
    (("H100 SXM", "H100 PCIe", "H200", "B200"), 256, 228, 232_448),
    (("A100 40GB", "A100 80GB"), 192, 164, 166_912),
    (("RTX 3090", "RTX 4090"), 128, 100, 101_376),
    (("T4",), 96, 64, 65_536),
])
def test_sram(names, l1_kib, shared_kib, block_bytes):
    for name in names:
        one = gpu(name)
        assert (one.l1_bytes, one.shared_bytes, one.block_shared_bytes) == (l1_kib * 1024, shared_kib * 1024, block_bytes)


def test_exponentials_of_an_h100():
    """132 SMs, 16 a clock, 1.83 GHz: 256 times below matmul, so exp takes as long as matmul at D = 64."""
    h100 = gpu("H100 SXM")
    assert h100.exp_rate == 132 * 16 * 1.83e9
    assert round(h100.matmul_flops / h100.exp_rate) == 256
    for head_dim, share in ((64, 1.0), (128, 0.5), (256, 0.25)):
        per_score = (1 / h100.exp_rate) / (4 * head_dim / h100.matmul_flops)
        assert round(per_score, 2) == share


@pytest.mark.parametrize("one", GPUS.values(), ids=list(GPUS))
def test_every_gpu_makes_sense(one):
    assert 0 < one.block_shared_bytes <= one.shared_bytes <= one.l1_bytes < one.l2_bytes < one.hbm_bytes
    assert one.sms > 0 and one.hbm_bytes_per_s > 0 and one.clock_hz > 1e9
    assert one.matmul_flops > one.exp_rate > one.hbm_bytes_per_s / 2  # exponentials outrun 16-bit elements from HBM
    assert one.source.strip() and ";" in one.source  # one source for the rates and one for the shared memory
    assert one.compute_capability[0] in (7, 8, 9, 10)
    assert gpu(one.name) is one
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.sms = 1


def test_names_are_unique_and_the_field_list_is_complete():
    assert len({one.name for one in GPUS.values()}) == len(GPUS)
    for one in GPUS.values():
        assert all(getattr(one, field.name) for field in dataclasses.fields(Gpu))


@pytest.mark.parametrize("name", ["H900", None, ["H200"], "h200"])
def test_an_unknown_gpu_is_refused_with_the_names_that_exist(name):
    with pytest.raises((KeyError, ValueError)) as caught:
        gpu(name)
    message = str(caught.value.args[0])
    assert message.startswith("name must be one of T4, ") and message.endswith(f"but it is {name!r}.")
