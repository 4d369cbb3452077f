"""Ring attention in processes of this machine, over gloo: exact, the same bits every time, fair, and never hanging."""
import functools
import importlib.util
import itertools
import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this torch has no gloo", allow_module_level=True)

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from ring_jobs import NAMES, Sequence, disagree, events, solve, some_of_all, suffer  # noqa: E402

from flashedu.exactness import attention_bounds  # noqa: E402
from flashedu.gradient_bounds import gradient_bounds  # noqa: E402
from flashedu.kernels import flash_attention  # noqa: E402
from flashedu.kernels.numpy_passes import BLOCK  # noqa: E402
from flashedu.processes import run  # noqa: E402
from flashedu.ring import Ring, merge, ring_attention, shard, unshard, visible  # noqa: E402

WORLDS = (1, 2, 3, 4)


# ---- one process: shards, who sees what, the merge

@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
def test_shards_are_the_sequence(world, causal):
    x = torch.arange(2 * 3 * 28 * world * 5).reshape(2, 3, 28 * world, 5)
    shards = [shard(x, rank, world, causal) for rank in range(world)]
    assert {tuple(part.shape) for part in shards} == {(2, 3, 28, 5)}
    assert all(part.is_contiguous() for part in shards)
    assert torch.equal(unshard(shards, causal), x)
    assert torch.equal(unshard([shard(x[..., 0], rank, world, causal) for rank in range(world)], causal), x[..., 0])


def test_a_causal_shard_has_a_chunk_from_each_end():
    x = torch.arange(12)[None, None, :, None]
    assert [shard(x, rank, 3, causal=True).flatten().tolist() for rank in range(3)] == [[0, 1, 10, 11], [2, 3, 8, 9], [4, 5, 6, 7]]
    assert [shard(x, rank, 3).flatten().tolist() for rank in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def pairs(rank, source, n, causal):
    """The (query, key) positions in its shard and the other's that a step computes: a mask (n, n)."""
    rows, keys, diagonal = visible(rank, source, n, causal)
    seen = np.zeros((n, n), dtype=bool)
    seen[rows, keys] = True
    return seen & np.tri(n, dtype=bool) if diagonal else seen


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_every_visible_key_is_seen_once_and_everybody_works_alike(world):
    n, chunk = 6, 3
    whole = torch.arange(n * world)[None, None, :]
    positions = [shard(whole, rank, world, causal=True).flatten().numpy() for rank in range(world)]
    for rank in range(world):
        steps = []
        for source in range(world):
            seen = pairs(rank, source, n, True)
            assert np.array_equal(seen, positions[source][None, :] <= positions[rank][:, None])
            steps.append(int(seen.sum()))
        diagonal = steps.pop(rank)
        assert diagonal == n * (n + 1) // 2
        assert steps == [2 * chunk * chunk] * (world - 1)
        assert all(pairs(rank, source, n, False).all() for source in range(world))


def pair(values, lse):
    return torch.tensor(values, dtype=torch.float32).reshape(1, 1, -1, 1), torch.tensor(lse, dtype=torch.float32).reshape(1, 1, -1)


def test_merging_with_nothing_changes_no_bit_and_nothing_with_nothing_is_nothing():
    some = pair([3.7, -1.3, 0.0], [100.3, -0.7, float("-inf")])
    nothing = pair([0.0] * 3, [float("-inf")] * 3)
    for merged in (merge(some, nothing), merge(nothing, some)):
        assert all(torch.equal(x, y) for x, y in zip(merged, some))


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(1, 40), st.integers(0, 40), st.floats(0.1, 30), st.integers(0, 1000))
def test_merged_parts_are_attention_over_all_keys(n_k, cut, magnitude, seed):
    """Within the bound of one that saw the keys tile by tile; either part may be empty."""
    numbers = torch.randn(3, 1, 1, n_k, 8, generator=torch.Generator().manual_seed(seed))
    q, k, v = numbers[0, :, :, :3] * magnitude, numbers[1], numbers[2]
    parts = [flash_attention(q, k[:, :, keys], v[:, :, keys], return_lse=True) if k[:, :, keys].numel() else
             (torch.zeros_like(q), torch.full(q.shape[:3], float("-inf"))) for keys in (slice(0, cut), slice(cut, None))]
    bounds = attention_bounds(q.numpy(), k.numpy(), v.numpy(), block_k=1)
    for a, b in (parts, reversed(parts)):
        assert max(bound.ratio(x.numpy()) for bound, x in zip(bounds, merge(a, b), strict=True)) <= 1


