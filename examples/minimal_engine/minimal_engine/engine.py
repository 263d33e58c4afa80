"""An engine without weights: a token is likely if it has followed the last two before.

What a slot has been fed goes into a paged cache and is read back from there, as the keys and
values of a real model would.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from luce_core.engine import EngineCapabilities, LoadContext, MemoryNeed, PrefillLimits, hookimpl
from luce_core.kv.slot_table import Slot
from luce_core.plan import SlotOutput, StepPlan, StepResult
from luce_core.request import Request

BLOCK_SIZE = 16
ROWS = 512


class Segment(NamedTuple):
    """One slot's part of a step: `tokens` go to the cache's `rows`; `past` lie there already."""

    slot_id: int
    rows: list[int]
    past: list[int]
    tokens: tuple[int, ...]
    samples: bool


class MinimalEngine:
    def __init__(self, context: LoadContext) -> None:
        vocab_size = len(context.gguf.metadata.strings("tokenizer.ggml.tokens"))
        own_context = context.gguf.metadata.int("minimal.context_length")
        limits = PrefillLimits(max_prompts=8, rows_per_slot=ROWS, rows_total=ROWS, quantum=ROWS)
        self.capabilities = EngineCapabilities(
            max_slots=context.limits.max_slots,
            max_context=context.limits.max_context or own_context,
            block_size=BLOCK_SIZE,
            vocab_size=vocab_size,
            max_step_rows=ROWS + context.limits.max_slots,
            with_decode=limits,
            idle=limits,
            lone=limits,
        )
        self.memory_need = MemoryNeed(bytes_per_token=8)
        self._device = torch.device(context.device.torch_name)
        self._sampler = context.sampler(vocab_size)
        self._slots: dict[int, Slot] = {}

    def allocate(self, total_blocks: int) -> None:
        rows = (total_blocks + 1) * BLOCK_SIZE
        self._cache = torch.zeros(rows, dtype=torch.int64, device=self._device)

    def admit(self, slot: Slot, request: Request) -> None:
        self._sampler.admit(slot.id, request)
        self._slots[slot.id] = slot

    @hookimpl
    def lower_plan(self, plan: StepPlan) -> list[Segment]:
        prefill = [self._segment(p.slot_id, p.start, p.tokens, p.is_last) for p in plan.prefill]
        return prefill + [
            self._segment(r.slot_id, r.position, (r.token,), True) for r in plan.decode
        ]

    def _segment(self, slot_id: int, start: int, tokens: tuple[int, ...], samples: bool) -> Segment:
        table = self._slots[slot_id].table
        places = [table.locate(position) for position in range(start + len(tokens))]
        rows = [block * BLOCK_SIZE + offset for block, offset in places]
        return Segment(slot_id, rows[start:], rows[:start], tokens, samples)

    @hookimpl
    def execute(self, lowered: list[Segment]) -> StepResult:
        logits, cu_logits = [], [0]
        for segment in lowered:
            self._cache[segment.rows] = torch.tensor(segment.tokens, device=self._device)
            if segment.samples:
                logits.append(self._logits(self._cache[segment.past + segment.rows]))
            cu_logits.append(len(logits))
        scores = torch.stack(logits) if logits else torch.empty(0, self.capabilities.vocab_size)
        slot_ids = [segment.slot_id for segment in lowered]
        chosen = self._sampler.accept(scores, cu_logits, slot_ids, [()] * len(lowered))
        return StepResult(
            {
                slot_id: SlotOutput(row.tokens, row.logprobs, error=row.error)
                for slot_id, row in zip(slot_ids, chosen, strict=True)
            }
        )

    def _logits(self, history: Tensor) -> Tensor:
        """Votes [V] for what has followed the last token before, and more the last two."""
        votes = torch.zeros(self.capabilities.vocab_size, device=self._device)
        followed = history[:-1] == history[-1]
        votes.index_add_(0, history[1:][followed], followed[followed].float())
        pairs = followed[1:] & (history[:-2] == history[-2:-1])
        votes.index_add_(0, history[2:][pairs], 2 * pairs[pairs].float())
        votes[history[0]].clamp_(min=0.5)  # a last token without a past begins the text again
        return votes

    @hookimpl
    def commit_prefill(self, slot: Slot) -> None:
        """Nothing to seed: there is no draft model."""

    @hookimpl
    def retire(self, slot: Slot) -> None:
        self._sampler.retire(slot.id)
        self._slots.pop(slot.id, None)

    def close(self) -> None:
        self.allocate(0)
