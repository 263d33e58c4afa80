"""Products of experts: many rows of one expert, on any number of workers, and routes gone wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from luce_kernels_cpu import luce_register_kernels, native_op
from luce_kernels_cpu.testing import pool, random_weight, same_bits
from torch import Tensor

from luce_core.device import Device
from luce_core.errors import ConfigError
from luce_core.ops.core_ops import core_registry
from luce_core.weights.quant_types import QuantTensor

EXPERTS, TOP_K, N, K = 5, 2, 40, 256


def bind(qtype: str, *, native: bool = True, group_rows: int = 0) -> Any:
    registry = core_registry()
    if native:
        luce_register_kernels(registry.register_kernel)
    flat = random_weight(qtype, EXPERTS * N, K)
    blocks = flat.blocks.view(EXPERTS, N, -1)
    weight = QuantTensor("experts", flat.qtype, (EXPERTS, N, K), blocks)
    facts = {"qtype": qtype, "experts": EXPERTS, "top_k": TOP_K, "n": N, "k": K}
    facts["group_rows"] = group_rows
    ops = registry.binder(Device("cpu"), torch.float32)
    return ops.bind("moe_matmul", weights=(weight,), **facts)


def route_of(rows: int) -> Tensor:
    """All rows go to expert 1, and to others in turn; expert 0 is never chosen."""
    route = torch.zeros(rows, 2, TOP_K)
    route[:, 0, 0] = 1
    route[:, 0, 1] = 2 + torch.arange(rows) % 3
    return route


@pytest.mark.parametrize("qtype", ["Q4_K", "Q6_K", "Q8_0", "F16", "IQ2_S", "ROCMFP2", "ROCMFP3"])
@pytest.mark.parametrize("inputs", [1, TOP_K])
def test_a_row_has_the_same_bits_in_company_and_on_any_workers(
    qtype: str, inputs: int, monkeypatch
) -> None:
    product, route = bind(qtype), route_of(75)
    x = torch.randn(75, inputs, K, generator=torch.Generator().manual_seed(1))
    whole = None
    for workers in (1, 2, 5):
        owner = pool(workers)
        owner.library.lk_pool_keep_all(owner.pool, 1)
        monkeypatch.setattr(native_op, "provider", lambda owner=owner: owner)
        found = product(x, route)
        whole = found if whole is None else whole
        assert same_bits(found, whole)
        for row in (0, 40, 74):
            here = slice(row, row + 1)
            assert same_bits(product(x[here], route[here]), whole[here])


@pytest.mark.parametrize("native", [False, True], ids=["reference", "native"])
@pytest.mark.parametrize("qtype", ["MXFP4", "Q2_K", "Q8_0", "ROCMFP4", "F16"])
def test_no_bit_depends_on_how_many_rows_of_an_expert_are_multiplied_at_a_time(
    qtype: str, native: bool
) -> None:
    route = route_of(75)
    x = torch.randn(75, TOP_K, K, generator=torch.Generator().manual_seed(2))
    alone = bind(qtype, native=native, group_rows=1)(x, route)
    for group_rows in (0, 2, 3, 8, 31, 32):
        assert same_bits(bind(qtype, native=native, group_rows=group_rows)(x, route), alone)


@pytest.mark.parametrize("group_rows", [-1, 33])
def test_groups_that_no_kernel_has_are_refused(group_rows: int) -> None:
    with pytest.raises(ConfigError, match=f"groups of {group_rows} rows; 1 to 32 are accepted"):
        bind("Q8_0", group_rows=group_rows)


@pytest.mark.parametrize("number", [-1.0, 5.0, 1e30, float("nan"), float("-inf")])
def test_a_number_that_is_no_experts_leads_nowhere_else(number: float) -> None:
    product, route = bind("Q8_0"), route_of(3)
    x = torch.ones(3, 1, K)
    expected = product(x, route)
    route[1, 0, 1] = number
    found = product(x, route)
    route[1, 0, 1] = 0
    assert same_bits(found[1], product(x, route)[1])
    assert same_bits(found[::2], expected[::2])
