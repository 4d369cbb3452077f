"""Judging answers that run on tensors: the exercises in Triton. Only `calling` is for the rest of `grading`."""
