"""Every public function refuses bad input with one sentence that names the argument and says what was given."""
import inspect
import re

import numpy as np
import pytest

from flashedu import cost, exactness, gradient_bounds, machine, reference

try:
    import torch
except ImportError:
    torch = None

TOO_FEW_ELEMENTS = np.zeros((0, 4), np.float32)


def array(*shape, dtype="float32"):
    return np.random.default_rng(shape).standard_normal(shape).astype(dtype)


def state(rows=3, width=2, dtype="float32"):
    return array(rows, dtype=dtype), np.abs(array(rows, 1, dtype=dtype)[:, 0]), array(rows, width, dtype=dtype)


def small_machine(**extra):
    return machine.Machine.for_attention(array(3, 4), array(5, 4), array(5, 2), 10_000, **extra)


def calls():
    """A correct call of every public function: name -> (function, its arguments by name)."""
    q, k, v = array(3, 4), array(5, 4), array(5, 2)
    one_head = {"q": q, "k": k, "v": v}
    layer_arrays = {"q": array(2, 4, 3, 5), "k": array(2, 2, 6, 5), "v": array(2, 2, 6, 1)}
    options = {"causal": True, "scale": 0.5, "block_k": 2, "u": 2.0**-24}
    layer = {"n": 16, "head_dim": 4, "heads": 4, "kv_heads": 2, "itemsize": 2}
    blocks = {"block_q": 2, "block_k": 3}
    lengths = {"n_q": 3, "n_k": 5}
    ready, s = small_machine(), array(3, 5)
    three_kernels = small_machine(s=s, p=s)
    tile = ready.load("q", 0, 2)
    rows = np.zeros(3, np.float32)
    with_state = machine.Machine({**one_head, "o": array(3, 2) * 0, "m": rows - np.inf, "l": rows, "lse": rows}, 10_000)
    return {
        "reference.stable_softmax": (reference.stable_softmax, {"x": array(3, 4)}),
        "reference.naive_attention": (reference.naive_attention, {**one_head, "causal": True}),
        "reference.naive_on_machine": (reference.naive_on_machine, {"machine": three_kernels}),
        "reference.update_normalizer": (reference.update_normalizer, {"m": array(3), "l": state()[1], "scores": array(3, 4)}),
        "reference.merge_states": (reference.merge_states, {"a": state(), "b": state()}),
        "reference.online_attention": (reference.online_attention, {**one_head, "block_size": 2}),
        "reference.tiled_attention": (reference.tiled_attention, {**one_head, **blocks, "causal": True}),
        "reference.window_attention": (reference.window_attention, {"q": k, "k": k, "v": v, "reach": 2}),
        "reference.pooled_attention": (reference.pooled_attention, {**one_head, "rank": 2}),
        "reference.linear_attention": (reference.linear_attention, one_head),
        "reference.attention_state": (reference.attention_state, {**one_head, "causal": True}),
        "reference.shared_prefix_attention": (reference.shared_prefix_attention, {**one_head, "suffixes": [(array(2, 4), array(2, 2))]}),
        "reference.chunked_prefill": (reference.chunked_prefill, {"q": k, "k": k, "v": v, "block_size": 2}),
        "reference.paged_attention": (reference.paged_attention, {**one_head, "table": [1, 0], "block_size": 2, "n": 3}),
        "reference.lazy_attention": (reference.lazy_attention, {**one_head, "block_size": 2, "threshold": 1.5}),
        "reference.split_kv_attention": (reference.split_kv_attention, {**one_head, "splits": 2}),
        "reference.fa1_on_machine": (reference.fa1_on_machine, {"machine": with_state, **blocks}),
        "reference.round_e4m3": (reference.round_e4m3, {"values": array(3, 4)}),
        "reference.quantize_e4m3": (reference.quantize_e4m3, {"x": array(3, 4), "block_size": 2}),
        "reference.rotate": (reference.rotate, {"q": q, "k": k, "seed": 0}),
        "reference.fp8_attention": (reference.fp8_attention, {**one_head, **blocks}),
        "reference.outlier_inputs": (reference.outlier_inputs, {**lengths, "head_dim": 4, "seed": 0}),
        "reference.attention_backward": (reference.attention_backward, {**one_head, "do": array(3, 2), "causal": True}),
        "reference.tiled_backward": (
            reference.tiled_backward,
            {**one_head, "o": array(3, 2), "lse": array(3), "do": array(3, 2), **blocks, "causal": True},
        ),
        "reference.tiled_on_machine": (reference.tiled_on_machine, {"machine": ready, **blocks, "causal": True}),
        "cost.naive_traffic": (cost.naive_traffic, dict(layer)),
        "cost.naive_intensity": (cost.naive_intensity, dict(layer)),
        "cost.attention_flops": (cost.attention_flops, {**lengths, "head_dim": 4, "heads": 2}),
        "cost.block_sizes": (cost.block_sizes, {"sram_bytes": 4096, "head_dim": 4, "itemsize": 2}),
        "cost.tile_counts": (cost.tile_counts, {**lengths, **blocks, "causal": True}),
        "cost.tiled_traffic": (cost.tiled_traffic, {**lengths, "head_dim": 4, **blocks, "itemsize": 2, "causal": True}),
        "cost.fa1_traffic": (cost.fa1_traffic, {**lengths, "head_dim": 4, **blocks, "itemsize": 2}),
        "cost.attention_intensity": (cost.attention_intensity, {**lengths, "head_dim": 4, "heads": 4, "kv_heads": 2, "itemsize": 2}),
        "cost.window_flops": (cost.window_flops, {"n": 16, "reach": 3, "head_dim": 4, "heads": 2}),
        "cost.pooled_flops": (cost.pooled_flops, {"n": 16, "rank": 3, "head_dim": 4, "heads": 2}),
        "cost.linear_flops": (cost.linear_flops, {"n": 16, "head_dim": 4, "heads": 2}),
        "cost.kv_cache_bytes": (cost.kv_cache_bytes, {"n": 16, "layers": 3, "kv_heads": 2, "head_dim": 4, "itemsize": 2}),
        "cost.attention_flop_share": (
            cost.attention_flop_share,
            {"n": 16, "hidden": 32, "ffn": 64, "heads": 4, "kv_heads": 2, "head_dim": 4},
        ),
        "cost.kept_for_backward": (cost.kept_for_backward, dict(layer)),
        "cost.tiled_sram": (cost.tiled_sram, {**blocks, "head_dim": 4, "itemsize": 2}),
        "exactness.unit_roundoff": (exactness.unit_roundoff, {"dtype": np.float32}),
        "exactness.scores": (exactness.scores, {"q": q, "k": k, "causal": True, "scale": 0.5}),
        "exactness.softmax_bound": (exactness.softmax_bound, {"x": array(3, 4), "u": 2.0**-24}),
        "exactness.forward_errors": (exactness.forward_errors, {**one_head, **options, "dtype": "float32"}),
        "exactness.attention_bounds": (exactness.attention_bounds, {**one_head, **options, "dtype": "float32"}),
        "exactness.by_head": (
            exactness.by_head,
            {"one_head": lambda q, k, v, do: exactness.attention_bounds(q, k, v), **layer_arrays, "do": array(2, 4, 3, 1)},
        ),
        "gradient_bounds.gradient_bounds": (
            gradient_bounds.gradient_bounds,
            {**one_head, "do": array(3, 2), **options, "block_q": 2, "dtype": "float32"},
        ),
        "exactness.state_bounds": (exactness.state_bounds, {"parts": [state(), state()], "u": 2.0**-24}),
        "exactness.Bound.errors": (exactness.Bound(array(3), array(3)).errors, {"value": array(3)}),
        "exactness.Bound.ratio": (exactness.Bound(array(3), array(3)).ratio, {"value": array(3)}),
        "machine.Machine": (machine.Machine, {"hbm": {"q": q, "k": k}, "sram_bytes": 64, "itemsize": 2}),
        "machine.Machine.for_attention": (machine.Machine.for_attention, {**one_head, "sram_bytes": 64, "itemsize": 2}),
        "machine.Machine.shape": (ready.shape, {"name": "q"}),
        "machine.Machine.load": (ready.load, {"name": "q", "start": 0, "stop": 2}),
        "machine.Machine.alloc": (ready.alloc, {"shape": (2, 3), "fill": 0.0}),
        "machine.Machine.store": (ready.store, {"name": "q", "start": 0, "stop": 2, "tile": tile}),
        "machine.Machine.free": (ready.free, {"tile": tile}),
    }


