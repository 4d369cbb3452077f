"""Tensors as the fp8 kernel takes them: rounded to e4m3 under a scale for each block, and v transposed."""
import torch


def quantized(x, rows):
    """x (B, H, N, D) as float8_e4m3fn and float32 scales (B, H, ceil(N / rows)): the largest of each block becomes 448."""
    batch, heads, n, d = x.shape
    blocks = torch.nn.functional.pad(x.float(), (0, 0, 0, -n % rows)).view(batch, heads, -1, rows, d)
    scale = blocks.abs().amax((3, 4)).clamp_min(1e-30) / 448
    return (blocks / scale[..., None, None]).to(torch.float8_e4m3fn).view(batch, heads, -1, d)[:, :, :n], scale


def transposed(v):
    """v (B, H, N, D), float8_e4m3fn, as (B, H, D, N'), N' the next multiple of 16, and zeros at the end.

    Of each 16 keys, 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 come to lie at 4 t to 4 t + 3: as the result of one product a thread has
    P of the former, as an operand of the next one it would have the latter (PTX ISA, wgmma, register fragments). With
    the values in that order nothing has to move. (In FlashAttention-3 the kernel itself brings V into it.)
    """
    batch, heads, n, d = v.shape
    padded = torch.zeros(batch, heads, -(-n // 16) * 16, d, dtype=v.dtype, device=v.device)
    padded[:, :, :n] = v
    return padded.view(batch, heads, -1, 2, 4, 2, d).transpose(3, 4).reshape(padded.shape).mT.contiguous()
