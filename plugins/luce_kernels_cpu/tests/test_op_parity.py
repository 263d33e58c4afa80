"""The native kernels against the references, over every case of every op."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from luce_kernels_cpu import luce_register_kernels
from luce_kernels_cpu.provider import provider

from luce_core.device import Device
from luce_core.ops.core_ops import core_registry
from luce_core.testing.op_parity import ParityCase, check_parity, make_parity_test, parity_cases

CPU = Device.parse("cpu")
_registry = core_registry()
luce_register_kernels(_registry.register_kernel)
_cases = list(parity_cases(_registry, CPU, provider="luce_kernels_cpu"))

test_parity = make_parity_test(_registry, CPU, provider="luce_kernels_cpu")


@pytest.fixture
def avx2() -> Iterator[None]:
    own = provider()
    own.set_isa("avx2")
    yield
    own.set_isa(own.isas[0])


@pytest.mark.usefixtures("avx2")
@pytest.mark.parametrize("parity", _cases, ids=[case.id for case in _cases])
def test_parity_on_avx2(parity: ParityCase) -> None:
    check_parity(parity, CPU)
