"""What the GPU tests share: each needs a GPU, and how far from exact they were is told at the end."""
import json
import os

import pytest


@pytest.fixture(autouse=True)
def gpu():
    """Every test here needs one, and leaves its memory to the others."""
    torch = pytest.importorskip("torch")
    from flashedu.kernels import DEVICE

    if DEVICE != "cuda":
        pytest.skip("needs a CUDA GPU")
    yield
    torch.cuda.empty_cache()


@pytest.fixture
def judged(record_property):
    """A function that solves problems and fails unless rounding explains every result of each."""
    from problems import ratios

    from flashedu.kernels import DEVICE

    def judge(problems):
        wrong = []
        for problem in problems:
            found = ratios(problem, DEVICE)
            record_property("ratios", [problem.dtype, found, str(problem)])
            if max(found.values()) > 1:
                wrong.append(f"{problem}: " + ", ".join(f"{name} {ratio:.3g}" for name, ratio in found.items()))
        assert not wrong, "\n" + "\n".join(wrong)

    return judge


def pytest_terminal_summary(terminalreporter):
    """The largest error of each quantity, in units of what rounding alone may cause."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    found = [value for report in reports for name, value in getattr(report, "user_properties", ()) if name == "ratios"]
    if not found:
        return
    worst = {}
    for dtype, ratios, problem in found:
        for name, ratio in ratios.items():
            worst[dtype, name] = max(worst.get((dtype, name), (-1.0, "")), (ratio, problem))
    dtypes, names = sorted({dtype for dtype, _ in worst}), list(found[0][1])
    terminalreporter.write_sep("=", f"largest error / bound of {len(found)} problems")
    terminalreporter.write_line(f"{'':10}" + "".join(f"{name:>8}" for name in names))
    for dtype in dtypes:
        terminalreporter.write_line(f"{dtype:10}" + "".join(f"{worst[dtype, name][0]:8.3f}" for name in names))
    path = os.environ.get("FLASHEDU_GPU_REPORT")
    if path:
        table = {dtype: {name: dict(zip(("ratio", "problem"), worst[dtype, name])) for name in names} for dtype in dtypes}
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"problems": len(found), "worst": table}, file, indent=1)
