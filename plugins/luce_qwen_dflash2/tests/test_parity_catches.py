"""The parity cases of the ops with state notice kernels that keep it wrongly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from luce_qwen_dflash2.ops import causal_conv1d, conv_replay, gated_delta, gated_delta_replay
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.device import Device
from luce_core.ops.registry import OpRegistry
from luce_core.testing.op_parity import check_parity, parity_cases

CPU = Device.parse("cpu")
DECLARED = {"row_invariant": True, "split_invariant": True}


def failures(module: Any, fn: Any) -> list[str]:
    registry = OpRegistry()
    registry.register_op(module.SPEC)
    registry.register_kernel(
        module.SPEC.name, fn, device="cpu", dtypes=(torch.float32,), provider="mine", **DECLARED
    )
    found = []
    for parity in parity_cases(registry, CPU, provider="mine"):
        try:
            check_parity(parity, CPU)
        except AssertionError as error:
            found.append(str(error))
    return found


def conv(
    x: Tensor, batch: PackedBatch, state: Tensor, log: Tensor, *rest: Tensor, **facts: Any
) -> None:
    causal_conv1d.causal_conv1d(x, batch, state, log, *rest, **facts)


def delta(*args: Any, **facts: Any) -> None:
    gated_delta.gated_delta(*args, **facts)


def test_the_references_pass() -> None:
    assert failures(causal_conv1d, conv) == []
    assert failures(gated_delta, delta) == []


def test_a_convolution_that_forgets_its_history_is_caught() -> None:
    def forgetful(x, batch, state, log, *rest, **facts) -> None:
        conv(x, batch, state.clone(), log, *rest, **facts)

    assert failures(causal_conv1d, forgetful)


def test_a_convolution_without_a_log_is_caught() -> None:
    def mute(x, batch, state, log, *rest, **facts) -> None:
        conv(x, batch, state, log.clone(), *rest, **facts)

    found = failures(causal_conv1d, mute)
    assert any("NaN" in text for text in found)


@pytest.mark.parametrize("place", [4, 5, 6, 7], ids=["state", "keys", "deltas", "decays"])
def test_a_delta_rule_that_leaves_a_cache_unwritten_is_caught(place) -> None:
    def mute(*args: Any, **facts: Any) -> None:
        delta(*args[:place], args[place].clone(), *args[place + 1 :], **facts)

    assert failures(gated_delta, mute)


def test_a_delta_rule_that_writes_state_in_verify_is_caught() -> None:
    def eager(qkv, alpha, beta, batch, state, *rest, **facts) -> None:
        delta(qkv, alpha, beta, batch, state, *rest, **facts)
        starts = batch.cu_seqlens.tolist()
        for segment in range(batch.num_prefill, batch.segments):
            if starts[segment + 1] - starts[segment] > 1:
                state[int(batch.slot_ids[segment])] += 1e-2

    assert failures(gated_delta, eager)


def test_a_replay_one_row_short_is_caught() -> None:
    def short(replay: Any) -> Any:
        def one_less(batch, accepted, *caches, **facts) -> None:
            replay(batch, (accepted - 1).clamp(min=0), *caches, **facts)

        return one_less

    assert failures(conv_replay, short(conv_replay.conv_replay))
    assert failures(gated_delta_replay, short(gated_delta_replay.gated_delta_replay))


def test_a_replay_of_plain_rows_is_caught() -> None:
    def all_rows(batch, accepted, log, state, **facts) -> None:
        for slot in batch.slot_ids.tolist():
            seen = torch.cat((state[slot], log[slot, : int(accepted[slot])]))
            state[slot] = seen[len(seen) - state.shape[1] :]

    assert failures(conv_replay, all_rows)
