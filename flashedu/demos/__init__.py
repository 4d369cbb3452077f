"""Sliders around the drawings of `viz`: each function returns a widget, live under a kernel and a still picture without.

They need ipywidgets. `demo.to_html(path)` writes a page for those who have a browser only.
"""
from flashedu.demos.causal_tiles import causal_tiles
from flashedu.demos.kv_cache import kv_cache
from flashedu.demos.loop_order import loop_order
from flashedu.demos.memory import memory
from flashedu.demos.online_softmax import online_softmax
from flashedu.demos.overlap import overlap
from flashedu.demos.roofline import roofline
from flashedu.demos.splits import splits
from flashedu.demos.tiling import tiling
from flashedu.demos.your_kernel import your_kernel

__all__ = ["causal_tiles", "kv_cache", "loop_order", "memory", "online_softmax", "overlap", "roofline", "splits", "tiling", "your_kernel"]
