"""The two variants of the kernels that chapter 5 compares compute the same gradients, the right ones."""
import pytest

torch = pytest.importorskip("torch")
from flashedu.kernels import DEVICE  # noqa: E402

if DEVICE is None:
    pytest.skip("Triton is not installed here", allow_module_level=True)

import stored_p  # noqa: E402

from flashedu.kernels.tiles import Tile  # noqa: E402

FLOAT16_ULP = 2**-10


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("dq_tile, dkdv_tile", [((64, 64), (64, 64)), ((64, 32), (32, 32)), ((128, 16), (128, 16))])
def test_gradients(stored, dq_tile, dkdv_tile):
    torch.manual_seed(0)
    q, k, v, do = (2 * torch.randn(2, 128, 32, dtype=torch.float64) for _ in range(4))
    q, k, v, do = (x.half().double() for x in (q, k, v, do))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    o = torch.softmax(leaves[0] @ leaves[1].mT * 32**-0.5, -1) @ leaves[2]
    right = torch.autograd.grad(o, leaves, do)

    inputs = [x.half().to(DEVICE) for x in (q, k, v)]
    do = do.half().to(DEVICE)
    saved = stored_p.forward(stored, Tile(64, stored_p.FORWARD_BLOCK_K, 4, 2), *inputs)
    dq, delta = stored_p.gradient_of_q(stored, Tile(*dq_tile, 4, 2), *inputs, do, *saved)
    dk, dv = stored_p.gradients_of_k_and_v(stored, Tile(*dkdv_tile, 4, 2), *inputs, do, delta, *saved[1:])
    assert [x is not None for x in saved] == [True, True, stored, stored]
    for x, y in zip((saved[0], dq, dk, dv), (o.detach(), *right)):
        assert (x.cpu().double() - y).norm() < FLOAT16_ULP * y.norm()


def test_a_tile_with_more_keys_than_one_maximum_covers_is_refused():
    q = torch.ones(1, 128, 32, dtype=torch.float16, device=DEVICE)
    saved = stored_p.forward(True, Tile(64, stored_p.FORWARD_BLOCK_K, 4, 2), q, q, q)
    with pytest.raises(Exception, match="must share one m"):
        stored_p.gradient_of_q(True, Tile(64, 128, 4, 2), q, q, q, q, *saved)
