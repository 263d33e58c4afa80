"""Depthwise causal convolution over each slot's own history, then silu."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import CaseMaker, Inputs, OpCase, Segment
from luce_core.ops.spec import ArgKind, ArgSpec, OpSpec, OutSpec, Rows
from luce_qwen_dflash2.ops.segments import state_segments
from luce_qwen_dflash2.ops.smooth import silu
from luce_qwen_dflash2.ops.state_cases import MIXED, StateCase


def causal_conv1d(
    x: Tensor,  # [T, C]
    batch: PackedBatch,
    conv_state: Tensor,  # [slots + 1, K - 1, C] float32: the last inputs, oldest first
    conv_log: Tensor,  # [slots + 1, 1 + max_draft, C] float32
    weight: Tensor,  # [C, K] float32; the last tap meets the row itself
    out: Tensor,  # [T, C]
    *,
    channels: int,
    kernel: int,
) -> None:
    taps = weight.t()  # [K, C]
    for segment in state_segments(batch):
        fresh = x[segment.first : segment.stop].float()
        count = len(fresh)
        seen = torch.cat((conv_state[segment.slot], fresh))  # [K - 1 + count, C]
        mixed = seen[:count] * taps[0]
        for tap in range(1, kernel):
            mixed += seen[tap : tap + count] * taps[tap]
        out[segment.first : segment.stop] = silu(mixed)
        if segment.is_verify:
            conv_log[segment.slot, :count] = fresh
        else:
            conv_state[segment.slot] = seen[count:]


def out_shape(x: Tensor, *step_args: Any, **facts: int) -> tuple[int, ...]:
    return tuple(x.shape)


def cases() -> Iterator[OpCase]:
    yield _case("mixed step", MIXED, channels=96, kernel=4)
    yield _case("odd width", MIXED, channels=37, kernel=4)
    yield _case("two taps", MIXED, channels=64, kernel=2)
    yield _case("decode only", tuple(Segment(n, 1) for n in range(5)), channels=160, kernel=4)
    yield _case("verify only", (Segment(9, 8), Segment(1, 8)), channels=160, kernel=4)
    yield _case("long prompt", (Segment(0, 300, True),), channels=64, kernel=4)
    yield _case("padded", (Segment(6, 1), Segment(2, 4)), channels=64, kernel=4, null_segments=2)


def _case(
    name: str, segments: tuple[Segment, ...], *, channels: int, kernel: int, null_segments: int = 0
) -> OpCase:
    def make(maker: CaseMaker) -> Inputs:
        case = StateCase(maker, segments, null_segments=null_segments)
        x = maker.columns(case.rows, channels)
        caches = (case.state(kernel - 1, channels), case.log(channels))
        return case.inputs((x,), caches, (maker.normal32(channels, kernel, std=0.5),))

    return OpCase(name, {"channels": channels, "kernel": kernel}, make)


SPEC = OpSpec(
    name="causal_conv1d",
    doc=(
        "silu of a depthwise causal convolution over the slot's last inputs and the segment's. "
        "Prefill segments and decode segments of one row slide `conv_state`; longer decode "
        "segments leave it and put their inputs into `conv_log`."
    ),
    args=(
        ArgSpec("x", ArgKind.ACTIVATION, ("T", "C"), Rows.TOKENS),
        ArgSpec("batch", ArgKind.BATCH),
        ArgSpec("conv_state", ArgKind.CACHE, ("slots + 1", "K - 1", "C"), written=True),
        ArgSpec("conv_log", ArgKind.CACHE, ("slots + 1", "1 + max_draft", "C"), written=True),
        ArgSpec("weight", ArgKind.WEIGHT, ("C", "K")),
    ),
    out=OutSpec(Rows.TOKENS, out_shape),
    facts=("channels", "kernel"),
    reference=causal_conv1d,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
