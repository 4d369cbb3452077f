"""Where an answer in Triton can be judged on this machine."""
import importlib.util
import sys
from dataclasses import dataclass

import numpy as np

from flashedu.grading import isolation


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
        return Place(("skipped", 0.0, f"Nothing was checked, because {' and '.join(missing)} {'are' if missing[1:] else 'is'} not installed here{why}. On Linux {'they come' if missing[1:] else 'it comes'} with the course."))
    try:
        from flashedu.kernels.device import DEVICE
    except ImportError as error:  # Triton was there first
        return Place(("error", 0.0, f"Nothing was checked. {error}"))
    if _too_new_for_the_interpreter():
        return Place(("skipped", 0.0, "Nothing was checked, because the interpreter of Triton 3.6 does not work with NumPy 2.4 or later: install triton 3.7 or numpy 2.3."))
    return Place(None, isolation.CAN_FORK and DEVICE == "cpu", DEVICE == "cuda")


def _too_new_for_the_interpreter():
    """Whether NumPy is: Triton before 3.7 converts an array of one element to a number, which NumPy no longer allows."""
    import triton

    return _version(triton) < (3, 7) and _version(np) >= (2, 4)


def _version(package):
    return tuple(map(int, package.__version__.split(".")[:2]))
