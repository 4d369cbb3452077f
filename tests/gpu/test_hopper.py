"""On a Hopper GPU: the Gluon kernel is exact, repeats its bits, keeps heads apart, and ends whatever the lengths."""
import importlib.util
import itertools
import zlib

import numpy as np
import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("there is no Triton on this system", allow_module_level=True)

import torch
from problems import HUGE, Problem, ratios, solve

from flashedu.kernels import DEVICE, flash_attention

HEAD_DIMS, DTYPES = (64, 128, 256), ("float16", "bfloat16")
SHAPES = (  # batch, heads, kv_heads, n_q, n_k
    (2, 2, 2, 256, 256), (1, 4, 2, 1001, 1001), (1, 4, 2, 129, 65), (1, 4, 2, 65, 129), (2, 4, 1, 17, 777), (1, 4, 2, 777, 17), (1, 1, 1, 1, 1), (3, 6, 2, 400, 1024),
)
LAYOUTS = ("plain", "bnhd", "packed")  # what TMA can load
EDGES = (1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 383, 384)
RANDOM = 17  # problems of each program


@pytest.fixture(autouse=True)
def hopper(gpu):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")


@pytest.fixture
def exact(record_property):
    """Solves problems by backend "hopper" and fails unless rounding explains every result of each."""
    def judge(problems):
        for problem in problems:
            found = ratios(problem, DEVICE, "hopper")
            record_property("ratios", [problem.dtype, found, str(problem)])
            assert max(found.values()) <= 1, f"{problem}: {found}"

    return judge


programs = [pytest.mark.parametrize("causal", [False, True]), pytest.mark.parametrize("d", HEAD_DIMS), pytest.mark.parametrize("dtype", DTYPES)]


def each_program(test):
    for mark in programs:
        test = mark(test)
    return test


@each_program
def test_grid(dtype, d, causal, exact):
    exact(Problem((*shape, d), dtype, causal, seed=i) for i, shape in enumerate(SHAPES))


def random_problem(dtype, d, causal, i):
    rng = np.random.default_rng(zlib.crc32(repr((dtype, d, causal, i)).encode()))
    n_q, n_k = (int(rng.choice(EDGES) if rng.random() < 0.4 else rng.integers(1, 1101)) for _ in range(2))
    kv_heads = int(rng.integers(1, 4))
    return Problem(
        (int(rng.integers(1, 3)), kv_heads * int(rng.integers(1, 4)), kv_heads, n_q, n_k, d), dtype, causal, str(rng.choice(LAYOUTS)),
        magnitude=float(rng.choice([1, 8])), offset=float(rng.choice([0, 0, 8])), scale=None if rng.random() < 0.5 else round(float(rng.uniform(0.02, 0.5)), 3), seed=i,
    )


@each_program
def test_random(dtype, d, causal, exact):
    exact(random_problem(dtype, d, causal, i) for i in range(RANDOM))


@each_program
def test_integers_exactly(dtype, d, causal):
    """Equal scores make every weight 1 and a power of two of visible keys: sums of integers, which no rounding touches."""
    n = 1024
    source = torch.Generator(DEVICE).manual_seed(d)
    v = torch.randint(-8, 9, (2, 4, n, d), generator=source, device=DEVICE)
    zeros = torch.zeros_like(v, dtype=getattr(torch, dtype))
    o, lse = flash_attention(zeros, zeros, v.to(zeros.dtype), causal=causal, return_lse=True, backend="hopper")
    seen = torch.arange(1, n + 1, device=DEVICE) if causal else torch.full((n,), n, device=DEVICE)
    sums = v.cumsum(2) if causal else v.sum(2, keepdim=True).expand(v.shape)
    powers = (seen & (seen - 1)) == 0
    assert torch.equal(o[:, :, powers], (sums.double() / seen[:, None])[:, :, powers].to(o.dtype))
    torch.testing.assert_close(lse, seen.double().log().float().expand(lse.shape), rtol=3e-7, atol=3e-7)


