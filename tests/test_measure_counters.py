"""The program that reads hardware counters for the ladder: which launch belongs to which rung, and what is made of several."""
import pytest

pytest.importorskip("torch")
import measure_counters as tool
from measure_traffic import parse_ncu


def launch(name, ms, bytes_=0, tensor=0.0, exp=0.0):
    """A row of ncu's table for a kernel of so many milliseconds."""
    row = {"Kernel Name": name, **{counter: bytes_ for counter, _ in tool.SUMS.values()}}
    return {**row, tool.SUMS["profiled_ms"][0]: ms * 1e6, tool.SHARES["tensor_busy"]: tensor, tool.SHARES["exp_unit_busy"]: exp}


MARK = launch("at::cuda::spin_kernel(long)", 0.01)


def test_a_call_of_several_kernels_is_one():
    found = tool.one_call([launch("matmul", 1, 100, tensor=90), launch("softmax", 3, 300, tensor=0, exp=40)])
    assert found["profiled_ms"] == 4 and found["hbm_read_bytes"] == found["l2_bytes"] == 400
    assert found["tensor_busy"] == pytest.approx(0.9 / 4) and found["exp_unit_busy"] == pytest.approx(0.4 * 3 / 4)


def test_launches_are_told_apart_by_the_marks():
    first, second = launch("a", 1), launch("b", 2)
    assert tool.divided([MARK, first, second, MARK, second]) == [[first, second], [second]]
    with pytest.raises(SystemExit, match="a was launched before the first mark"):
        tool.divided([first, MARK])


def test_the_median_of_the_repeats_of_each_rung():
    parts = [[launch("a", ms, 10 * ms)] if i % 2 == 0 else [launch("b", ms, 1), launch("c", ms, 1)] for ms in (5, 1, 2) for i in range(2)]
    rows = tool.summarise(parts, ["one", "two"])
    assert [(row["contender"], row["kernels"], row["profiled_ms"], row["hbm_read_bytes"]) for row in rows] == [("one", ["a"], 2, 20), ("two", ["b", "c"], 4, 2)]


@pytest.mark.parametrize("parts", [[[launch("a", 1)]] * 2, [[launch("a", 1)]] * 5 + [[]]])
def test_a_launch_too_few_is_seen(parts):
    with pytest.raises(SystemExit, match="kernels were profiled behind the marks, for 3 times one, two"):
        tool.summarise(parts, ["one", "two"])


def test_the_table_of_ncu():
    names = ["ID", "Kernel Name", *(counter for counter, _ in tool.SUMS.values()), *tool.SHARES.values()]
    lines = [["0", MARK["Kernel Name"], *"1111111"], ["1", "flash", "1,000", "20", "3", "0", "4,000,000", "75.5", "12.25"]]
    text = "\n".join(",".join(f'"{cell}"' for cell in line) for line in [names, [""] * len(names), *lines])
    (row,) = tool.summarise(tool.divided(parse_ncu(f"==PROF== noise\n{text}")) * tool.REPEATS, ["one"])
    assert row["hbm_read_bytes"] == 1000 and row["profiled_ms"] == 4 and row["tensor_busy"] == 0.755 and row["exp_unit_busy"] == 0.1225
