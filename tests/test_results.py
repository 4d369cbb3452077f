import datetime
import itertools
import json
import re
from pathlib import Path

import measure_backward
import measure_traffic
import pytest

from flashedu import results
from flashedu.bench import contenders, ladder, speed
from flashedu.hardware import gpu
from flashedu.results import load

FOLDER = Path(results.__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


@pytest.mark.parametrize("name", NAMES)
def test_every_result_says_what_where_when_and_how(name):
    result = load(name)
    assert result["what"] and result["method"]
    assert {"device", "driver", "torch", "cuda", "triton", "python"} <= result["environment"].keys()
    assert all(result["environment"].values())
    datetime.date.fromisoformat(result["date"])
    assert (FOLDER.parents[1] / result["made_by"]).is_file()
    assert f"`{name}.json`" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_the_list_of_results_names_those_that_are_here_and_no_others():
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(\w+)\.json`", listed, re.M)) == NAMES


def numbers(value, key=""):
    """Yields (key, number) for every number of a result, however deep."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from numbers(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner, key)
    elif isinstance(value, int | float):
        yield key, value


@pytest.mark.parametrize("name", NAMES)
def test_times_are_positive_and_bytes_are_whole(name):
    found = list(numbers(load(name)))
    assert found
    assert all(value > 0 for key, value in found if key.endswith(("_ms", "_per_s")) or "_ms_p" in key)
    assert all(isinstance(value, int) and value >= 0 for key, value in found if key.endswith("_bytes"))


def test_an_unknown_name_is_answered_with_the_names_there_are():
    with pytest.raises(ValueError, match=r"named 'a100'; the results are: .*h200_attention_traffic"):
        load("a100")


@pytest.fixture(scope="module")
def traffic():
    return load("h200_attention_traffic")


@pytest.fixture(scope="module")
def kernels(traffic):
    return {(row["algorithm"], row["step"]): row for row in traffic["kernels"]}


def tensor_bytes(traffic):
    """Bytes of q (= o), of k (= v) and of S (= P) in the measured layer."""
    shape = traffic["shape"]
    row_bytes = shape["n"] * shape["itemsize_bytes"]
    q_bytes = shape["heads"] * shape["head_dim"] * row_bytes
    k_bytes = shape["kv_heads"] * shape["head_dim"] * row_bytes
    return q_bytes, k_bytes, shape["heads"] * shape["n"] * row_bytes


def test_naive_moves_each_of_its_big_matrices_twice(traffic, kernels):
    _, _, s_bytes = tensor_bytes(traffic)
    naive = traffic["totals"]["naive"]
    hbm_bytes = naive["hbm_read_bytes"] + naive["hbm_written_bytes"]
    assert 4 * s_bytes <= hbm_bytes <= 4.3 * s_bytes
    for step in ("softmax", "pv"):
        assert kernels["naive", step]["hbm_read_bytes"] >= s_bytes
    for step in ("qk", "softmax"):  # up to the L2 capacity may still wait there when the kernel ends
        l2_bytes = traffic["environment"]["l2_capacity_bytes"]
        assert s_bytes - l2_bytes <= kernels["naive", step]["hbm_written_bytes"] <= 1.01 * s_bytes


def test_flash_reads_its_inputs_once_from_hbm_and_many_times_from_l2(traffic, kernels):
    q_bytes, k_bytes, _ = tensor_bytes(traffic)
    flash = kernels["flash", "fused"]
    assert q_bytes + 2 * k_bytes <= flash["hbm_read_bytes"] <= 1.1 * (q_bytes + 2 * k_bytes)
    assert 0.5 * q_bytes <= flash["hbm_written_bytes"] <= 1.1 * q_bytes  # o, less what L2 still holds
    shape = traffic["shape"]
    passes = shape["n"] // 128 * shape["heads"] // shape["kv_heads"]  # query tiles of 128 that read a key
    assert flash["sm_received_bytes"] == pytest.approx(q_bytes + passes * 2 * k_bytes, rel=0.01)
    assert flash["l2_from_sm_bytes"] < flash["l2_bytes"] < traffic["totals"]["naive"]["l2_bytes"]
    assert flash["sm_sent_bytes"] == pytest.approx(q_bytes + flash["spill_written_bytes"], rel=0.01)


def test_the_steps_account_for_the_whole(traffic):
    for algorithm, total in traffic["totals"].items():
        rows = [row for row in traffic["kernels"] if row["algorithm"] == algorithm]
        for field in ("hbm_read_bytes", "hbm_written_bytes", "l2_bytes"):
            assert total[field] == sum(row[field] for row in rows)
        whole = next(row for row in traffic["sweep"] if row["n"] == traffic["shape"]["n"])
        assert total["time_ms"] == pytest.approx(whole[algorithm]["time_ms"], rel=0.05)
    assert traffic["totals"]["flash"]["time_ms"] < traffic["totals"]["naive"]["time_ms"]


def test_no_kernel_is_faster_than_the_device(traffic, kernels):
    rate, flops_rate = traffic["ceilings"]["copy_bytes_per_s"], traffic["ceilings"]["matmul_flops_per_s"]
    shape = traffic["shape"]
    flops = 2 * shape["heads"] * shape["n"] ** 2 * shape["head_dim"]  # of one of the two products
    for (_, step), row in kernels.items():
        assert row["hbm_read_bytes"] + row["hbm_written_bytes"] <= 1.1 * rate * row["time_ms"] / 1e3
        products = {"softmax": 0, "fused": 2}.get(step, 1)
        assert products * flops <= 1.2 * flops_rate * row["time_ms"] / 1e3


def test_memory_of_naive_is_quadratic_and_of_flash_linear(traffic):
    for row in traffic["sweep"]:
        n, naive, flash = row["n"], row["naive"], row["flash"]
        s_bytes = traffic["shape"]["heads"] * n * n * traffic["shape"]["itemsize_bytes"]
        output_bytes = traffic["shape"]["heads"] * n * (traffic["shape"]["head_dim"] * 2 + 4)  # o and lse
        assert flash["peak_bytes"] == pytest.approx(flash["input_bytes"] + output_bytes, rel=0.05)
        if "out_of_memory" in naive:
            assert 2 * s_bytes > traffic["environment"]["hbm_capacity_bytes"]
        else:
            assert naive["peak_bytes"] == pytest.approx(naive["input_bytes"] + 2 * s_bytes, rel=0.05)
            assert naive["softmax_ms"] < naive["time_ms"]


def test_both_compute_attention(traffic):
    bf16_ulp = 2**-7
    assert all(0 < error < bf16_ulp for error in traffic["relative_error"].values())


def test_the_result_describes_itself_in_the_words_of_its_script(traffic):
    assert traffic["method"] == json.loads(json.dumps(measure_traffic.METHOD))
    assert set(measure_traffic.COUNTERS) <= traffic["kernels"][0].keys()


NCU = """==PROF== Connected to process 1
"ID","Kernel Name","dram__bytes_read.sum","gpu__time_duration.sum"
"","","byte","ns"
"0","gemm<1, 2>","1,000","2500000"
"1","softmax","7","1000000"
"2","gemm<1, 2>","1,002","1500000"
"3","softmax","9","1000000"
"""


def test_the_profiler_s_table_is_read_and_reduced_to_medians(monkeypatch):
    monkeypatch.setattr(measure_traffic, "STEPS", ["qk", "softmax"])
    monkeypatch.setattr(measure_traffic, "REPEATS", 2)
    counters = {"read_bytes": ("dram__bytes_read.sum", 1), "profiled_ms": ("gpu__time_duration.sum", 1e-6)}
    monkeypatch.setattr(measure_traffic, "COUNTERS", counters)
    rows = measure_traffic.parse_ncu(NCU)
    assert measure_traffic.summarise(rows) == {
        "qk": {"kernel": "gemm<1, 2>", "read_bytes": 1001, "profiled_ms": 2.0},
        "softmax": {"kernel": "softmax", "read_bytes": 8, "profiled_ms": 1.0},
    }
    with pytest.raises(SystemExit, match="3 kernels were profiled, expected 2 x 2"):
        measure_traffic.summarise(rows[:3])


BF16_ULP = 2**-7


@pytest.fixture(scope="module")
def rows():
    return load("h200_attention_speed")["rows"]


def problem_of(row):
    return {key: row[key] for key in ("direction", "head_dim", "n", "causal")}


def test_every_contender_has_a_time_or_a_reason_at_every_size(rows):
    found = [(*problem_of(row).values(), row["contender"]) for row in rows]
    names = ("matmul", *contenders.NAMES)
    sizes = itertools.product(speed.DIRECTIONS, speed.HEAD_DIMS, speed.LENGTHS, (False, True), names)
    assert sorted(found) == sorted(sizes)
    for row in rows:
        assert len(row.keys() & {"time_ms", "out_of_memory", "refused", "not_run"}) == 1
        if row["contender"] in ("matmul", "flashedu", "fa2"):
            assert "time_ms" in row
        if "not_run" in row:
            assert row["contender"] == "flex" and not (row["head_dim"] in contenders.FLEX_HEAD_DIMS and row["n"] in contenders.FLEX_LENGTHS)


def test_rates_are_credited_flops_over_the_median_of_the_rounds(rows):
    matmuls = {tuple(problem_of(row).values()): row for row in rows if row["contender"] == "matmul"}
    for row in rows:
        is_matmul = row["contender"] == "matmul"
        assert row["flops"] == (2 * contenders.SIDE**3 if is_matmul else speed.flops_of(**problem_of(row)))
        assert (row["batch"] * row["n"], row["heads"] * row["head_dim"]) == (speed.TOKENS, speed.WIDTH)
        if "time_ms" in row:
            assert row["time_ms_min"] <= row["time_ms"] <= row["time_ms_max"]
            assert row["rounds"] == speed.ROUNDS
            assert row["flops_per_s"] == pytest.approx(row["flops"] / row["time_ms"] * 1e3, rel=1e-3)
            assert row["of_matmul"] == pytest.approx(row["flops_per_s"] / matmuls[tuple(problem_of(row).values())]["flops_per_s"], rel=1e-3)


def test_nobody_is_faster_than_the_device_or_computes_something_else(rows):
    for row in rows:
        if "time_ms" in row:
            executed = 1.4 if (row["contender"], row["direction"]) == ("flashedu", "backward") else 1.0  # seven products, credited as five
            assert executed * row["flops_per_s"] < gpu("H200").matmul_flops
        if "relative_error" in row:
            assert 0 < row["relative_error"] < BF16_ULP
        elif "time_ms" in row:  # an error is known where the backward pass runs too
            assert row["contender"] == "matmul" or row["direction"] == "forward"


@pytest.fixture(scope="module")
def rungs():
    """The ladder's rows by (D, N, causal, contender)."""
    return {(row["head_dim"], row["n"], row["causal"], row["contender"]): row for row in load("h200_ladder")["rows"]}


def test_the_ladder_is_whole_and_its_rates_follow_from_its_times(rungs):
    assert len(rungs) == len(load("h200_ladder")["rows"])
    assert set(rungs) == set(itertools.product(speed.HEAD_DIMS, speed.LENGTHS, (False, True), ("matmul", *contenders.RUNGS)))
    for (head_dim, n, causal, name), row in rungs.items():
        assert len(row.keys() & {"time_ms", "out_of_memory", "refused", "not_run"}) == 1
        assert row["flops"] == (2 * contenders.SIDE**3 if name == "matmul" else speed.flops_of("forward", n, head_dim, causal))
        if "time_ms" in row:
            assert row["time_ms_min"] <= row["time_ms"] <= row["time_ms_max"]
            assert row["rounds"] == (ladder.SLOW_ROUNDS if name in ladder.SLOW else ladder.ROUNDS)
            assert row["flops_per_s"] == pytest.approx(row["flops"] / row["time_ms"] * 1e3, rel=1e-3)
            assert row["of_matmul"] == pytest.approx(row["flops_per_s"] / rungs[head_dim, n, causal, "matmul"]["flops_per_s"], rel=1e-3)
            assert row["flops_per_s"] < gpu("H200").matmul_flops
            assert name == "matmul" or 0 < row["relative_error"] < BF16_ULP


def test_each_version_is_faster_than_the_one_before(rungs):
    for head_dim, n, causal in itertools.product(speed.HEAD_DIMS, speed.LENGTHS[-3:], (False, True)):
        times = [rungs[head_dim, n, causal, f"version{i}"].get("time_ms", ladder.LIMIT_MS) for i in (1, 2, 3)]
        assert times == sorted(times, reverse=True)


def test_the_readme_says_how_the_ladder_ends(rungs):
    ratios = [rungs[head_dim, n, causal, "cudnn"]["time_ms"] / rungs[head_dim, n, causal, "version3"]["time_ms"]
              for head_dim, n, causal in itertools.product(speed.HEAD_DIMS, speed.LENGTHS, (False, True)) if n >= 4096]
    assert f"{min(ratios):.2f} to {max(ratios):.2f} times as fast as cuDNN's on an H200" in " ".join((FOLDER.parents[1] / "README.md").read_text(encoding="utf-8").split())


def test_fp8_is_faster_in_turn_and_alone_and_the_rotation_helps():
    rows = load("h200_fp8")["rows"]
    times = {(row["experiment"], row["n"], row["causal"], row["contender"]): row["time_ms"] for row in rows if "time_ms" in row}
    problems = list(itertools.product((4096, 8192, 16_384), (False, True)))
    assert len(times) == 2 * len(problems) * len(("matmul", "fp8", "version3", "cudnn"))
    for how, n, causal in ((how, *problem) for how in ("speed", "steady") for problem in problems):
        assert times[how, n, causal, "fp8"] < times[how, n, causal, "version3"] < times[how, n, causal, "cudnn"]
    errors = {(row["scales"], row["rotated"]): row["rms_error"] for row in rows if row["experiment"] == "errors"}
    for scales in ("one", "blocks"):
        assert errors[scales, True] < errors[scales, False] / 2
        assert errors[None, False] < errors[scales, True] / 10  # 16 bits


def test_split_keys_come_near_a_copy_and_one_part_does_not():
    rows = {row["contender"]: row for row in load("h200_decode")["rows"] if (row["experiment"], row["batch"], row["n"]) == ("lengths", 1, 131_072)}
    assert rows["decode"]["of_copy"] > 0.8 and rows["one_part"]["of_copy"] < 0.1
    assert rows["decode"]["time_ms"] < rows["fa2"]["time_ms"] < rows["naive"]["time_ms"] < rows["one_part"]["time_ms"]


def test_two_gpus_are_faster_than_one_and_as_right():
    rows = {(row["phase"], row["contender"]): row for row in load("h200_ring")["rows"]}
    for phase in ("forward", "backward"):
        one, both = rows[phase, "one_gpu"], rows[phase, "ring"]
        assert both["speedup"] == pytest.approx(one["time_ms"] / both["time_ms"], rel=1e-3) and 1.5 < both["speedup"] < 2
    for contender in ("one_gpu", "ring"):
        assert max(rows["backward", contender]["error_over_bound"].values()) <= 1


@pytest.fixture(scope="module")
def stored_p():
    return {(row["n"], row["variant"], row["phase"]): row for row in load("h200_backward_stored_p")["rows"]}


def test_the_stored_p_experiment_is_whole(stored_p):
    variants = ("matmul", *measure_backward.VARIANTS, "flashedu", "naive")
    assert set(stored_p) == set(itertools.product(measure_backward.LENGTHS, variants, measure_backward.PHASES))
    assert all("time_ms" in row for (_, variant, _), row in stored_p.items() if variant in measure_backward.VARIANTS)


def test_what_is_kept_between_the_passes_is_p_or_one_number_a_row(stored_p):
    for n in measure_backward.LENGTHS:
        linear = measure_backward.HEADS * n * (2 * measure_backward.HEAD_DIM + 4)  # o and lse
        p_bytes = measure_backward.HEADS * n * n * 2
        for variant in ("recomputed", "flashedu"):
            assert stored_p[n, variant, "both"]["kept_bytes"] == pytest.approx(linear, rel=0.01)
        stored = stored_p[n, "stored", "both"]
        assert stored["kept_bytes"] == pytest.approx(linear + p_bytes * (1 + 4 / 2 / 64), rel=0.01)  # and m for every 64 keys
        for row in (stored_p[n, variant, "both"] for variant in ("stored", "recomputed", "flashedu", "naive")):
            assert row["kept_bytes"] <= row["peak_bytes"]
            assert 0 < row["relative_error"] < BF16_ULP


@pytest.fixture(scope="module")
def checkpointed():
    return {(row["variant"], row["block"], row["checkpoint"]): row for row in load("h200_checkpoint")["rows"]}


def test_a_checkpoint_around_flash_attention_gains_at_most_its_linear_part(checkpointed):
    """lse; and o, where what follows keeps a copy of it in another layout."""
    rows = measure_backward.HEADS * measure_backward.CHECKPOINT_AT
    for block, gain_bytes in (("attention", 4 * rows), ("projections", (4 + 2 * measure_backward.HEAD_DIM) * rows)):
        plain, wrapped = (checkpointed["flash", block, where] for where in ("nothing", "attention"))
        assert plain["kept_bytes"] - wrapped["kept_bytes"] <= 1.01 * gain_bytes
        assert wrapped["time_ms"] > plain["time_ms"]


def test_a_checkpoint_around_naive_attention_gains_p(checkpointed):
    p_bytes = measure_backward.HEADS * measure_backward.CHECKPOINT_AT**2 * 2
    for block in ("attention", "projections"):
        plain, wrapped = (checkpointed["naive", block, where] for where in ("nothing", "attention"))
        assert plain["kept_bytes"] - wrapped["kept_bytes"] >= p_bytes


@pytest.mark.parametrize("name, method", [
    ("h200_attention_speed", speed.METHOD), ("h200_ladder", ladder.METHOD), ("h200_backward_stored_p", measure_backward.STORED_P), ("h200_checkpoint", measure_backward.CHECKPOINT),
])
def test_a_result_describes_itself_in_the_words_of_its_program(name, method):
    assert load(name)["method"] == json.loads(json.dumps(method))