@each_program
def test_one_key_wins_exactly(dtype, d, causal):
    """Where one score is far above the others, o is that key's value to the last bit, in whichever tile it lies."""
    n = 700
    k = torch.zeros(1, 2, n, d, device=DEVICE, dtype=getattr(torch, dtype))
    q, v = torch.ones_like(k), torch.randn_like(k)
    for winner in (0, 63, 64, 127, 128, 500, n - 1):
        k.zero_()
        k[:, :, winner] = 8
        o = flash_attention(q, k, v, causal=causal, scale=1.0, backend="hopper")
        rows = slice(winner, None) if causal else slice(None)
        assert torch.equal(o[:, :, rows], v[:, :, winner : winner + 1].expand(v.shape)[:, :, rows])


@each_program
def test_the_same_bits(dtype, d, causal):
    q, k, v, _ = Problem((2, 16, 8, 1999, 1999, d), dtype, causal).tensors(DEVICE)
    first = flash_attention(q, k, v, causal=causal, return_lse=True, backend="hopper")
    assert all(x.isfinite().all() for x in first)
    for repeat in range(1, 100):
        again = flash_attention(q, k, v, causal=causal, return_lse=True, backend="hopper")
        assert all(map(torch.equal, first, again)), f"run {repeat}"


@each_program
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_nan_stays_in_its_head(dtype, d, causal, poison):
    """Ragged lengths, so that tiles reach beyond the end of a head into the next one's memory."""
    q, k, v, _ = Problem((2, 4, 2, 333, 333, d), dtype, causal).tensors(DEVICE)
    clean = flash_attention(q, k, v, causal=causal, return_lse=True, backend="hopper")
    for x in (k, v):
        x[0, 1, :] = poison
    q[1, 0, :] = poison
    dirty = flash_attention(q, k, v, causal=causal, return_lse=True, backend="hopper")
    untouched = torch.ones(2, 4, dtype=torch.bool, device=DEVICE)
    untouched[0, 2:] = untouched[1, 0] = False  # heads 2 and 3 read key head 1
    assert all(torch.equal(x[untouched], y[untouched]) for x, y in zip(clean, dirty))
    assert dirty[0][1, 0].isnan().all()


@each_program
def test_every_length_up_to_four_tiles_ends(dtype, d, causal):
    """Rings go around, and no barrier is waited for that nobody signals. A row that sees no key gives 0."""
    for n_k in itertools.chain(range(1, 18), *(range(64 * i - 2, 64 * i + 3) for i in range(1, 9))):
        for n_q in (1, 65, 200):
            q, k = torch.zeros(1, 3, n_q, d, device=DEVICE, dtype=getattr(torch, dtype)), torch.zeros(1, 1, n_k, d, device=DEVICE, dtype=getattr(torch, dtype))
            o = flash_attention(q, k, torch.ones_like(k), causal=causal, backend="hopper")
            unseen = max(0, n_q - n_k) if causal else 0
            assert (o[:, :, :unseen] == 0).all() and (o[:, :, unseen:] == 1).all(), (n_q, n_k)


def test_results_beyond_32_bits():
    """More than 2**31 elements in o: the last head is where they end."""
    n, d = 2**19, 64
    heads = HUGE // (n * d) + 1
    if torch.cuda.mem_get_info()[0] < 5 * heads * n * d:
        pytest.skip("needs 11 GB of free GPU memory")
    q = torch.randn(1, heads, n, d, device=DEVICE, dtype=torch.bfloat16)
    k, v = torch.randn(2, 1, 1, 16, d, device=DEVICE, dtype=torch.bfloat16)
    o, lse = flash_attention(q, k, v, return_lse=True, backend="hopper")
    for h in (0, heads - 1):
        one = flash_attention(q[:, h : h + 1, -300:], k, v, return_lse=True, backend="hopper")
        assert torch.equal(o[:, h : h + 1, -300:], one[0]) and torch.equal(lse[:, h : h + 1, -300:], one[1])


def test_auto_takes_it_where_it_fits():
    q, k, v, do = Problem((1, 4, 2, 300, 300, 128), "bfloat16", True).tensors(DEVICE)
    assert all(map(torch.equal, solve(q, k, v, do, Problem((), causal=True), "auto").values(), solve(q, k, v, do, Problem((), causal=True), "hopper").values()))
    for x in (q.float(), q[..., :96], q.mT.contiguous().mT):
        flash_attention(x, x, x, backend="auto")
        with pytest.raises(ValueError, match=r'^backend "hopper" .*; "triton" takes what it refuses.$'):
            flash_attention(x, x, x, backend="hopper")
