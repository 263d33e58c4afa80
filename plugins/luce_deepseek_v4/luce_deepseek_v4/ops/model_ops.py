"""The ops of this plugin, for `luce_register_ops`."""

from __future__ import annotations

from luce_deepseek_v4.ops import (
    compress_kv,
    group_route,
    hyper_mix,
    hyper_streams,
    index_topk,
    moe_route_by_token,
    sparse_attention,
    tail_rope,
    window_attention,
    window_write,
)

MODEL_OPS = (
    tail_rope.SPEC,
    window_write.SPEC,
    compress_kv.SPEC,
    index_topk.SPEC,
    window_attention.SPEC,
    sparse_attention.SPEC,
    group_route.SPEC,
    hyper_streams.BEGIN,
    hyper_mix.SPEC,
    hyper_streams.MERGE,
    hyper_streams.SPREAD,
    moe_route_by_token.SPEC,
)