NUMBERS = ["block_size", "block_q", "block_k", "n", "n_q", "n_k", "head_dim", "heads", "kv_heads", "itemsize", "sram_bytes", "splits", "layers", "hidden", "ffn", "rank"]
BAD_NUMBERS = [
    (0, ValueError, "0"),
    (-3, ValueError, "-3"),
    (-(10**400), ValueError, "-1000"),
    (-(10**5000), ValueError, "int"),
    (np.int64(0), ValueError, "0"),
    (2.0, TypeError, "2.0"),
    (np.float32(2), TypeError, "2.0"),
    (float("nan"), TypeError, "nan"),
    (True, TypeError, "True"),
    (np.True_, TypeError, "True"),
    ("16", TypeError, "'16'"),
    (None, TypeError, "None"),
    ([2], TypeError, "[2]"),
    (np.zeros((3, 3)), TypeError, "array"),
]
BAD_SCALES = [
    ("x", TypeError, "'x'"),
    (10**400, ValueError, "1000"),
    (True, TypeError, "True"),
    ([1.0], TypeError, "[1.0]"),
    (-0.5, ValueError, "-0.5"),
    (float("nan"), ValueError, "nan"),
    (float("inf"), ValueError, "inf"),
]
OPTIONAL = {  # None is a default there
    ("exactness.attention_bounds", "block_k"),
    ("exactness.forward_errors", "block_k"),
    ("gradient_bounds.gradient_bounds", "block_q"),
    ("gradient_bounds.gradient_bounds", "block_k"),
    ("exactness.by_head", "do"),
    ("machine.Machine", "itemsize"),
    ("machine.Machine.for_attention", "itemsize"),
}


