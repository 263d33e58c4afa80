"""DeepSeek V4's ops against their references, over every case of every op."""

from __future__ import annotations

import pytest
from luce_kernels_cpu import luce_register_kernels
from luce_kernels_cpu.deepseek_ops import DEEPSEEK_OPS

from luce_core.device import Device
from luce_core.ops.core_ops import core_registry
from luce_core.testing.op_parity import ParityCase, check_parity, parity_cases

plugin = pytest.importorskip("luce_deepseek_v4")
CPU = Device.parse("cpu")
_registry = core_registry()
plugin.luce_register_ops(_registry.register_op)
luce_register_kernels(_registry.register_kernel)
_NATIVE = {op.name for op in DEEPSEEK_OPS}
_cases = [
    case
    for case in parity_cases(_registry, CPU, provider="luce_kernels_cpu")
    if case.spec.name in _NATIVE
]


def test_every_op_is_offered() -> None:
    offered = {case.spec.name for case in _cases}
    assert offered == _NATIVE


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("parity", _cases, ids=[case.id for case in _cases])
def test_parity(parity: ParityCase) -> None:
    check_parity(parity, CPU)
