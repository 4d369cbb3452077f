"""Softmax that neither overflows nor divides by zero."""
import numpy as np

from flashedu.arguments import validated


@validated
def stable_softmax(x):
    """Softmax over the last axis, computed as exp(x - max) / sum(exp(x - max)).

    Takes x (..., N), float32 or float64; -inf marks a masked entry and gets probability 0.
    Returns the same shape and dtype; every row sums to 1 up to rounding, except that a row of nothing but -inf
    gives zeros. Subtracting the row's maximum changes nothing in exact arithmetic and keeps exp
    from overflowing (Goodfellow et al., Deep Learning, section 4.1). In the package it raises TypeError
    for another dtype, ValueError for NaN, +inf or an empty x.
    """
    m = x.max(axis=-1, keepdims=True)
    m = np.where(m == -np.inf, 0, m)  # a row of -inf: -inf - (-inf) would be NaN
    p = np.exp(x - m)
    total = p.sum(axis=-1, keepdims=True)
    return p / np.where(total == 0, 1, total)
