"""The program that measures the limits, run on the CPU by a clock that does not measure: its rows, its files, and its block."""
import json

import pytest

torch = pytest.importorskip("torch")
from flashedu.kernels import DEVICE  # noqa: E402

if DEVICE is None:
    pytest.skip("Triton is not installed here", allow_module_level=True)

import measure_limits as tool  # noqa: E402

from flashedu import cost  # noqa: E402
from flashedu.bench import contenders, result, speed  # noqa: E402

MS = 0.5
SMALL = {"HEADS": 4, "KV_HEADS": 2, "SHARED": (4, 2, 1), "HEAD_DIM": 16, "HIDDEN": 32, "FFN": 48, "TOKENS": 32, "LONG_HEADS": 2, "WIDE_BATCH": 1, "WIDE_HEADS": 2,
         "WIDE_N": 16, "ROUNDS": 2, "LONG_ROUNDS": 1, "CACHE_ROUNDS": 2, "SLOT_MS": 0.1, "CACHE_SLOT_MS": 0.1}


def refuse(q, k, v):
    raise RuntimeError("No available kernel.")


@pytest.fixture
def dry(monkeypatch):
    """A small model on the CPU, or on the GPU that is there; returns the log of what was compiled ahead."""
    log, source = [], torch.Generator().manual_seed(0)

    def clock(fn, calls):
        for _ in range(calls):
            fn()
        return MS

    place = {"device": "NVIDIA H200", "torch": "2", "triton": "3"}
    for module, attribute, value in (
        *((tool, size, number) for size, number in SMALL.items()), (tool, "QUICK", {"short": (16, 32), "long": (16, 24), "cache": (40,), "heads": (16, 24)}),
        (tool, "make", lambda *shape: torch.randn(shape, generator=source).to(DEVICE)), (tool, "free", lambda: None), (tool, "l2_bytes", lambda: 1000),
        (tool, "torch_backends", lambda *names: {name: refuse if name == "cudnn" else tool.measure_decode.naive for name in names}),
        (tool, "peak_bytes", lambda fn: fn().nbytes), (tool, "compile_ahead", log.append), (tool.measure_decode, "copy", lambda: int),
        (speed, "missing", lambda: None), (contenders, "matmul", lambda: int), (contenders, "device_clock", lambda filler: clock), (result, "environment", lambda: place),
    ):
        monkeypatch.setattr(module, attribute, value)
    return log


def run(monkeypatch, folder, *arguments):
    monkeypatch.setattr("sys.argv", ["measure_limits.py", "--out", str(folder), "--quick", *arguments])
    tool.main()
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


def test_every_part_writes_a_file_that_says_how(dry, monkeypatch, tmp_path):
    measured = run(monkeypatch, tmp_path)
    assert sorted(measured) == ["h200_head_dims", "h200_kv_cache", "h200_long_sequences", "h200_short_sequences"]
    for part, subject in tool.SUBJECTS.items():
        found = measured[f"h200_{subject}"]
        assert found["made_by"] == "tools/measure_limits.py" and found["method"] == tool.METHOD[part] and found["what"] == tool.WHAT[part]
    assert dry == [(16, 24)]


