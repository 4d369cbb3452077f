"""The program that measures decoding, run on the CPU by a clock that does not measure: its rows, its files, and what it says."""
import json

import pytest

torch = pytest.importorskip("torch")
from flashedu.kernels import DEVICE  # noqa: E402

if DEVICE is None:
    pytest.skip("Triton is not installed here", allow_module_level=True)

import measure_decode as tool  # noqa: E402

from flashedu.bench import contenders, result, speed  # noqa: E402
from flashedu.kernels.tiles import INTERPRETED  # noqa: E402
from flashedu.splits import splits_for  # noqa: E402

TIMES = {"copy": 0.5, "decode": 0.25, "one_part": 2.0, "torch": 0.4, "naive": 1.0}  # milliseconds
MULTIPROCESSORS = 3


def refuse(q, k, v):
    raise RuntimeError("No available kernel.")


@pytest.fixture
def dry(monkeypatch):
    """A small model on the CPU, or on the GPU that is there; returns the log of (time, calls) that were asked for."""
    log, names = [], {}

    def attentions():
        found = {"decode": tool.ours, "one_part": lambda q, k, v: tool.ours(q, k, v, splits=1), "torch": lambda q, k, v: tool.by_torch(None, q, k, v),
                 "cudnn": refuse, "naive": tool.naive}
        names.update({id(attend): name for name, attend in found.items()})
        return found

    def in_turn(attend, q, caches):
        fn = usual(attend, q, caches)
        names[id(fn)] = names.get(id(attend), "decode")
        log.append(fn)  # so that no other function gets its id
        return fn

    def clock(fn, calls):
        for _ in range(calls):
            fn()
        return TIMES[names.get(id(fn), "copy")]

    def inputs(batch, n):
        source = torch.Generator().manual_seed(n)
        make = lambda *shape: torch.randn(shape, generator=source).to(DEVICE)  # noqa: E731
        return make(batch, tool.HEADS, 1, tool.HEAD_DIM), [(make(batch, tool.KV_HEADS, n, tool.HEAD_DIM), make(batch, tool.KV_HEADS, n, tool.HEAD_DIM)) for _ in range(2)]

    usual = tool.in_turn
    place = {"device": "NVIDIA H200", "power_limit_w": 700.0, "torch": "2", "triton": "3"}
    for module, name, value in (
        (tool, "HEADS", 4), (tool, "KV_HEADS", 2), (tool, "HEAD_DIM", 16), (tool, "PROBLEMS", ((1, 64), (1, 70), (2, 64))), (tool, "LARGEST", (1, 70)), (tool, "SPLITS", (1, 3, 5)), (tool, "PLACES", (1, 4)),
        (tool, "SLOT_MS", 0.1), (tool, "ROUNDS", 2), (tool, "attentions", attentions), (tool, "in_turn", in_turn), (tool, "inputs", inputs), (tool, "copy", lambda: int),
        (tool, "chosen_splits", lambda batch, n: splits_for(batch * 2, -(-n // INTERPRETED.block_k), MULTIPROCESSORS)), (tool, "multiprocessors", lambda: MULTIPROCESSORS),
        (tool, "launched", lambda fn: [{"name": "a_kernel", "grid": [fn().shape[1], 1, 1]}]), (tool, "compile_ahead", lambda attends: log.append(len(attends))),
        (speed, "missing", lambda: None), (contenders, "matmul", lambda: int), (contenders, "device_clock", lambda filler: filler() and clock), (result, "environment", lambda: place),
    ):
        monkeypatch.setattr(module, name, value)
    return log


def run(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["measure_decode.py", *map(str, arguments)])
    tool.main()


def test_every_contender_has_a_time_or_a_reason_at_every_length(dry, monkeypatch, tmp_path, capsys):
    run(monkeypatch, "--out", tmp_path)
    measured = json.loads((tmp_path / "h200_decode.json").read_text())
    assert measured["made_by"] == "tools/measure_decode.py" and measured["method"] == tool.METHOD
    rows = {(row["batch"], row["n"], row["contender"]): row for row in measured["rows"] if row["experiment"] == "lengths"}
    assert list(rows) == [(*problem, name) for problem in tool.PROBLEMS for name in ("copy", *tool.attentions())]
    for (batch, n, name), row in rows.items():
        if name == "cudnn":
            assert row["refused"] == "No available kernel." and "bytes_per_s" not in row
            continue
        assert (row["time_ms"], row["rounds"]) == (TIMES[name], 2)
        assert row["hbm_bytes"] == (2 * tool.COPY_BYTES if name == "copy" else batch * 2 * (2 * 2 * n * 16 + 2 * 4 * 16))  # elements of 2 bytes
        assert row["bytes_per_s"] == pytest.approx(row["hbm_bytes"] / TIMES[name] * 1e3, rel=1e-4)
        assert row["of_copy"] == pytest.approx(row["bytes_per_s"] / (2 * tool.COPY_BYTES / 0.5e-3), rel=1e-3)
        assert row.get("splits") == {"decode": splits_for(2 * batch, -(-n // INTERPRETED.block_k), MULTIPROCESSORS), "one_part": 1}.get(name)
        assert name == "copy" or row["relative_error"] < 1e-6
        assert row.get("kernels") == ([{"name": "a_kernel", "grid": [4, 1, 1]}] if n == 70 and name != "copy" else None)
    printed = capsys.readouterr().out
    assert "lengths  batch  1, n      70: cudnn     refused: No available kernel." in printed
    assert "decode       250.0 us" in printed and "    a_kernel [4, 1, 1]" in printed
    swept = [row for row in measured["rows"] if row["experiment"] == "splits"]
    assert [(row["contender"], row.get("splits")) for row in swept] == [("copy", None), ("decode", 1), ("decode", 3), ("decode", 5)]
    assert all((row["batch"], row["n"], "kernels" in row) == (1, 70, False) for row in swept)


def test_calls_take_caches_in_turn(dry):
    seen = []
    fn = tool.in_turn(lambda q, k, v: seen.append((q, k, v)), "q", [("k0", "v0"), ("k1", "v1"), ("k2", "v2")])
    for _ in range(4):
        fn()
    assert seen == [("q", f"k{i}", f"v{i}") for i in (0, 1, 2, 0)]


def test_tuning_tries_every_tile_with_every_number_of_programs(dry, monkeypatch, capsys):
    monkeypatch.setattr(tool, "TILES", ((16, 4, 1), (32, 4, 1)))
    run(monkeypatch, "--tune")
    assert 2 in dry  # programs to compile
    first, last = capsys.readouterr().out.split("\nThe fastest last:\n")
    assert sorted(first.splitlines()) == sorted(last.splitlines()) and "copy" in last.splitlines()[0]  # which took longer
    tried = [line.split("of a copy ")[1] for line in last.splitlines()[1:]]
    assert tried == [f"splits {max(2, programs * MULTIPROCESSORS // 2)} tile [64, {tile}, 4, 1] programs {programs}" for tile in (16, 32) for programs in (1, 4)]


def test_naive_and_torch_are_attention_with_groups():
    q, k, v = (torch.randn(2, heads, n, 8, generator=torch.Generator().manual_seed(heads), dtype=torch.float64) for heads, n in ((6, 1), (2, 20), (2, 20)))
    right = torch.softmax(q @ k.repeat_interleave(3, 1).mT * 8**-0.5, -1) @ v.repeat_interleave(3, 1)
    torch.testing.assert_close(tool.naive(q, k, v), right)
    torch.testing.assert_close(tool.by_torch(None, q, k, v), right)


@pytest.mark.parametrize("n, least", [(1024, 2), (131_072, 2)])
def test_caches_are_larger_than_l2_together(n, least, monkeypatch):
    class Properties:
        L2_cache_size = 60 * 2**20

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    monkeypatch.setattr(torch, "randn", lambda *shape, device, dtype: torch.empty(shape, dtype=dtype, device="meta"))
    q, caches = tool.inputs(1, n)
    assert (q.shape, len(caches) >= least) == ((1, 32, 1, 128), True)
    assert all(x.shape == (1, 8, n, 128) and x.is_contiguous() for cache in caches for x in cache)
    assert sum(x.nbytes for cache in caches for x in cache) >= 4 * Properties.L2_cache_size
    assert len(caches) <= 60


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="torch sees none on this machine"):
        run(monkeypatch, "--tune")


def test_without_a_folder_it_measures_nothing(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(monkeypatch)
    assert "--out is missing" in capsys.readouterr().err
