"""The plugin's ops against their references, at every activation dtype; parts give equal bits."""

from __future__ import annotations

from luce_deepseek_v4.ops.model_ops import MODEL_OPS

from luce_core.device import Device
from luce_core.ops.registry import OpRegistry
from luce_core.testing.op_parity import make_parity_test

_registry = OpRegistry()
for _spec in MODEL_OPS:
    _registry.register_op(_spec)

test_parity = make_parity_test(_registry, Device("cpu"))
