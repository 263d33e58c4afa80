"""What one step does, and what came of it. Plans name slots, never tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from luce_core.errors import StepFault
from luce_core.request import FinishReason


class PrefillSlice(NamedTuple):
    """Part of a slot's prompt: `tokens` go to positions start, start+1, ... `is_last` samples."""

    slot_id: int
    start: int
    tokens: tuple[int, ...]
    is_last: bool


class DecodeRow(NamedTuple):
    """A slot's newest token, not yet in the cache; the engine may add up to `max_draft` drafts."""

    slot_id: int
    token: int
    position: int
    max_draft: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One engine step. A slot appears at most once; slots ascend inside each group."""

    step: int
    prefill: tuple[PrefillSlice, ...] = ()
    decode: tuple[DecodeRow, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.prefill or self.decode)

    @property
    def slot_ids(self) -> tuple[int, ...]:
        return tuple(s.slot_id for s in self.prefill) + tuple(r.slot_id for r in self.decode)

    @property
    def rows(self) -> int:
        """Most rows that the step can have, drafts included."""
        return sum(len(s.tokens) for s in self.prefill) + sum(1 + r.max_draft for r in self.decode)

    def without(self, slot_ids: frozenset[int]) -> StepPlan:
        """The same step without some slots."""
        return StepPlan(
            self.step,
            tuple(s for s in self.prefill if s.slot_id not in slot_ids),
            tuple(r for r in self.decode if r.slot_id not in slot_ids),
        )


class TokenLogprob(NamedTuple):
    """The model's own log-probability (before temperature, penalties, bias) of a token."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class SlotOutput(NamedTuple):
    """What a step yields for one slot.

    An unfinished prefill slice yields no token, its last slice one, a decode row 1 to
    1 + max_draft: the accepted drafts in order and the token after them. `logprobs` is None or one
    per token. `proposed` counts verified drafts. A failed row carries `error` and no tokens.
    """

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    proposed: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """Outputs by slot id; `timing` holds seconds by phase name, for traces."""

    outputs: Mapping[int, SlotOutput]
    timing: Mapping[str, float] = field(default_factory=dict)


class Usage(NamedTuple):
    """Token counts of a finished request."""

    prompt_tokens: int
    completion_tokens: int
    proposed: int = 0
    accepted: int = 0


class TokenEvent(NamedTuple):
    """News of one request for the asyncio thread; with `finish` set it is the last."""

    request_id: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish: FinishReason | None = None
    usage: Usage | None = None
    error: str | None = None


def validate_result(plan: StepPlan, result: object, *, vocab_size: int) -> StepResult:
    """The result if it answers the plan exactly, else StepFault naming the first violation."""
    if not isinstance(result, StepResult):
        raise StepFault(f"execute returned {type(result).__name__}, expected StepResult")
    outputs = result.outputs
    planned = len(plan.prefill) + len(plan.decode)
    if len(outputs) != planned:
        missing = sorted(set(plan.slot_ids) - set(outputs))
        unplanned = sorted(set(outputs) - set(plan.slot_ids))
        raise StepFault(f"result does not match the plan: missing {missing}, unplanned {unplanned}")
    for piece in plan.prefill:
        count = 1 if piece.is_last else 0
        _check_output(outputs, piece.slot_id, least=count, most=count, vocab_size=vocab_size)
    for row in plan.decode:
        _check_output(outputs, row.slot_id, least=1, most=1 + row.max_draft, vocab_size=vocab_size)
    return result


def _check_output(
    outputs: Mapping[int, SlotOutput], slot_id: int, *, least: int, most: int, vocab_size: int
) -> None:
    output = outputs.get(slot_id)
    if output is None:
        raise StepFault(f"result has no output for slot {slot_id}")
    tokens = output.tokens
    if output.error is not None:
        if tokens:
            raise StepFault(f"slot {slot_id}: a failed row carries {len(tokens)} tokens")
        return
    if not least <= len(tokens) <= most:
        raise StepFault(f"slot {slot_id}: {len(tokens)} tokens, the plan allows {least} to {most}")
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise StepFault(f"slot {slot_id}: token {token} is outside 0..{vocab_size - 1}")
    if output.logprobs is not None and len(output.logprobs) != len(tokens):
        raise StepFault(f"slot {slot_id}: {len(output.logprobs)} logprobs for {len(tokens)} tokens")
    if output.proposed < max(0, len(tokens) - 1):
        raise StepFault(
            f"slot {slot_id}: {len(tokens) - 1} drafts accepted of {output.proposed} proposed"
        )
