"""The ops that two or more engines share."""

from __future__ import annotations

from luce_core.ops.reference import (
    add,
    embedding_rows,
    gather_rows,
    greedy_token,
    kept_tokens,
    kv_write,
    moe_matmul,
    moe_route,
    moe_sum,
    paged_attention,
    quant_matmul,
    rms_norm,
    rope,
    swiglu,
)
from luce_core.ops.registry import OpRegistry

CORE_OPS = tuple(
    module.SPEC
    for module in (
        embedding_rows,
        rms_norm,
        quant_matmul,
        rope,
        kv_write,
        paged_attention,
        swiglu,
        add,
        gather_rows,
        greedy_token,
        kept_tokens,
        moe_route,
        moe_matmul,
        moe_sum,
    )
)


def core_registry() -> OpRegistry:
    """A registry with the core's ops and their references; plugins add to it."""
    registry = OpRegistry()
    for spec in CORE_OPS:
        registry.register_op(spec)
    return registry
