"""The Triton kernels against the references, over every case of every core op, interpreted."""

from __future__ import annotations

from luce_kernels_rocm.interpreter import register_interpreted

from luce_core.device import Device
from luce_core.ops.core_ops import core_registry
from luce_core.testing.op_parity import make_parity_test

_registry = core_registry()
register_interpreted(_registry.register_kernel)

test_parity = make_parity_test(_registry, Device.parse("cpu"), provider="luce_kernels_rocm")
