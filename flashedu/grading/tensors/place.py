"""Where an answer in Triton can be judged on this machine."""
import importlib.util
import sys
from dataclasses import dataclass

from flashedu.grading import isolation
from flashedu.grading.tensors.watching import warm_up


@dataclass(frozen=True)
class Place:
    """trouble: (state, score, sentence) of the verdict if it cannot be judged here, or None. forks, gpu: what there is."""

    trouble: tuple = None
    forks: bool = False
    gpu: bool = False


def here():
    """The Place that this process is in; settles whether kernels run on a GPU or in the interpreter."""
    missing = [title for name, title in (("torch", "PyTorch"), ("triton", "Triton")) if importlib.util.find_spec(name) is None]
    if missing:
        why = "; there is none for macOS or Windows" if "Triton" in missing and sys.platform != "linux" else ""
        return Place(("skipped", 0.0, f"Nothing was checked, because {' and '.join(missing)} is not installed here{why}. On Linux it comes with the course."))
    try:
        from flashedu.kernels.device import DEVICE
    except ImportError as error:  # Triton was there first
        return Place(("error", 0.0, f"Nothing was checked. {error}"))
    warm_up()
    return Place(None, isolation.CAN_FORK and DEVICE == "cpu", DEVICE == "cuda")
