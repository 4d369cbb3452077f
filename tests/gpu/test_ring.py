"""On two GPUs of one host: ring attention over NCCL is exact, repeats its bits, and does not wait for ever."""
import importlib.util

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("there is no Triton on this system", allow_module_level=True)

import torch
from problems import arrays, bounds
from ring_jobs import Sequence, solve, suffer

from flashedu.kernels import DEVICE
from flashedu.processes import run

WORLD = 2
SEQUENCES = (  # chunks that no tile divides, once with more queries than keys; of 128 columns a Hopper GPU has a kernel of its own
    *(Sequence((1, 4, 2, 1000, 1000, 64), dtype, causal) for dtype in ("float32", "float16") for causal in (False, True)),
    Sequence((2, 4, 1, 1500, 700, 64), "float16"),
    *(Sequence((1, 4, 2, 2048, 2048, 128), "bfloat16", causal) for causal in (False, True)),
    Sequence((1, 4, 2, 1004, 1004, 128), "bfloat16", causal=True, scale=0.2),
)
pytestmark = pytest.mark.timeout(400)  # the kernels are compiled in each process


@pytest.fixture(autouse=True)
def gpus(gpu):
    if not torch.distributed.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    if torch.cuda.device_count() < WORLD:
        pytest.skip(f"needs {WORLD} GPUs of one host, and there is {torch.cuda.device_count()}")


def test_exact_and_the_same_bits_again(record_property):
    outcomes = run(solve, WORLD, SEQUENCES, DEVICE, 150, backend="nccl", limit_s=380)
    assert all(isinstance(outcome.value, list) for outcome in outcomes), outcomes
    assert all(same for outcome in outcomes for _, same in outcome.value)
    for sequence, (answer, _) in zip(SEQUENCES, outcomes[0].value, strict=True):
        limits = bounds(*sequence.tensors(DEVICE)[:4], sequence)
        found = {name: bound.ratio(arrays(answer[name])[0]) for name, bound in limits.items()}
        record_property("ratios", [sequence.dtype, found, str(sequence)])
        assert max(found.values()) <= 1, f"{sequence}: {found}"


@pytest.mark.parametrize("how", ["kill", "raise", "hang"])
def test_a_lost_process_is_an_error_of_the_other_within_the_limit(how):
    timeout_s = 10
    survivor, _ = run(suffer, WORLD, 1, how, 1, timeout_s, DEVICE, backend="nccl", limit_s=300)
    error, seconds = survivor.value
    assert isinstance(error, ConnectionError)
    assert str(error).startswith("ring_attention on rank 0 of 2 has lost rank 1, or has waited longer than timeout_s = 10 s: ")
    assert seconds < 2 * timeout_s
