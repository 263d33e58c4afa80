"""The draft's ops: their references pass their own parity check in every dtype."""

from __future__ import annotations

from luce_qwen_dflash2.ops.draft_ops import DRAFT_OPS

from luce_core.device import Device
from luce_core.ops.registry import OpRegistry
from luce_core.testing.op_parity import make_parity_test


def _registry() -> OpRegistry:
    registry = OpRegistry()
    for spec in DRAFT_OPS:
        registry.register_op(spec)
    return registry


test_reference_parity = make_parity_test(_registry(), Device.parse("cpu"))
