"""After acceptance: the recurrent state moves on by the rows that became durable."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import CaseMaker, Inputs, OpCase
from luce_core.ops.spec import ArgKind, ArgSpec, OpSpec
from luce_qwen_dflash2.ops import delta_rule
from luce_qwen_dflash2.ops.conv_replay import replay_case
from luce_qwen_dflash2.ops.segments import state_segments
from luce_qwen_dflash2.ops.state_cases import MOST_DRAFTS


def gated_delta_replay(
    batch: PackedBatch,
    accepted: Tensor,  # [slots + 1] int32: rows that became durable, the anchor included
    key_log: Tensor,  # [slots + 1, 1 + max_draft, n_k, D_k] float32
    delta_log: Tensor,  # [slots + 1, 1 + max_draft, H, D_v] float32
    decay_log: Tensor,  # [slots + 1, 1 + max_draft, H] float32
    delta_state: Tensor,  # [slots + 1, H, D_k, D_v] float32
    *,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
) -> None:
    head = delta_rule.key_head_of(value_heads, key_heads, delta_state.device)
    for segment in state_segments(batch):
        if segment.is_verify:
            slot = segment.slot
            for row in range(int(accepted[slot])):
                delta_rule.decay_(delta_state[slot], decay_log[slot, row])
                delta_rule.add_(delta_state[slot], key_log[slot, row][head], delta_log[slot, row])


def cases() -> Iterator[OpCase]:
    for most in (0, 1, 2, 1 + MOST_DRAFTS):
        for key_heads, value_heads in ((2, 6), (2, 2)):
            yield _case(most, key_heads, value_heads, key_dim=16, value_dim=24)


def _case(most: int, key_heads: int, value_heads: int, *, key_dim: int, value_dim: int) -> OpCase:
    facts = {
        "key_heads": key_heads,
        "value_heads": value_heads,
        "key_dim": key_dim,
        "value_dim": value_dim,
    }

    def make(maker: CaseMaker) -> Inputs:
        case, accepted = replay_case(maker, most)
        logs = (
            case.log(key_heads, key_dim),
            case.log(value_heads, value_dim),
            case.log(value_heads),
        )
        for slot, count in enumerate(accepted.tolist()[:-1]):
            for log in logs:
                log[slot, :count] = maker.normal32(count, *log.shape[2:]).to(log.device)
        logs[-1].sigmoid_()
        state = case.state(value_heads, key_dim, value_dim)
        return case.replay_inputs(accepted, (*logs, state))

    return OpCase(f"up to {most} rows, {key_heads} and {value_heads} heads", facts, make)


_LOG = ("slots + 1", "1 + max_draft")

SPEC = OpSpec(
    name="gated_delta_replay",
    doc=(
        "Apply the first `accepted[slot]` logged rows of each decode segment of more than one row "
        "to its `delta_state`, with the bits that `gated_delta` gives row by row."
    ),
    args=(
        ArgSpec("batch", ArgKind.BATCH),
        ArgSpec("accepted", ArgKind.CACHE, ("slots + 1",)),
        ArgSpec("key_log", ArgKind.CACHE, (*_LOG, "n_k", "D_k")),
        ArgSpec("delta_log", ArgKind.CACHE, (*_LOG, "H", "D_v")),
        ArgSpec("decay_log", ArgKind.CACHE, (*_LOG, "H")),
        ArgSpec("delta_state", ArgKind.CACHE, ("slots + 1", "H", "D_k", "D_v"), written=True),
    ),
    out=None,
    facts=("key_heads", "value_heads", "key_dim", "value_dim"),
    reference=gated_delta_replay,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