def with_value(x, value):
    y = x.copy()
    y[(-1,) * y.ndim] = value
    return y


def bad_arrays(x, infinity_too):
    """What may not stand where the float32 array x does: (value, exception, what the message quotes)."""
    yield x.tolist(), TypeError, "list"
    yield None, TypeError, "NoneType"
    yield 3.5, TypeError, "float"
    yield x.astype(np.int64), TypeError, "int64"
    yield x.astype(np.float16), TypeError, "float16"
    yield x.astype(complex), TypeError, "complex128"
    yield x > 0, TypeError, "bool"
    yield x.astype(object), TypeError, "object"
    yield np.ma.array(x), TypeError, "Masked"
    yield np.zeros((*x.shape[:-1], 0), np.float32), ValueError, str((*x.shape[:-1], 0))
    yield np.zeros((0, *x.shape[1:]), np.float32), ValueError, str((0, *x.shape[1:]))
    yield np.array(1, np.float32), ValueError, "()"
    last = ", ".join(str(n - 1) for n in x.shape)
    yield with_value(x, np.nan), ValueError, f"[{last}] is nan"
    yield with_value(x, np.inf), ValueError, f"[{last}] is inf"
    if infinity_too:
        yield with_value(x, -np.inf), ValueError, f"[{last}] is -inf"
    if torch:
        yield torch.from_numpy(x), TypeError, "Tensor"


def bad_states(name, s):
    yield list(s), TypeError, "[array("
    yield s[:2], TypeError, "(array("
    yield s[2], TypeError, "array("
    yield None, TypeError, "None"
    for i in range(3):
        for bad, error, quoted in bad_arrays(s[i], infinity_too=i > 0):
            yield (*s[:i], bad, *s[i + 1 :]), error, quoted if " is " not in quoted else quoted.split("is ")[1]
        longer = np.concatenate([s[i], s[i]])
        yield (*s[:i], longer, *s[i + 1 :]), ValueError, str(len(longer))
        yield (*s[:i], s[i][None], *s[i + 1 :]), ValueError, str(s[i][None].shape)
        yield (*s[:i], s[i].astype(np.float64), *s[i + 1 :]), TypeError, "float64"
    yield (s[0], -s[1] - 1, s[2]), ValueError, str(float((-s[1] - 1)[0]))


