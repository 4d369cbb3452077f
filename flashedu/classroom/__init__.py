"""Grading what a class handed in: one notebook (`one`), a folder of them (`many`), and what comes of it.

This is no sandbox. It bounds honest mistakes and plain tricks (endless loops, floods of output, functions that were overwritten,
imports of the answers); who means harm can still read the instructor's files. A container is what keeps those apart.
"""
