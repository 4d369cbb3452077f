"""The weights P on their way from the result of one product to an operand of the next one, in e4m3, on Hopper."""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def packed(p):
    """p (64, BLOCK_K) as e4m3, two neighbours in an int16, (64, BLOCK_K / 16, 4, 2): four bytes of each 16 keys in one thread.

    Triton by itself would carry each byte to the next tile in a register of its own, and spend a third of the loop on that.
    """
    even, odd = gl.split(p.reshape([p.shape[0], p.shape[1] // 16, 2, 4, 2]))
    pairs = gl.inline_asm_elementwise("cvt.rn.satfinite.e4m3x2.f32 $0, $2, $1;", "=h,r,r", [even, odd], gl.int16, True, 1)
    return pairs.permute((0, 1, 3, 2))


@gluon.jit
def operand(pairs, P: gl.constexpr):
    """What `packed` returned as the matrix unit takes it: nothing moves from thread to thread, but keys 2 t, 2 t + 1, 2 t + 8
    and 2 t + 9 of each 16 count as 4 t to 4 t + 3."""
    first, second = gl.split(pairs)
    words = gl.inline_asm_elementwise("mov.b32 $0, {$1, $2};", "=r,h,h", [first, second], gl.int32, True, 1)  # (64, BLOCK_K / 16, 4)
    R: gl.constexpr = words.shape[0]
    B: gl.constexpr = words.shape[1]
    words = gl.expand_dims(words, 3)
    words, _ = gl.broadcast(words, gl.full([R, B, 4, 4], 0, gl.int32, words.type.layout))  # for each of its bytes the word
    words = gl.convert_layout(words.reshape([R, B * 16]), P)
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r,r,r,r", [words], gl.float8e4nv, True, 4)
