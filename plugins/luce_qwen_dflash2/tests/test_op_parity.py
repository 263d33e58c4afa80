"""Every kernel of the plugin's ops, over their cases, against the references."""

from __future__ import annotations

from luce_qwen_dflash2.ops.target_ops import TARGET_OPS

from luce_core.device import Device
from luce_core.ops.registry import OpRegistry
from luce_core.testing.op_parity import make_parity_test

registry = OpRegistry()
for spec in TARGET_OPS:
    registry.register_op(spec)

test_parity = make_parity_test(registry, Device.parse("cpu"))
