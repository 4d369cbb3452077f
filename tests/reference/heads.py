"""Inputs of one head for the tests beside it."""
import numpy as np


def head(n_q, n_k, d, d_v=None, dtype="float32", scale=1.0, seed=0):
    """q (n_q, d), multiplied by scale, k (n_k, d) and v (n_k, d_v or d), random normal."""
    rng = np.random.default_rng([seed, n_q, n_k, d])
    q, k, v = (rng.standard_normal(shape) for shape in ((n_q, d), (n_k, d), (n_k, d_v or d)))
    return (scale * q).astype(dtype), k.astype(dtype), v.astype(dtype)
