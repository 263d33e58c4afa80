"""Verify and replay give the bits of plain decoding at op level, at small and at real sizes."""

from __future__ import annotations

import pytest
import torch
from luce_qwen_dflash2.config import DeltaConfig
from luce_qwen_dflash2.ops import delta_rule
from luce_qwen_dflash2.ops.replay_check import check_replay

from luce_core.device import Device

SMALL = DeltaConfig(key_heads=2, value_heads=6, key_dim=16, value_dim=24, kernel=4)
REAL = DeltaConfig(key_heads=16, value_heads=48, key_dim=128, value_dim=128, kernel=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("accepted", range(9))
def test_replay_of_any_number_of_rows(dtype, accepted, ops_registry) -> None:
    ops = ops_registry().binder(Device("cpu"), dtype)
    check_replay(ops, SMALL, rows=8, accepted=accepted)


def test_replay_at_the_real_sizes(ops_registry) -> None:
    ops = ops_registry().binder(Device("cpu"), torch.float32)
    check_replay(ops, REAL, rows=4, accepted=3)


def test_a_replay_with_other_roundings_is_noticed(ops_registry, monkeypatch) -> None:
    def add_fused(state, key, delta) -> None:
        state.copy_((state.double() + key[:, :, None].double() * delta[:, None, :]).float())

    ops = ops_registry().binder(Device("cpu"), torch.float32)
    add, calls = delta_rule.add_, 0

    def fused_in_replay(*args) -> None:
        """After 8 rows of verify come 5 of replay, then those of decoding."""
        nonlocal calls
        calls += 1
        (add_fused if 8 < calls <= 13 else add)(*args)

    monkeypatch.setattr(delta_rule, "add_", fused_in_replay)
    with pytest.raises(AssertionError, match="delta state after 5"):
        check_replay(ops, SMALL, rows=8, accepted=5)