def refusals():
    """(call, argument to replace, bad value, exception, quoted): one for each way to call a function wrongly."""
    for call, (_, arguments) in calls().items():
        for name, value in arguments.items():
            bad = []
            if name in NUMBERS:
                bad = [b for b in BAD_NUMBERS if b[0] is not None or (call, name) not in OPTIONAL]
            elif name in ("seed", "reach"):
                bad = [b for b in BAD_NUMBERS if b[1] is TypeError] + [(-3, ValueError, "-3")]
            elif name in ("scale", "u", "threshold"):
                bad = BAD_SCALES
            elif name == "causal":
                bad = [(x, TypeError, repr(x)) for x in ("yes", 1, None, [True])]
            elif name in ("q", "k", "v", "do", "o", "lse", "x", "m", "l", "scores"):
                bad = list(bad_arrays(value, infinity_too=name not in ("x", "m", "scores", "lse")))
                bad = [b for b in bad if b[0] is not None or (call, name) not in OPTIONAL]
                if name != "x":  # x may have any number of axes
                    bad.append((value[None], ValueError, str(value[None].shape)))
                    bad.append((value.astype(np.float64), TypeError, "float64"))  # the others stay float32
            elif name in ("a", "b"):
                bad = list(bad_states(name, value))
            for wrong, error, quoted in bad:
                yield call, {name: wrong}, error, name, quoted
    for call in ("reference.naive_attention", "reference.online_attention", "reference.tiled_attention",
                 "exactness.attention_bounds", "exactness.forward_errors", "machine.Machine.for_attention"):
        yield call, {"k": array(5, 7)}, ValueError, "k", "(5, 7)"
        yield call, {"q": array(3, 7)}, ValueError, "q", "(3, 7)"
        yield call, {"v": array(6, 2)}, ValueError, "v", "(6, 2)"
        yield call, {"k": array(6, 4)}, ValueError, "k", "(6, 4)"
        yield call, {"k": TOO_FEW_ELEMENTS, "v": np.zeros((0, 2), np.float32)}, ValueError, "k", "(0, 4)"
    for call in ("reference.attention_backward", "reference.tiled_backward", "gradient_bounds.gradient_bounds"):
        yield call, {"k": array(5, 7)}, ValueError, "k", "(5, 7)"
        yield call, {"v": array(6, 2)}, ValueError, "v", "(6, 2)"
        yield call, {"do": array(5, 2)}, ValueError, "do", "(5, 2)"
        yield call, {"do": array(3, 4)}, ValueError, "do", "(3, 4)"
    yield "reference.tiled_backward", {"o": array(3, 4)}, ValueError, "o", "(3, 4)"
    yield "reference.tiled_backward", {"lse": array(4)}, ValueError, "lse", "4"
    for name, shape in (("k", (2, 2, 6, 4)), ("k", (1, 2, 6, 5)), ("v", (2, 2, 5, 1)), ("v", (2, 1, 6, 1)), ("q", (3, 4, 3, 5))):
        yield "exactness.by_head", {name: array(*shape)}, ValueError, name, str(shape)
    yield "exactness.by_head", {"q": array(2, 3, 3, 5)}, ValueError, "q", "3 and 2"
    yield "exactness.by_head", {"do": array(2, 4, 4, 1)}, ValueError, "do", "(2, 4, 4, 1)"
    for call in ("exactness.attention_bounds", "exactness.forward_errors", "gradient_bounds.gradient_bounds"):
        for wrong, quoted in (("float8", "float8"), (3, "3"), (int, "int")):
            yield call, {"dtype": wrong}, TypeError, "dtype", quoted
        for dtype in ("float16", "bfloat16"):
            yield call, {"dtype": dtype}, ValueError, "q", dtype
    in_16_bits = {name: np.ones_like(x) for name, x in (("q", array(3, 4)), ("k", array(5, 4)), ("v", array(5, 2)))}
    yield "gradient_bounds.gradient_bounds", {**in_16_bits, "dtype": "float16"}, ValueError, "do", "float16"
    yield "exactness.scores", {"k": array(5, 7)}, ValueError, "k", "(5, 7)"
    yield "reference.update_normalizer", {"m": array(2)}, ValueError, "m", "2"
    yield "reference.update_normalizer", {"l": state(4)[1]}, ValueError, "l", "4"
    yield "reference.update_normalizer", {"l": -state()[1] - 1}, ValueError, "l", "-1."
    yield "reference.merge_states", {"a": state(3, 7)}, ValueError, "a", "(3, 7)"
    yield "reference.merge_states", {"b": state(4, 2)}, ValueError, "b", "(4, 2)"
    yield "reference.merge_states", {"b": state(dtype="float64")}, TypeError, "b", "float64"
    for call in ("cost.naive_traffic", "cost.naive_intensity", "cost.attention_intensity", "cost.attention_flop_share"):
        yield call, {"heads": 5}, ValueError, "heads", "5"
        yield call, {"kv_heads": 3}, ValueError, "kv_heads", "3"
    yield "cost.block_sizes", {"sram_bytes": 3, "itemsize": 4}, ValueError, "sram_bytes", "3"
    yield "reference.lazy_attention", {"threshold": 88.8}, ValueError, "threshold", "88.8"
    yield "reference.window_attention", {"q": array(4, 4)}, ValueError, "q", "4 and 5"
    yield "reference.pooled_attention", {"rank": 6}, ValueError, "rank", "6"
    yield "reference.rotate", {"q": array(3, 6), "k": array(5, 6)}, ValueError, "q", "6"
    yield "reference.rotate", {"k": array(5, 8)}, ValueError, "k", "(5, 8)"
    yield "reference.quantize_e4m3", {"x": array(3)}, ValueError, "x", "(3,)"
    yield "reference.quantize_e4m3", {"x": with_value(array(3, 4), -np.inf)}, ValueError, "x", "-inf"
    yield "reference.round_e4m3", {"values": [1.0]}, TypeError, "values", "list"
    yield "reference.round_e4m3", {"values": array(3).astype(np.float16)}, TypeError, "values", "float16"
    for call in ("reference.naive_on_machine", "reference.tiled_on_machine", "reference.fa1_on_machine"):
        yield call, {"machine": None}, TypeError, "machine", "None"
        yield call, {"machine": array(3, 4)}, TypeError, "machine", "array("
    for wrong, quoted in (("float8", "float8"), (None, "None"), (3, "3"), (int, "int"), (np.dtype("int8"), "int8")):
        yield "exactness.unit_roundoff", {"dtype": wrong}, TypeError, "dtype", quoted
    yield "exactness.state_bounds", {"parts": []}, ValueError, "parts", "empty"
    yield "exactness.state_bounds", {"parts": [state(), None]}, TypeError, "part", "None"
    yield "exactness.state_bounds", {"parts": [state(), state(dtype="float64")]}, TypeError, "part", "float64"
    yield "exactness.state_bounds", {"parts": [state(), state(4)]}, ValueError, "parts", "(4, 2)"
    for wrong, quoted in ((None, "None"), (3, "3"), (array(3), "array(")):
        yield "exactness.state_bounds", {"parts": wrong}, TypeError, "parts", quoted
    for wrong in (None, 3):
        yield "exactness.by_head", {"one_head": wrong}, TypeError, "one_head", repr(wrong)
    for wrong in ([[]], [[array(2, 4)]], [3], [None], [(array(2, 4), array(2, 2), array(2, 2))]):
        yield "reference.shared_prefix_attention", {"suffixes": wrong}, TypeError, "suffixes", repr(wrong)[:9]
    for wrong, quoted in ((2**16 + 1, "65537"), (10**9, "1000000000"), (10**400, "1000"), (10**5000, "int")):
        yield "reference.split_kv_attention", {"splits": wrong}, ValueError, "splits", quoted
    for name in ("n_k", "head_dim"):
        for wrong, quoted in ((10**9, "1000000000"), (10**400, "1000")):
            yield "reference.outlier_inputs", {name: wrong}, ValueError, name, quoted
    for call in ("exactness.Bound.errors", "exactness.Bound.ratio"):
        yield call, {"value": array(4)}, ValueError, "value", "(4,)"
        yield call, {"value": None}, TypeError, "value", "None"
        yield call, {"value": "abc"}, TypeError, "value", "abc"
    for wrong, quoted in (([array(3, 4)], "list"), ({}, "{}"), (None, "None")):
        yield "machine.Machine", {"hbm": wrong}, TypeError, "hbm", "[array(" if quoted == "list" else quoted
    for wrong, error, quoted in bad_arrays(array(3, 4), infinity_too=False):
        if " is " not in quoted:  # HBM may hold NaN: the output does, before it is written
            yield "machine.Machine", {"hbm": {"q": wrong}}, error, "q", quoted
    yield "machine.Machine", {"hbm": {"q": array(3, 4), "k": array(3, 4, dtype="float64")}}, TypeError, "k", "float64"
    for call in ("machine.Machine.shape", "machine.Machine.load", "machine.Machine.store"):
        for wrong in ("x", None, 3, ["q"]):
            yield call, {"name": wrong}, ValueError, "name", repr(wrong)
    for call in ("machine.Machine.load", "machine.Machine.store"):
        for name in ("start", "stop"):
            for wrong in ("1", None, 1.0, True, [1]):
                yield call, {name: wrong}, TypeError, name, repr(wrong)
        yield call, {"start": -1}, IndexError, "start", "-1"
        yield call, {"start": 2}, IndexError, "start", "2"
        yield call, {"stop": 4}, IndexError, "stop", "4"
    for wrong, error in ((3, TypeError), ([2, 3], TypeError), ((), TypeError), ((2.5,), TypeError), (("a",), TypeError),
                         ((-3, 2), ValueError), ((0, 3), ValueError)):
        yield "machine.Machine.alloc", {"shape": wrong}, error, "shape", repr(wrong).strip("(,)").split(", 2")[0].split(", 3")[0]
    for wrong in ("x", None, [1]):
        yield "machine.Machine.alloc", {"fill": wrong}, TypeError, "fill", repr(wrong)
    for wrong in (None, 3, array(2, 4)):
        yield "machine.Machine.free", {"tile": wrong}, ValueError, "tile", "still resident"
    yield "machine.Machine.store", {"tile": array(2, 3)}, ValueError, "tile", "(2, 3)"
    yield "machine.Machine.store", {"tile": None}, ValueError, "tile", "()"


