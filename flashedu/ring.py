"""Ring attention: the sequence is spread over processes, and keys and values travel around a ring of them.

Each process keeps its queries. In every step it attends to the keys that are visiting, merges the result with what it has,
and has meanwhile begun to send these keys to the next process. A partial result is (o, lse), the output and the log of the
row's sum over some of the keys. It says what chapter 2's state (m, l, o) says, normalised: lse = m + log l and o / l. So
states merge as they do there, and the empty one is (0, -inf). In the backward pass the gradients of keys and values travel
with them and are home after the last step.

With a causal mask, runs of neighbours would be unfair: the process with the last of them would see all keys, the first
hardly any. So process r of G holds chunks r and 2 G - 1 - r of 2 G ("zigzag"). When the keys of process j visit,

    j = r    the chunks lie in order: a causal mask over both, as in a sequence of their own
    j < r    both query chunks see key chunk j, and neither sees chunk 2 G - 1 - j, which lies behind them
    j > r    chunk r sees neither, and chunk 2 G - 1 - r sees both

which is the same work in every step, and for everybody.
"""
import datetime
import re
import time

import torch
import torch.distributed as dist

from flashedu.arguments import boolean, dtype_name, number, positive_int, short
from flashedu.kernels import attention
from flashedu.kernels.inputs import checked, partial_results, sequence, sequence_shards

KEYS, GRADIENTS, AGREEMENT = range(3)  # tags: what a message carries
EMPTY = float("-inf")  # the lse of a row that has seen no key
DTYPES = (*attention.DTYPES, torch.float64)


@checked(sequence)
def shard(x, rank, world, causal=False):
    """The rows of a sequence that one process of a ring holds.

    Takes x (B, H, N, ...), the whole sequence; returns (B, H, N / world, ...): the run number `rank` of `world` equal ones
    or, causal, chunks rank and 2 world - 1 - rank of 2 world equal ones. Raises ValueError unless N can be cut so and
    rank < world, TypeError for an argument of another type. Source: Liu et al. 2023 (Ring Attention), section
    3; Llama team 2024 (The Llama 3 Herd of Models), section 3.3.2, for the two chunks; Brandon et al. 2023 (Striped
    Attention) for the problem that they solve.
    """
    boolean("causal", causal)
    world, rank = positive_int("world", world), positive_int("rank", rank, least=0)
    if rank >= world:
        raise ValueError(f"rank must be less than world, but they are {short(rank)} and {short(world)}.")
    runs = 2 * world if causal else world
    if x.shape[2] == 0 or x.shape[2] % runs:
        what = f"2 world = {short(runs)} with a causal mask" if causal else f"world = {short(runs)}"
        raise ValueError(f"the length of the sequence must be a multiple of {what}, but it is {x.shape[2]}.")
    chunks = x.chunk(runs, dim=2)
    return torch.cat((chunks[rank], chunks[runs - 1 - rank]), dim=2) if causal else chunks[rank].contiguous()


@checked(sequence_shards)
def unshard(shards, causal=False):
    """The whole sequence (B, H, N, ...) from the shards (B, H, N / world, ...) of all processes, in the order of their ranks.

    Raises TypeError for what is no list of tensors of one dtype on one device, or a causal that is neither True nor False;
    ValueError unless the tensors have one shape, N / world even if causal, as it was for `shard`.
    """
    if not causal:
        return torch.cat(list(shards), dim=2)
    first, second = zip(*(x.chunk(2, dim=2) for x in shards))
    return torch.cat((*first, *reversed(second)), dim=2)


@checked(partial_results)
def merge(a, b):
    """Attention over two disjoint sets of keys together, from attention over each.

    Takes two pairs (o, lse) with shapes (..., N, D) and (..., N) and returns one of the same shapes: lse = log(e^lse_a +
    e^lse_b), o = e^(lse_a - lse) o_a + e^(lse_b - lse) o_b. The operation is associative and commutative, and o = 0, lse =
    -inf is its identity. In the package it raises TypeError or ValueError for what are no such pairs. Source: as
    `flashedu.reference.merge_states`, of which it is the normalised form.
    """
    (o_a, lse_a), (o_b, lse_b) = a, b
    lse = torch.logaddexp(lse_a, lse_b)
    safe = lse.masked_fill(lse == EMPTY, 0)  # both empty: -inf - (-inf) would be NaN
    w_a, w_b = (torch.exp(x - safe).unsqueeze(-1) for x in (lse_a, lse_b))
    return w_a * o_a + w_b * o_b, lse