# ---- in a group: exact, and the same bits again

def sequences(world):
    n = 2 * world  # the shortest: chunks of one row
    return [
        Sequence((2, 4, 2, 12 * n, 12 * n, 16), causal=True),
        Sequence((2, 4, 2, 12 * n, 5 * n, 16)),
        Sequence((1, 4, 1, n, n, 8), causal=True, lse_too=True),
        Sequence((1, 2, 1, n // 2, n // 2, 8), lse_too=True),
        Sequence((1, 2, 1, 130 * n, 130 * n, 8), causal=True),
        Sequence((1, 2, 2, 20 * n, 20 * n, 16), causal=True, magnitude=100),
        Sequence((1, 2, 2, 20 * n, 20 * n, 16), scale=0.7),
        Sequence((1, 4, 2, 12 * n, 12 * n, 16), "float64", causal=True),
        Sequence((1, 4, 2, 12 * n, 12 * n, 16), "float64"),
        *(Sequence((1, 4, 2, 16 * n, 16 * n, 32), dtype, causal) for dtype in ("float16", "bfloat16") for causal in (False, True)),
        *(Sequence((1, 4, 1, 16 * n, 16 * n, 64), dtype, sparse=True) for dtype in ("float16", "bfloat16")),  # few terms in dk and dv
    ]


@functools.cache
def solved(world):
    """What each process of a group made of the sequences."""
    return run(solve, world, sequences(world), limit_s=90)


def array(x):
    return x.to(torch.float64 if x.dtype == torch.float64 else torch.float32).numpy()


def bounds(sequence, world):
    """The `Bound` of each result, for sums that are made chunk by chunk, in tiles of the reference."""
    *tensors, dlse = (array(x) for x in sequence.tensors())
    n_q, n_k = (min(BLOCK, n // (2 * world if sequence.causal else world)) for n in sequence.shape[3:5])
    options = {"causal": sequence.causal, "scale": sequence.scale, "dtype": sequence.dtype, "block_k": n_k}
    found = *attention_bounds(*tensors[:3], **options), *gradient_bounds(*tensors, block_q=n_q, **options)
    found = dict(zip(NAMES, found, strict=True))
    if sequence.lse_too:  # dq and dk have two terms then, whose bounds add up
        if importlib.util.find_spec("triton") is None:
            pytest.skip("the bound of lse's gradient comes with the kernels' tests, which need Triton")
        from problems import lse_gradient_bounds

        (_, heads), group = tensors[0].shape[:2], sequence.shape[1] // sequence.shape[2]
        for h in range(heads):
            more = lse_gradient_bounds(tensors[0][0, h], tensors[1][0, h // group], dlse[0, h], sequence.causal, sequence.scale)
            for name, head, term in (("dq", h, more[0]), ("dk", h // group, more[1])):
                found[name].exact[0, head] += term.exact
                found[name].bound[0, head] += term.bound
    return found


@pytest.mark.parametrize("number", range(len(sequences(1))), ids=lambda number: str(sequences(1)[number]))
@pytest.mark.parametrize("world", WORLDS)
def test_exact(world, number):
    outcomes, sequence = solved(world), sequences(world)[number]
    assert all(outcome.exitcode == 0 and isinstance(outcome.value, list) for outcome in outcomes), outcomes
    (answer, _), inputs = outcomes[0].value[number], sequence.tensors()
    for name, like in (("o", 0), ("dq", 0), ("dk", 1), ("dv", 2)):
        assert (answer[name].dtype, answer[name].shape) == (inputs[like].dtype, inputs[like].shape)
    assert answer["lse"].dtype == (torch.float64 if sequence.dtype == "float64" else torch.float32)
    ratios = {name: bound.ratio(array(answer[name])) for name, bound in bounds(sequence, world).items()}
    assert max(ratios.values()) <= 1, ratios


@pytest.mark.parametrize("world", WORLDS)
def test_same_bits_in_every_run(world):
    for outcome in solved(world):
        assert all(same for _, same in outcome.value)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no Triton on this system")
def test_kernels_of_the_interpreter():
    """As on a GPU, but for where they run: they are given parts of tensors."""
    import problems

    from flashedu.kernels import DEVICE

    if DEVICE == "cuda":
        pytest.skip("this machine's kernels run on its GPU")
    some = [Sequence((1, 2, 1, 48, 48, 16), dtype, causal, backend="triton") for dtype in ("float32", "float16") for causal in (False, True)]
    outcomes = run(solve, 2, some, limit_s=100)
    for sequence, (answer, same) in zip(some, outcomes[0].value, strict=True):
        limits = problems.bounds(*sequence.tensors()[:4], sequence)
        assert max(bound.ratio(array(answer[name])) for name, bound in limits.items()) <= 1
        assert same


def test_one_process_gives_the_bits_of_flash_attention():
    for sequence, (answer, _) in zip(sequences(1), solved(1)[0].value, strict=True):
        *leaves, do, dlse = sequence.tensors()
        leaves = [x.requires_grad_() for x in leaves]
        outputs = flash_attention(*leaves, causal=sequence.causal, scale=sequence.scale, return_lse=True)
        count = 2 if sequence.lse_too else 1
        gradients = torch.autograd.grad(outputs[:count], leaves, (do, dlse)[:count])
        assert all(torch.equal(answer[name], x.detach()) for name, x in zip(NAMES, (*outputs, *gradients), strict=True))


def test_a_ring_of_some_processes():
    sequence = Sequence((1, 2, 1, 24, 24, 8), causal=True)
    first, outsider, second = (outcome.value for outcome in run(some_of_all, 3, [0, 2], sequence))
    assert bounds(sequence, 2)["o"].ratio(array(unshard([first, second], causal=True))) <= 1
    assert isinstance(outsider, ValueError) and "this one is not in it" in str(outsider)


def test_messages_travel_while_a_process_computes():
    """Keys are sent before each step but the last, gradients after each, and waited for as late as can be."""
    for forward, backward in (outcome.value for outcome in run(events, 3)):
        assert forward == ["send", "wait", *["send", "compute", "wait"] * 2, "compute"]
        first, middle, last = ["send", "compute", "send", "wait"], ["send", "compute", "wait", "send", "wait"], ["compute", "wait", "send", "wait"]
        assert backward == first + middle + last


def test_the_measurement_runs(tmp_path):
    """All of its program but for the GPUs."""
    import measure_ring

    program = [sys.executable, measure_ring.__file__, "--dry-run", "--out", str(tmp_path)]
    subprocess.run(program, check=True, timeout=100, capture_output=True)
    (file,) = tmp_path.iterdir()
    *rows, message = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert {(row["phase"], row["contender"]) for row in rows} == set(itertools.product(("forward", "backward"), ("one_gpu", *measure_ring.RINGS)))
    assert all(row["rounds"] == measure_ring.ROUNDS and row["speedup"] > 0 for row in rows)
    assert message["message_bytes"] == 2 * measure_ring.TINY["kv_heads"] * measure_ring.TINY["n"] // 2 * measure_ring.TINY["head_dim"] * 2
    ratios = [row["error_over_bound"] for row in rows if "error_over_bound" in row]
    assert len(ratios) == 2 and all(0 < max(each.values()) <= 1 for each in ratios)


# ---- failures

STEPS = {"forward": 1, "backward": 3 + 1}  # in a ring of three: the second step of the pass


@pytest.mark.parametrize("phase", STEPS)
@pytest.mark.parametrize("how", ["kill", "raise", "hang"])
def test_a_lost_process_is_an_error_of_the_others_within_the_limit(how, phase):
    timeout_s, victim = 2, 1
    outcomes = run(suffer, 3, victim, how, STEPS[phase], timeout_s, limit_s=40)
    lost = outcomes.pop(victim)
    assert {"kill": lost.exitcode != 0, "raise": isinstance(lost.value, ArithmeticError), "hang": lost.exitcode == 1}[how]
    for rank, outcome in zip((0, 2), outcomes, strict=True):
        assert outcome.exitcode == 0, "it gave its answer and did not end"
        error, seconds = outcome.value
        assert isinstance(error, ConnectionError)
        assert str(error).startswith(f"ring_attention on rank {rank} of 3 has lost rank {(rank - 1) % 3} or rank {(rank + 1) % 3}, or has waited longer than timeout_s = 2 s: ")
        assert seconds < 3 * timeout_s


def test_a_gpu_is_not_left_waiting():
    """NCCL's messages are asked whether they have come, and the group is given up in the end, which ends what the GPU does."""
    aborted, never = [], SimpleNamespace(is_completed=lambda: False, wait=lambda limit: pytest.fail("this could take for ever"))
    here = object.__new__(Ring)
    here.__dict__.update(rank=0, world=2, previous=1, next=1, timeout_s=0.2, group=SimpleNamespace(abort=lambda: aborted.append(True)))
    with pytest.raises(ConnectionError, match=r"on rank 0 of 2 has lost rank 1, .* nothing has arrived"):
        here.arrived(([never], SimpleNamespace(is_cuda=True), None))
    assert aborted == [True]


@pytest.mark.parametrize("other, words", [
    (((1, 2, 4, 8), {}), "rank 0 has q (1, 2, 6, 8), k (1, 2, 6, 8), float32, causal=False, scale=0.353553 and rank 1 q (1, 2, 4, 8), k"),
    (((1, 2, 6, 8), {"causal": True}), "causal=False, scale=0.353553 and rank 1 q (1, 2, 6, 8), k (1, 2, 6, 8), float32, causal=True"),
    (((1, 2, 6, 8), {"scale": 0.5}), "and rank 1 q (1, 2, 6, 8), k (1, 2, 6, 8), float32, causal=False, scale=0.5"),
])
def test_calls_that_differ_are_refused(other, words):
    outcomes = run(disagree, 2, [((1, 2, 6, 8), {}), other])
    assert all(isinstance(outcome.value, ValueError) and outcome.exitcode == 0 for outcome in outcomes)
    assert words in str(outcomes[0].value)


X, LSE = torch.zeros(1, 2, 6, 8), torch.zeros(1, 2, 6)


@pytest.mark.parametrize("call, error, words", [
    (lambda: shard(X, 0, 4), ValueError, "must be a multiple of world = 4, but it is 6"),
    (lambda: shard(X, 0, 2, causal=True), ValueError, "must be a multiple of 2 world = 4 with a causal mask, but it is 6"),
    (lambda: shard(X[:, :, :0], 0, 2), ValueError, "but it is 0"),
    (lambda: shard(X, 3, 3), ValueError, "rank must be less than world, but they are 3 and 3"),
    (lambda: shard(X, -1, 3), ValueError, "rank must be at least 0"),
    (lambda: shard(X, 0, 3, causal=1), TypeError, "causal must be True or False"),
    (lambda: shard(X, 0, 10**400), ValueError, "0000..., but it is 6"),
    (lambda: shard(X.numpy(), 0, 2), TypeError, "x must be a torch tensor, but it is of type ndarray"),
    (lambda: shard(None, 0, 2), TypeError, "x must be a torch tensor, but it is of type NoneType"),
    (lambda: shard(X[0, 0], 0, 2), ValueError, "x must have shape (B, H, N, ...), but it has (6, 8)"),
    (lambda: shard(X.to_sparse(), 0, 2), TypeError, "x must be a dense tensor, but it is sparse_coo"),
    (lambda: shard(X, 0), TypeError, "was called wrongly: missing a required argument: 'world'"),
    (lambda: unshard(None), TypeError, "shards must be a list of tensors, but it is None"),
    (lambda: unshard(X), TypeError, "shards must be a list of tensors, but it is tensor"),
    (lambda: unshard([]), ValueError, "shards must hold at least one tensor"),
    (lambda: unshard([], causal=True), ValueError, "shards must hold at least one tensor"),
    (lambda: unshard([X.numpy()] * 2), TypeError, "shard 0 must be a torch tensor, but it is of type ndarray"),
    (lambda: unshard([X, None]), TypeError, "shard 1 must be a torch tensor, but it is of type NoneType"),
    (lambda: unshard([X, X[..., 1:]]), ValueError, "shards must have one shape, but shard 0 has (1, 2, 6, 8) and shard 1 (1, 2, 6, 7)"),
    (lambda: unshard([X, X[:, :, 1:]]), ValueError, "and shard 1 (1, 2, 5, 8)"),
    (lambda: unshard([X, X.double()]), TypeError, "they are float32 on cpu and float64 on cpu"),
    (lambda: unshard([X, X.to("meta")]), TypeError, "they are float32 on cpu and float32 on meta"),
    (lambda: unshard([X[0, 0]] * 2), ValueError, "a shard must have shape (B, H, N / world, ...), but it has (6, 8)"),
    (lambda: unshard([X[:, :, 1:]] * 2, causal=True), ValueError, "N / world even with a causal mask, but it has (1, 2, 5, 8)"),
    (lambda: unshard([X, X], causal=1), TypeError, "causal must be True or False"),
    (lambda: merge(1, 2), TypeError, "a must be a pair (o, lse), but it is 1"),
    (lambda: merge((X, LSE), None), TypeError, "b must be a pair (o, lse), but it is None"),
    (lambda: merge((X,), (X, LSE)), TypeError, "a must be a pair (o, lse), but it is (tensor"),
    (lambda: merge((X, LSE), (X.numpy(), LSE)), TypeError, "o of b must be a torch tensor, but it is of type ndarray"),
    (lambda: merge((X, LSE), (X, LSE.int())), TypeError, "lse of b must be float32, float16, bfloat16 or float64, but it is int32"),
    (lambda: merge((X, LSE), (X, X)), ValueError, "but they are (1, 2, 6, 8), (1, 2, 6), (1, 2, 6, 8), (1, 2, 6, 8)"),
    (lambda: merge((X, LSE), (X[..., 1:], LSE)), ValueError, "(1, 2, 6, 7), (1, 2, 6)"),
    (lambda: merge((X, LSE), (X[:, :, 1:], LSE[:, :, 1:])), ValueError, "(1, 2, 5, 8), (1, 2, 5)"),
    (lambda: merge((X, LSE), (X.to("meta"), LSE.to("meta"))), TypeError, "o of a and o of b must be on one device"),
    (lambda: merge((LSE[0, 0, 0], LSE[0, 0, 0]), (LSE[0, 0, 0], LSE[0, 0, 0])), ValueError, "but they are (), (), (), ()"),
    (lambda: merge((X, LSE)), TypeError, "was called wrongly: missing a required argument: 'b'"),
    (lambda: ring_attention(X, X, X, causal=None), TypeError, "causal must be True or False"),
    (lambda: ring_attention(X, X, X, timeout_s=0), ValueError, "timeout_s must be positive"),
    (lambda: ring_attention(X, X, X, timeout_s="1"), TypeError, "timeout_s must be a number"),
    (lambda: ring_attention(X, X, X, backend="fast"), ValueError, "backend must be one of"),
    (lambda: ring_attention(X, X, X, backend="hopper"), ValueError, "needs a GPU of compute capability 9.0"),
    (lambda: ring_attention(X, X.double(), X), TypeError, "must have one dtype"),
    (lambda: ring_attention(X, X[0], X), ValueError, "k must have shape"),
    (lambda: ring_attention(X, X, X, scale=-1), ValueError, "scale must be a finite number"),
    (lambda: ring_attention(X, X, X, scale=0), ValueError, "scale must be positive"),
    (lambda: ring_attention(X[:, :, :5], X[:, :, :5], X[:, :, :5], causal=True), ValueError, "the same even length, two chunks as `shard` cuts them, but they have 5 and 5"),
    (lambda: ring_attention(X, X[:, :, :4], X[:, :, :4], causal=True), ValueError, "but they have 6 and 4"),
    (lambda: ring_attention(X, X, X), RuntimeError, "call torch.distributed.init_process_group"),
])
def test_refusals(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value) and str(caught.value).count(". ") == 0



def test_two_tensors_serve_in_turn():
    """However many processes there are, keys are in no more than two places beside the process's own."""
    here, places = object.__new__(Ring), set()
    here.rank, here.world = 0, 5

    def pass_on(x, tag, arriving):
        assert x.data_ptr() != arriving.data_ptr()
        places.update((x.data_ptr(), arriving.data_ptr()))
        return [], arriving, x

    here.pass_on, here.arrived = pass_on, lambda message: message[1]
    assert [source for source, _ in here.around(torch.zeros(3), tag=0)] == [0, 4, 3, 2, 1]
    assert len(places) == 2
