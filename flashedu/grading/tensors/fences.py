"""Tensors between guard bands: what is read past an end is NaN, and what is written there is found.

A band's NaN carries a payload, so that its bits are compared, and inputs and outputs carry different ones: a NaN that was
loaded past the end of x and stored past the end of y leaves a trace.
"""
import itertools

BAND = 1 << 15  # elements before and after: a few tiles fit, so that a missing mask does not end the process
BITS = {  # dtype: the integer type of its size, its NaN around inputs, its NaN around what an answer allocates
    "float16": ("int16", 0x7E1A, 0x7E2B),
    "bfloat16": ("int16", 0x7FDA, 0x7FEB),
    "float32": ("int32", 0x7FC0DEAD, 0x7FC0BEEF),
    "float64": ("int64", 0x7FF8DEADDEADDEAD, 0x7FF8BEEFBEEFBEEF),
    "int32": ("int32", -(2**31) + 0xDEAD, -(2**31) + 0xBEEF),
    "int64": ("int64", -(2**63) + 0xDEAD, -(2**63) + 0xBEEF),
}


class Fence:
    """A tensor of any shape and strides in a larger buffer: `tensor` is the view, all else is guarded.

    ours: whether it is an input. filled: whether the view holds the guard, too, as torch.empty's should.
    """

    def __init__(self, shape, strides, dtype, device, ours):
        import torch

        integer, *guards = BITS[str(dtype).removeprefix("torch.")]
        self.guard, self.integer, self.place = guards[not ours], getattr(torch, integer), (tuple(shape), tuple(strides))
        self.span = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides))
        self.bits = torch.full((BAND + self.span + BAND,), self.guard, dtype=self.integer, device=device)
        self.tensor = self.bits.view(dtype).as_strided(*self.place, BAND)

    def damage(self):
        """(elements written before the tensor, between its rows, past its end)."""
        outside = self.bits.clone()
        outside.as_strided(*self.place, BAND).fill_(self.guard)
        changed = outside != self.guard
        parts = changed[:BAND], changed[BAND : BAND + self.span], changed[BAND + self.span :]
        return tuple(int(part.sum()) for part in parts)

    def holds(self, tensor):
        return tensor.untyped_storage().data_ptr() == self.bits.untyped_storage().data_ptr()

    def sentence(self, name):
        """What was written outside, in words, or None."""
        before, between, past = self.damage()
        places = [(past, "past the end of"), (before, "before the start of"), (between, "between the elements of")]
        found = [f"{count} element{'s' * (count > 1)} {where} {name}" for count, where in places if count]
        if not found:
            return None
        why = "its strides were not used" if between else "the last tile of a row or a column is rarely full, and a grid may have a program too many"
        return f"It wrote {' and '.join(found)}, of shape {self.place[0]}: the mask of a tl.store is missing or too wide, or its addresses are made with the strides or the place of another tensor; {why}."


def fence_array(x, dtype, device):
    """A Fence around a copy of a NumPy array, with the array's strides."""
    import torch

    fence = Fence(x.shape, [stride // x.itemsize for stride in x.strides], getattr(torch, dtype), device, ours=True)
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in x.strides)  # a broadcast axis holds one element
    fence.tensor[once] = torch.from_numpy(x[once].copy()).to(fence.tensor)
    return fence


def fence_result(result, func, args, fenced=True):
    """What a torch function newly made, moved between guards unless `fenced` is False.

    Returns the same with views for tensors, the tensors' sizes in bytes, and the Fences.
    """
    import torch

    sizes, fences, inputs = [], [], {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
    empty = "empty" in func._schema.name

    def move(x):
        known = isinstance(x, torch.Tensor) and x.numel() and str(x.dtype).removeprefix("torch.") in BITS
        if not known or x.layout != torch.strided or x.untyped_storage().data_ptr() in inputs:
            return x
        sizes.append(x.numel() * x.element_size())
        if not fenced:
            return x
        fence = Fence(x.shape, x.stride(), x.dtype, x.device, ours=False)
        if not empty:
            fence.tensor.copy_(x)
        fences.append(fence)
        return fence.tensor

    fresh = [out.alias_info is None for out in func._schema.returns]
    if not any(fresh):
        return result, sizes, fences
    if isinstance(result, (tuple, list)):
        return type(result)(move(x) if new else x for x, new in zip(result, itertools.chain(fresh, itertools.repeat(fresh[-1])))), sizes, fences
    return move(result), sizes, fences
