"""Sliders around the drawings of `viz`: each function returns a widget, live under a kernel and a still picture without.

They need ipywidgets. `demo.to_html(path)` writes a page for those who have a browser only.
"""
from flashedu.demos.causal_tiles import causal_tiles

__all__ = ["causal_tiles"]