def visible(rank, source, n, causal):
    """Which queries of process `rank` see which keys of process `source`, n of them each.

    Returns (queries, keys, diagonal): two slices, and whether a causal mask lies over them.
    """
    everything, first, second = slice(None), slice(0, n // 2), slice(n // 2, None)
    if not causal or rank == source:
        return everything, everything, causal
    return (everything, first, False) if source < rank else (second, everything, False)


def ring_attention(q, k, v, *, causal=False, scale=None, return_lse=False, backend="auto", group=None, timeout_s=60.0):
    """softmax(scale q k^T) v of a sequence that is spread over the processes of a group, forward and backward.

    Every process calls it with its shards, as `shard` cuts them: q (B, H, N / G, D), k and v (B, Hkv, N / G, D), H a
    multiple of Hkv, alike in all G processes; without a mask the queries may have another length than the keys. With
    causal=True query i of the whole sequence sees key j when j <= i. Returns o like q or, with return_lse=True, (o, lse),
    lse (B, H, N / G), both differentiable, and every process must then run the backward pass.

    dtype, scale and backend are those of `flashedu.kernels.flash_attention`, whose passes compute the steps. Steps are
    added up in float32 (float64 for float64); o of a step has been rounded to the inputs' dtype, gradients have not. The
    bits are the same in every run. group is one of torch.distributed, by default that of all processes: gloo on CPUs,
    NCCL on GPUs. Keys, values and their gradients travel while attention is computed.

    Raises TypeError or ValueError with one sentence for inputs that do not fit, also to the previous process's;
    RuntimeError without a process group or when a second derivative is asked for; and ConnectionError, forward or
    backward, when a neighbour is lost or nothing arrives from it for timeout_s seconds, which must be longer than a step
    takes; the group is of no more use then. (NCCL connects GPUs in its own time, before this counts: give
    init_process_group a device_id.) Source: Liu et al. 2023.
    """
    boolean("causal", causal)
    boolean("return_lse", return_lse)
    number("timeout_s", timeout_s)
    if timeout_s == 0:
        raise ValueError("timeout_s must be positive, but it is 0.")
    scale, passes = attention.prepare(q, k, v, scale, backend)
    if causal and (q.shape[2] != k.shape[2] or q.shape[2] % 2):
        raise ValueError("with a causal mask the shards of q and k must have the same even length, two chunks as `shard` cuts "
                         f"them, but they have {q.shape[2]} and {k.shape[2]}.")
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError("ring_attention needs a process group: call torch.distributed.init_process_group in every process first.")
    ring = Ring(group, timeout_s)
    ring.agree([*q.shape, *k.shape, DTYPES.index(q.dtype), causal, scale], q.device)
    o, lse = RingAttention.apply(*(x.resolve_neg() for x in (q, k, v)), bool(causal), scale, passes, ring)
    return (o, lse) if return_lse else o


class RingAttention(torch.autograd.Function):
    """Both passes: between them a process keeps its own q, k, v, o and lse, and the others' keys come round a second time."""

    @staticmethod
    def forward(ctx, q, k, v, causal, scale, passes, ring):
        attend, ctx.backward_pass = passes
        o, lse = _zeros(q), _zeros(q[..., 0]) + EMPTY
        for source, (k_j, v_j) in ring.around(torch.stack((k, v)), KEYS):
            rows, keys, diagonal = visible(ring.rank, source, q.shape[2], causal)
            part = attend(q[:, :, rows], k_j[:, :, keys], v_j[:, :, keys], diagonal, scale)
            o[:, :, rows], lse[:, :, rows] = merge((o[:, :, rows], lse[:, :, rows]), part)
        o = o.to(q.dtype)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.causal, ctx.scale, ctx.ring = causal, scale, ring
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx, do, dlse):
        if torch.is_grad_enabled():  # by create_graph=True
            raise RuntimeError("ring_attention has no second derivative: leave out create_graph=True.")
        (q, k, v, o, lse), ring = ctx.saved_tensors, ctx.ring
        do = torch.zeros_like(o) if do is None else do.resolve_neg()  # None: only lse was used
        dlse = None if dlse is None else dlse.resolve_neg()
        kv = torch.stack((k, v))
        dq, dkv, message = _zeros(q), _zeros(kv), None
        for source, (k_j, v_j) in ring.around(kv, KEYS):
            rows, keys, diagonal = visible(ring.rank, source, q.shape[2], ctx.causal)
            dq_j, dk_j, dv_j = ctx.backward_pass(  # o and lse are those of all keys, so P is right for these too
                q[:, :, rows], k_j[:, :, keys], v_j[:, :, keys], o[:, :, rows], lse[:, :, rows], do[:, :, rows],
                diagonal, ctx.scale, None if dlse is None else dlse[:, :, rows], True,  # not rounded before they are added up
            )
            dkv = ring.arrived(message) if message else dkv  # what these keys have gathered on their way
            dq[:, :, rows] += dq_j
            dkv[0, :, :, keys] += dk_j
            dkv[1, :, :, keys] += dv_j
            message = ring.pass_on(dkv, GRADIENTS)
        dk, dv = ring.arrived(message)  # home
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None, None, None


