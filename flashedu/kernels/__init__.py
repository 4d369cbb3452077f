"""Attention kernels in Triton. Importing this package settles where they run: see `flashedu.kernels.device`."""
from flashedu.kernels.device import DEVICE  # first: it must come before Triton is imported
from flashedu.kernels.attention import flash_attention  # isort: skip

__all__ = ["DEVICE", "flash_attention"]
