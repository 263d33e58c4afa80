"""The Triton kernels against the references, over every case of every core op, interpreted."""

from __future__ import annotations

import pytest
import torch
from luce_kernels_rocm.interpreter import register_interpreted

from luce_core.device import Device
from luce_core.ops.core_ops import core_registry
from luce_core.testing.op_parity import ParityCase, check_parity, parity_cases

CPU = Device.parse("cpu")
# In float32 they only repeat what float16 shows, or take the interpreter long.
FLOAT16_IS_ENOUGH = frozenset(
    {"add", "embedding_rows", "gather_rows", "kv_write", "paged_attention"}
)

_registry = core_registry()
register_interpreted(_registry.register_kernel)


def _parameter(case: ParityCase) -> object:
    is_slow = case.dtype is torch.float32 and case.spec.name in FLOAT16_IS_ENOUGH
    return pytest.param(case, id=case.id, marks=[pytest.mark.slow] if is_slow else [])


@pytest.mark.parametrize(
    "parity",
    [_parameter(case) for case in parity_cases(_registry, CPU, provider="luce_kernels_rocm")],
)
def test_kernel_matches_the_reference(parity: ParityCase) -> None:
    check_parity(parity, CPU)


def test_every_kernel_has_cases() -> None:
    every = parity_cases(_registry, CPU, provider="luce_kernels_rocm")
    covered = {case.spec.name for case in every}
    assert covered == set(core_registry().specs)
