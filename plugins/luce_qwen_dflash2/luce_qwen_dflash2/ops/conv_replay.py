"""After acceptance: the convolution's history moves on by the rows that became durable."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import CaseMaker, Inputs, OpCase, Segment
from luce_core.ops.spec import EXACT, ArgKind, ArgSpec, OpSpec
from luce_qwen_dflash2.ops.segments import state_segments
from luce_qwen_dflash2.ops.state_cases import MIXED, MOST_DRAFTS, StateCase


def conv_replay(
    batch: PackedBatch,
    accepted: Tensor,  # [slots + 1] int32: rows that became durable, the anchor included
    conv_log: Tensor,  # [slots + 1, 1 + max_draft, C] float32
    conv_state: Tensor,  # [slots + 1, K - 1, C] float32
    *,
    channels: int,
    kernel: int,
) -> None:
    for segment in state_segments(batch):
        if segment.is_verify:
            slot = segment.slot
            count = int(accepted[slot])
            seen = torch.cat((conv_state[slot], conv_log[slot, :count]))
            conv_state[slot] = seen[count:]


def cases() -> Iterator[OpCase]:
    for most in (0, 1, 2, 1 + MOST_DRAFTS):

        def make(maker: CaseMaker, most: int = most) -> Inputs:
            case, accepted = replay_case(maker, most)
            log = case.log(40)
            for slot, count in enumerate(accepted.tolist()[:-1]):
                log[slot, :count] = maker.normal32(count, 40).to(log.device)
            return case.replay_inputs(accepted, (log, case.state(3, 40)))

        yield OpCase(f"up to {most} rows", {"channels": 40, "kernel": 4}, make)


def replay_case(maker: CaseMaker, most: int) -> tuple[StateCase, Tensor]:
    """A mixed step and its durable rows: at most `most` of a verify segment, never all kinds alike.

    The other segments have a count too, which nobody may follow.
    """
    segments = (*MIXED, Segment(11, 5), Segment(1, 4))
    counts = [
        min(most, max(0, segment.rows - number % 3)) for number, segment in enumerate(segments)
    ]
    accepted = torch.tensor([*counts, 0], dtype=torch.int32, device=maker.device)
    return StateCase(maker, segments), accepted


SPEC = OpSpec(
    name="conv_replay",
    doc=(
        "Slide `conv_state` of each decode segment of more than one row over the first "
        "`accepted[slot]` rows of its log, as `causal_conv1d` would have row by row."
    ),
    args=(
        ArgSpec("batch", ArgKind.BATCH),
        ArgSpec("accepted", ArgKind.CACHE, ("slots + 1",)),
        ArgSpec("conv_log", ArgKind.CACHE, ("slots + 1", "1 + max_draft", "C")),
        ArgSpec("conv_state", ArgKind.CACHE, ("slots + 1", "K - 1", "C"), written=True),
    ),
    out=None,
    facts=("channels", "kernel"),
    reference=conv_replay,
    tolerance=EXACT,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
