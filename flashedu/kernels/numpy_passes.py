"""The NumPy reference as the two passes of `flash_attention`: head by head on the CPU, in float32, or float64 for float64."""
import numpy as np
import torch

from flashedu.reference import tiled_attention, tiled_backward

BLOCK = 128


def _wide(q):
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _heads(q, *tensors):
    """For every query head: where it is, where its key head is, and the NumPy arrays of q and the tensors there."""
    batch, heads = q.shape[:2]
    arrays = [x.detach().to("cpu", _wide(q)).numpy() for x in (q, *tensors)]
    for b, h in np.ndindex(batch, heads):
        yield (b, h), (b, h * arrays[1].shape[1] // heads), [x[b, h * x.shape[1] // heads] for x in arrays]


def forward(q, k, v, causal, scale):
    """What `flash_forward` returns, o like q and lse (B, H, Nq), by `flashedu.reference.tiled_attention`."""
    factor = scale * q.shape[-1] ** 0.5  # the reference divides by sqrt(D) itself
    o, lse = torch.empty(q.shape, dtype=_wide(q)), torch.empty(q.shape[:3], dtype=_wide(q))
    for head, _, (q_h, k_h, v_h) in _heads(q, k, v):
        o_h, lse_h = tiled_attention(q_h * q_h.dtype.type(factor), k_h, v_h, BLOCK, BLOCK, causal)
        o[head], lse[head] = torch.from_numpy(o_h), torch.from_numpy(lse_h)
    return o.to(q), lse.to(q.device)


def backward(q, k, v, o, lse, do, causal, scale, dlse=None, wide=False):
    """Gradients like q, k and v or, if wide, in the type of the sums, by `flashedu.reference.tiled_backward`.

    Takes what `flash_backward` takes. The gradient of lse enters as one more column of do beside a -1 in o and a 0 in v:
    it leaves dP as it is and subtracts from delta, which is what it should do, since d lse / d S = P.
    """
    factor = scale * q.shape[-1] ** 0.5
    dlse = torch.zeros_like(lse) if dlse is None else dlse
    dq, dk, dv = (torch.zeros(x.shape, dtype=_wide(q)) for x in (q, k, v))
    for head, key_head, (q_h, k_h, v_h, o_h, lse_h, do_h, dlse_h) in _heads(q, k, v, o, lse, do, dlse):
        factor_h, one = q_h.dtype.type(factor), np.ones((len(q_h), 1), q_h.dtype)
        v_h = np.append(v_h, np.zeros((len(v_h), 1), v_h.dtype), axis=1)
        o_h, do_h = np.append(o_h, -one, axis=1), np.append(do_h, dlse_h[:, None], axis=1)
        dq_h, dk_h, dv_h = tiled_backward(q_h * factor_h, k_h, v_h, o_h, lse_h, do_h, BLOCK, BLOCK, causal)
        dq[head] = torch.from_numpy(dq_h * factor_h)
        dk[key_head] += torch.from_numpy(dk_h)
        dv[key_head] += torch.from_numpy(dv_h[:, :-1])
    return tuple(x.to(q.device, x.dtype if wide else q.dtype) for x in (dq, dk, dv))
