"""Where kernels run: on the GPU or, without one, in Triton's interpreter on the CPU.

Triton reads TRITON_INTERPRET when a kernel is decorated, and its own library (`tl.max`, `tl.sum`, ...) is decorated when
Triton is imported. So the switch must be set before anybody imports Triton.
"""
import importlib.util
import os
import sys

import torch

TOO_EARLY = (
    "Triton was imported before its interpreter was switched on, and this machine has no GPU: restart the kernel and run "
    "`import flashedu.kernels` before `import triton`."
)


def _settle():
    """"cuda" or "cpu", where a kernel's tensors must be; None without Triton."""
    if importlib.util.find_spec("triton") is None:
        return None
    if torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET", "0") in ("0", ""):
        return "cuda"
    if "triton" in sys.modules:
        import triton.language as tl

        if type(tl.max).__name__ == "JITFunction":
            raise ImportError(TOO_EARLY)
    os.environ["TRITON_INTERPRET"] = "1"
    return "cpu"


DEVICE = _settle()
