"""The NumPy truth: one algorithm a file, one head at a time, q (Nq, D), k (Nk, D), v (Nk, Dv)."""
from flashedu.reference.approximate import linear_attention, pooled_attention, window_attention
from flashedu.reference.attention import naive_attention, naive_on_machine
from flashedu.reference.backward import attention_backward, tiled_backward
from flashedu.reference.caches import attention_state, chunked_prefill, paged_attention, shared_prefix_attention
from flashedu.reference.decode import split_kv_attention
from flashedu.reference.lazy import lazy_attention
from flashedu.reference.online import merge_states, online_attention, update_normalizer
from flashedu.reference.quantize import fp8_attention, outlier_inputs, quantize_e4m3, rotate, round_e4m3
from flashedu.reference.softmax import stable_softmax
from flashedu.reference.tiled import tiled_attention, tiled_on_machine
from flashedu.reference.version1 import fa1_on_machine

__all__ = [
    "attention_backward",
    "attention_state",
    "chunked_prefill",
    "fa1_on_machine",
    "fp8_attention",
    "lazy_attention",
    "linear_attention",
    "merge_states",
    "naive_attention",
    "naive_on_machine",
    "online_attention",
    "outlier_inputs",
    "paged_attention",
    "pooled_attention",
    "quantize_e4m3",
    "rotate",
    "round_e4m3",
    "shared_prefix_attention",
    "split_kv_attention",
    "stable_softmax",
    "tiled_attention",
    "tiled_backward",
    "tiled_on_machine",
    "update_normalizer",
    "window_attention",
]