REFUSALS = list(refusals())


def describe(refusal):
    call, replaced, *_ = refusal
    return f"{call}({', '.join(f'{name}={type(value).__name__}' for name, value in replaced.items())})"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("refusal", REFUSALS, ids=describe)
def test_refused_with_one_sentence(refusal):
    call, replaced, error, name, quoted = refusal
    function, arguments = calls()[call]
    with pytest.raises((TypeError, ValueError, IndexError)) as caught:
        function(**{**arguments, **replaced})
    message = str(caught.value)
    assert caught.type is error, message
    assert "\n" not in message and len(message) < 300 and message.endswith("."), message
    assert re.search(rf"(^|\bof |, |and |each |in |a ){name}\b", message), f"{name} is not named: {message}"
    assert quoted in message, f"{quoted} is not quoted: {message}"
    assert not re.search(r"[.!?] [A-Z]", message), f"more than one sentence: {message}"


def test_every_call_above_is_accepted_as_it_stands():
    """Otherwise the refusals would prove nothing."""
    for function, arguments in calls().values():
        function(**arguments)


def public(module):
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", "").split(".")[1:2] != [module.__name__.split(".")[1]]:
            continue
        if inspect.isfunction(value):
            yield f"{module.__name__.split('.')[1]}.{name}"
        elif inspect.isclass(value):
            methods = [m for m, f in inspect.getmembers(value, inspect.isroutine) if m in vars(value) and not m.startswith("_")]
            yield from (f"{module.__name__.split('.')[1]}.{name}.{method}" for method in methods)