def test_short_sequences(dry, monkeypatch, tmp_path):
    (measured,) = run(monkeypatch, tmp_path, "--parts", "short").values()
    rows = {(row["direction"], row["n"], row["what"], row["contender"]): row for row in measured["rows"]}
    names = [("matmul", "matmul"), ("attention", "naive"), ("attention", "flash"), ("attention", "fa2"), ("block", "none"), ("block", "naive"), ("block", "flash")]
    assert list(rows) == [(direction, n, *name) for n in (16, 32) for direction in speed.DIRECTIONS for name in names]
    share = cost.attention_flop_share(16, 32, 48, 4, 2, 16)
    for direction, attention_times, rest_times in (("forward", 1, 1), ("backward", 2.5, 2)):
        attention, whole, none = (rows[direction, 16, *name]["flops"] for name in (("attention", "flash"), ("block", "flash"), ("block", "none")))
        assert attention == attention_times * 2 * 4 * 16 * 16 * 16 * 4  # two sequences, two products, four heads
        assert whole == attention + none and none == pytest.approx(rest_times * attention / attention_times * (1 / share - 1))
    for (direction, n, what, name), row in rows.items():
        assert (row["time_ms"], row["rounds"], row["batch"]) == (MS, 2, 32 // n)
        assert row["flops_per_s"] == pytest.approx(row["flops"] / MS * 1e3, rel=1e-4)
        assert ("relative_error" in row) is ((direction, what) == ("forward", "attention"))
        assert row.get("relative_error", 0) < 1e-6, name


def test_long_sequences(dry, monkeypatch, tmp_path):
    (measured,) = run(monkeypatch, tmp_path, "--parts", "long").values()
    rows = {(row["n"], row["contender"]): row for row in measured["rows"]}
    assert list(rows) == [(n, name) for n in (16, 24) for name in ("matmul", "naive", "flash", "hopper", "cudnn")]
    assert rows[24, "cudnn"]["refused"] == "No available kernel." and "peak_bytes" not in rows[24, "cudnn"]
    for name in ("naive", "flash"):
        row = rows[24, name]
        assert row["flops"] == 2 * 2 * 24 * 24 * 16 * 2 and row["peak_bytes"] == 2 * 24 * 16 * 4 and row["relative_error"] < 1e-6


def test_a_cache(dry, monkeypatch, tmp_path):
    (measured,) = run(monkeypatch, tmp_path, "--parts", "cache").values()
    rows = {(row["kv_heads"], row["contender"]): row for row in measured["rows"]}
    assert list(rows) == [(kv_heads, name) for kv_heads in (4, 2, 1) for name in ("copy", "naive", "flash", "fa2", "decode")]
    for (kv_heads, name), row in rows.items():
        copied = 2 * tool.measure_decode.COPY_BYTES
        assert row["hbm_bytes"] == (copied if name == "copy" else 2 * (2 * kv_heads * 40 * 16 + 2 * 4 * 16))  # 2 bytes an element
        assert row["of_copy"] == pytest.approx(row["hbm_bytes"] / copied, rel=1e-3) and row.get("relative_error", 0) < 1e-6


def test_caches_are_larger_than_l2_together(dry, monkeypatch):
    seen = []
    monkeypatch.setattr(tool.measure_decode, "in_turn", lambda attend, q, caches: seen.append(sum(x.numel() * 2 for kv in caches for x in kv)) or int)
    monkeypatch.setattr(tool, "l2_bytes", lambda: 100_000)
    tool.cache(40, int, lambda fn, calls: MS)
    assert len(seen) == 12 and min(seen) >= 4 * 100_000 and max(seen) < 5 * 100_000


def test_head_dimensions(dry, monkeypatch, tmp_path, capsys):
    (measured,) = run(monkeypatch, tmp_path, "--parts", "heads").values()
    rows = {(row["direction"], row["head_dim"], row["contender"]): row for row in measured["rows"]}
    assert list(rows) == [(direction, d, name) for d in (16, 24) for direction in speed.DIRECTIONS for name in ("matmul", "flash", "fa2", "cudnn", "efficient")]
    assert [rows["forward", d, "flash"]["padded"] for d in (16, 24)] == [16, 32]
    assert rows["forward", 24, "flash"]["flops"] == 2 * 2 * 16 * 16 * 24 * 2
    assert rows["backward", 24, "flash"]["flops"] == 2.5 * rows["forward", 24, "flash"]["flops"]
    assert "refused: No available kernel." in capsys.readouterr().out


def test_the_block_is_that_of_the_closed_form_and_none_leaves_attention_out(dry):
    """Products are counted as torch executes them."""
    from torch.utils.flop_counter import FlopCounterMode

    x, layer = tool.make(2, 16, 32), tool.weights()
    for name, attend in (("naive", tool.measure_decode.naive), ("none", tool.none)):
        with FlopCounterMode(display=False) as counter:
            y = tool.block(attend, x, *layer)
        assert counter.get_total_flops() == tool.credited("block", name, 16, "forward") and y.shape == x.shape


def test_none_has_a_gradient_for_everything(dry):
    q, k, v = (tool.make(1, heads, 5, 3).requires_grad_() for heads in (4, 2, 2))
    o = tool.none(q, k, v)
    torch.testing.assert_close(o, q + (k + v).repeat_interleave(2, 1))
    o.sum().backward()
    assert torch.equal(k.grad, torch.full_like(k, 2)) and torch.equal(q.grad, torch.ones_like(q))


def test_backward_is_the_backward_pass(dry):
    seen = []
    fn = tool.prepare("backward", lambda a, b: seen.append(1) or a * b.sum(), [tool.make(2, 3), tool.make(4)])()
    assert len(seen) == 1 and [x.shape for x in fn()] == [(2, 3), (4,)] and len(seen) == 1


def test_without_a_gpu_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="torch sees none on this machine"):
        run(monkeypatch, tmp_path)
