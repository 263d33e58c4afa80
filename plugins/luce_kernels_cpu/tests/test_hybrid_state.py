"""Ops with state: verify and replay give the bits of decoding, on any number of workers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from luce_kernels_cpu import luce_register_kernels, native_op
from luce_kernels_cpu.testing import pool, same_bits

from luce_core.device import Device
from luce_core.ops.cases import CaseMaker, Segment
from luce_core.ops.registry import OpBinder, OpRegistry

plugin = pytest.importorskip("luce_qwen_dflash2")
config = pytest.importorskip("luce_qwen_dflash2.config")
replay_check = pytest.importorskip("luce_qwen_dflash2.ops.replay_check")
state_cases = pytest.importorskip("luce_qwen_dflash2.ops.state_cases")

CPU = Device.parse("cpu")
SMALL = config.DeltaConfig(key_heads=2, value_heads=6, key_dim=16, value_dim=24, kernel=4)
ODD = config.DeltaConfig(key_heads=1, value_heads=3, key_dim=20, value_dim=7, kernel=3)
REAL = config.DeltaConfig(key_heads=16, value_heads=48, key_dim=128, value_dim=128, kernel=4)
COMPANY = (Segment(0, 70, True), *state_cases.MIXED, Segment(3, 1), Segment(8, 5))


def hybrid_ops() -> OpBinder:
    registry = OpRegistry()
    plugin.luce_register_ops(registry.register_op)
    luce_register_kernels(registry.register_kernel)
    return registry.binder(CPU, torch.float32)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("accepted", range(9))
@pytest.mark.parametrize("sizes", [SMALL, ODD], ids=["small", "odd"])
def test_replay_of_any_number_of_rows_has_the_bits_of_decoding(sizes: Any, accepted: int) -> None:
    replay_check.check_replay(hybrid_ops(), sizes, rows=8, accepted=accepted)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("accepted", [0, 1, 3, 4])
def test_replay_at_the_real_sizes(accepted: int) -> None:
    replay_check.check_replay(hybrid_ops(), REAL, rows=4, accepted=accepted)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("sizes", [SMALL, ODD], ids=["small", "odd"])
def test_state_has_the_same_bits_on_any_number_of_workers(sizes: Any, monkeypatch) -> None:
    """More workers get narrower columns of the state."""
    found = []
    for workers in (1, 2, 5):
        owner = pool(workers)
        owner.library.lk_pool_keep_all(owner.pool, 1)
        monkeypatch.setattr(native_op, "provider", lambda owner=owner: owner)
        found.append(run_layer(sizes))
    for other in found[1:]:
        assert all(same_bits(mine, first) for mine, first in zip(other, found[0], strict=True))


def run_layer(sizes: Any) -> tuple[torch.Tensor, ...]:
    """Output and caches of a convolution and a delta rule over segments of all kinds."""
    maker = CaseMaker("cpu", torch.float32)
    case = state_cases.StateCase(maker, COMPANY)
    x = maker.normal(case.rows, sizes.channels)
    alpha = maker.normal(case.rows, sizes.value_heads)
    beta = maker.normal(case.rows, sizes.value_heads)
    cache = replay_check.RecurrentCache.allocate(
        sizes,
        slots=len(COMPANY),
        max_draft=state_cases.MOST_DRAFTS,
        device=torch.device("cpu"),
    )
    cache.conv.copy_(maker.normal32(*cache.conv.shape))
    cache.delta.copy_(maker.normal32(*cache.delta.shape))
    layer = replay_check._Layer(hybrid_ops(), sizes, maker)
    out = layer(x, alpha, beta, case.batch, cache)
    counts = torch.tensor([min(2, s.rows) for s in COMPANY] + [0], dtype=torch.int32)
    layer.replay(case.batch, counts, cache)
    return out, cache.conv, cache.delta, cache.key_log, cache.delta_log, cache.decay_log