def test_no_public_function_is_left_out():
    assert {name for module in (reference, cost, exactness, gradient_bounds, machine) for name in public(module)} <= calls().keys()


@pytest.mark.parametrize("fn", [reference.naive_attention, cost.tile_counts])
@pytest.mark.parametrize("arguments", [(), (1,) * 9])
def test_a_wrong_number_of_arguments_names_the_function(fn, arguments):
    with pytest.raises(TypeError, match=fn.__name__) as caught:
        fn(*arguments)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


@pytest.mark.filterwarnings("error")
def test_numpy_integers_count_like_pythons_own():
    """A NumPy integer wraps around silently; the counts are of the size of terabytes."""
    n = np.int32(65536)
    assert cost.attention_flops(n, n, np.int32(128), np.int32(32)) == 4 * 65536**2 * 128 * 32
    assert cost.naive_traffic(n, np.int8(127), np.uint8(32), np.int16(8), np.uint8(2)) == cost.naive_traffic(65536, 127, 32, 8, 2)
    assert cost.tiled_traffic(np.uint8(250), np.uint8(250), 4, np.uint8(100), np.uint8(100), 1, True) == \
        cost.tiled_traffic(250, 250, 4, 100, 100, 1, True)
    q, k, v = array(300, 4), array(260, 4), array(260, 3)
    for small, plain in zip(reference.tiled_attention(q, k, v, np.uint8(200), np.uint8(100), np.True_),
                            reference.tiled_attention(q, k, v, 200, 100, True), strict=True):
        assert np.array_equal(small, plain)
    assert np.array_equal(reference.online_attention(q, k, v, np.uint8(200)), reference.online_attention(q, k, v, 200))


def test_masked_logits_are_allowed():
    x = np.array([[0, -np.inf], [-np.inf, -np.inf]], np.float32)
    assert np.isfinite(reference.stable_softmax(x)).all()
    exactness.softmax_bound(x)
    m, l, o = np.full(2, -np.inf, np.float32), np.zeros(2, np.float32), np.zeros((2, 3), np.float32)
    reference.update_normalizer(m, l, x)
    reference.merge_states((m, l, o), (m, l, o))
