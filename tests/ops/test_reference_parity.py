"""The references pass their own parity check in every dtype: cases are well made, NaN-proof."""

from __future__ import annotations

from luce_core.device import Device
from luce_core.ops.core_ops import core_registry
from luce_core.testing.op_parity import make_parity_test

test_reference_parity = make_parity_test(core_registry(), Device.parse("cpu"))
