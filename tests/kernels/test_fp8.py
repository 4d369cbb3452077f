"""Tensors as the fp8 kernel takes them: scales that bring each block's largest element to 448, and values in the order of its products."""
import pytest

torch = pytest.importorskip("torch")
from flashedu.kernels.fp8 import quantized, transposed  # noqa: E402


@pytest.mark.parametrize("n", [1, 64, 65, 300])
@pytest.mark.parametrize("rows", [64, 128])
def test_every_block_has_its_scale(n, rows):
    x = torch.randn(2, 3, n, 128, generator=torch.Generator().manual_seed(n)) * torch.arange(1, n + 1)[:, None]
    numbers, scale = quantized(x, rows)
    assert (numbers.shape, numbers.dtype, scale.shape) == (x.shape, torch.float8_e4m3fn, (2, 3, -(-n // rows)))
    of_rows = scale.repeat_interleave(rows, 2)[:, :, :n, None]
    whole = x.abs() >= of_rows * 2**-6  # below, steps are no longer relative
    assert ((numbers.float() * of_rows - x).abs() <= x.abs() / 16)[whole].all()
    for start in range(0, n, rows):
        assert (numbers[:, :, start : start + rows].float().abs().amax((2, 3)) == 448).all()


def test_a_block_of_zeros():
    numbers, scale = quantized(torch.zeros(1, 1, 64, 128), 64)
    assert numbers.float().abs().max() == 0 and scale.isfinite().all()


def order(keys):
    """Where each key comes to lie: as the result of a product, thread t of four has keys 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of
    each 16; as an operand it has the places 4 t to 4 t + 3."""
    place = torch.empty(keys, dtype=torch.long)
    for first in range(0, keys, 16):
        for t in range(4):
            for i, key in enumerate((2 * t, 2 * t + 1, 2 * t + 8, 2 * t + 9)):
                place[first + key] = first + 4 * t + i
    return place


@pytest.mark.parametrize("n", [1, 16, 100, 128])
def test_values_lie_in_the_order_of_the_weights(n):
    v = torch.randint(-8, 9, (2, 3, n, 128), generator=torch.Generator().manual_seed(n)).to(torch.float8_e4m3fn)
    found, keys = transposed(v), -(-n // 16) * 16
    assert found.shape == (2, 3, 128, keys) and found.is_contiguous()
    place = order(keys)
    assert sorted(place.tolist()) == list(range(keys))
    assert torch.equal(found[..., place[:n]].float(), v.mT.float())
    assert found[..., place[n:]].float().abs().sum() == 0
