"""The ops that there are kernels for, and what `register` is told about each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from luce_kernels_rocm.tiles import read_tiles
from luce_kernels_rocm.weights import accepts_codebooks, accepts_weight, blocks_on

_EVERY_ROW_ALIKE: Mapping[str, Any] = MappingProxyType(
    {"row_invariant": True, "split_invariant": True}
)

_BLOCKS: Mapping[str, Any] = MappingProxyType({"accepts": accepts_weight, "prepare": blocks_on})

_CODEBOOKS: Mapping[str, Any] = MappingProxyType(
    {"accepts": accepts_codebooks, "prepare": blocks_on}
)

CORE_OFFERS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "add": _EVERY_ROW_ALIKE,
        "embedding_rows": {**_EVERY_ROW_ALIKE, **_BLOCKS},
        "gather_rows": _EVERY_ROW_ALIKE,
        "greedy_token": _EVERY_ROW_ALIKE,
        "kept_tokens": _EVERY_ROW_ALIKE,
        "kv_write": _EVERY_ROW_ALIKE,
        "paged_attention": {"row_invariant": True, "read_table": read_tiles},
        "quant_matmul": {**_BLOCKS, "read_table": read_tiles},
        "rms_norm": _EVERY_ROW_ALIKE,
        "rope": _EVERY_ROW_ALIKE,
        "swiglu": _EVERY_ROW_ALIKE,
    }
)

# Ops that only some models need. Most of them belong to the plugin of such a model, and their
# kernels stay dormant where it is not installed.
MODEL_OFFERS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "affine": _EVERY_ROW_ALIKE,
        "candidate_select": {**_CODEBOOKS, "row_invariant": True},
        "causal_conv1d": _EVERY_ROW_ALIKE,
        "compress_kv": _EVERY_ROW_ALIKE,
        "conv_replay": _EVERY_ROW_ALIKE,
        "draft_attention": {"row_invariant": True},
        "draft_draw": {"row_invariant": True},
        "dynamic_conv": {"row_invariant": True},
        # Prompts in chunks: how they are cut shows in the last bits.
        "gated_delta": {"row_invariant": True},
        "gated_delta_replay": _EVERY_ROW_ALIKE,
        "gated_rms_norm": _EVERY_ROW_ALIKE,
        "group_route": _EVERY_ROW_ALIKE,
        "hyper_begin": _EVERY_ROW_ALIKE,
        "hyper_merge": _EVERY_ROW_ALIKE,
        "hyper_mix": _EVERY_ROW_ALIKE,
        "hyper_spread": _EVERY_ROW_ALIKE,
        "index_topk": _EVERY_ROW_ALIKE,
        "moe_matmul": _BLOCKS,
        "moe_route": _EVERY_ROW_ALIKE,
        "moe_route_by_token": _EVERY_ROW_ALIKE,
        "moe_scale": _EVERY_ROW_ALIKE,
        "moe_sum": _EVERY_ROW_ALIKE,
        "put_rows": _EVERY_ROW_ALIKE,
        "ring_write": _EVERY_ROW_ALIKE,
        "sigmoid_gate": _EVERY_ROW_ALIKE,
        "sparse_attention": _EVERY_ROW_ALIKE,
        "tail_rope": _EVERY_ROW_ALIKE,
        "take_rows": _EVERY_ROW_ALIKE,
        "window_attention": _EVERY_ROW_ALIKE,
        "window_write": _EVERY_ROW_ALIKE,
    }
)

# Kernels that `--op OP=PROVIDER` chooses instead of the plugin's usual one: (op, provider) -> the
# module of `ops` that holds it, and what is declared about it.
CHOSEN_OFFERS: Mapping[tuple[str, str], tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {("gated_delta", "luce_kernels_rocm_in_order"): ("gated_delta_in_order", _EVERY_ROW_ALIKE)}
)