def _zeros(x):
    """Zeros in the shape of x and the precision of sums."""
    return torch.zeros(x.shape, dtype=torch.float64 if x.dtype == torch.float64 else torch.float32, device=x.device)


class Ring:
    """A process's place: what it passes on goes to the next process, and the like of it arrives from the previous one."""

    def __init__(self, group, timeout_s):
        self.group, self.timeout_s = dist.group.WORLD if group is None else group, timeout_s
        self.rank, self.world = dist.get_rank(self.group), dist.get_world_size(self.group)
        if self.rank < 0:
            raise ValueError("ring_attention must be called by processes of the group, but this one is not in it.")
        self.previous, self.next = (self.rank - 1) % self.world, (self.rank + 1) % self.world

    def around(self, x, tag):
        """Yields (source, x of that process) for every process, its own first. While the caller computes, x travels on.

        It takes x over: two tensors of its size serve in turn, one at work and under way, the other filled by what arrives.
        """
        spare = torch.empty_like(x) if self.world > 1 else None
        for step in range(self.world):
            message = self.pass_on(x, tag, spare) if step < self.world - 1 else None
            yield (self.rank - step) % self.world, x
            if message:
                x, spare = self.arrived(message), x

    def pass_on(self, x, tag, arriving=None):
        """Begin to send x and to receive its like, into `arriving` if that is given; returns the message that `arrived` waits for."""
        if self.world == 1:
            return [], x, x
        arriving = torch.empty_like(x) if arriving is None else arriving
        both = [dist.P2POp(dist.irecv, arriving, group=self.group, tag=tag, group_peer=self.previous),
                dist.P2POp(dist.isend, x, group=self.group, tag=tag, group_peer=self.next)]
        try:
            return dist.batch_isend_irecv(both), arriving, x
        except RuntimeError as error:
            raise self._lost(error) from error

    def arrived(self, message):
        """What the previous process has sent, waited for at most timeout_s."""
        works, arriving, _ = message
        deadline = time.monotonic() + self.timeout_s
        try:
            for work in works:
                while arriving.is_cuda and not work.is_completed():  # NCCL's own wait would let the GPU wait, for ever
                    if time.monotonic() > deadline:
                        raise RuntimeError("nothing has arrived")
                    time.sleep(1e-4)
                work.wait(datetime.timedelta(seconds=max(0.001, deadline - time.monotonic())))  # 0 would be for ever
        except RuntimeError as error:
            raise self._lost(error) from error
        return arriving

    def agree(self, call, device):
        """Raise ValueError unless the previous process makes the same call: what it sends would not fit."""
        mine = torch.tensor(call, dtype=torch.float64, device=device)
        theirs = self.arrived(self.pass_on(mine, AGREEMENT)).tolist()
        if theirs != call:
            raise ValueError("ring_attention must be called with the same shapes, dtype, causal and scale in every process, but "
                             f"rank {self.rank} has {_words(call)} and rank {self.previous} {_words(theirs)}.")

    def _lost(self, error):
        self.group.abort()  # or NCCL would keep the GPU waiting
        who = " or ".join(f"rank {rank}" for rank in dict.fromkeys((self.previous, self.next)))
        why = re.sub(r"^\[[^]]*\] ", "", str(error)).splitlines()[0].split(". ")[0]  # not where in the library it was said
        why = re.sub(r" \[\S+\]:\d+", "", why)  # nor a port that changes every time
        return ConnectionError(f"ring_attention on rank {self.rank} of {self.world} has lost {who}, or has waited longer than "
                               f"timeout_s = {self.timeout_s:g} s: {why}")


def _words(call):
    q, k, (dtype, causal, scale) = call[:4], call[4:8], call[8:]
    q, k = (tuple(int(size) for size in shape) for shape in (q, k))
    return f"q {q}, k {k}, {dtype_name(DTYPES[int(dtype)])}, causal={bool(causal)}, scale={scale:g}"
