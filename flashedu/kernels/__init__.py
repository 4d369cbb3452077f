"""Attention kernels in Triton. Importing this package settles where they run: see `flashedu.kernels.device`."""
from flashedu.kernels.attention import flash_attention
from flashedu.kernels.device import DEVICE

__all__ = ["DEVICE", "flash_attention"]
