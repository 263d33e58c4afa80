"""SeqEngine of hybrid models: a plan is packed, run, sampled, and its durable rows replayed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from luce_core.batch.build import BatchBuffers, pack
from luce_core.batch.packed import PackedBatch
from luce_core.engine import (
    EngineCapabilities,
    LoadContext,
    MemoryNeed,
    PrefillLimits,
    hookimpl,
)
from luce_core.errors import ConfigError
from luce_core.kv.slot_table import Slot
from luce_core.plan import SlotOutput, StepPlan, StepResult
from luce_core.request import Request
from luce_core.sampling.accept import Accepted
from luce_core.sampling.sampler import Sampler
from luce_qwen_dflash2.config import ModelConfig, read_config
from luce_qwen_dflash2.model import BLOCK_SIZE, Model
from luce_qwen_dflash2.room import NO_ROOM, Room

# Proposes up to `width` tokens that may follow the request's own; host work only.
DraftSource = Callable[[Request, int], Sequence[int]]

_WITH_DECODE = PrefillLimits(max_prompts=8, rows_per_slot=512, rows_total=2048, quantum=512)
_IDLE = PrefillLimits(max_prompts=8, rows_per_slot=2048, rows_total=4096, quantum=512)


class Lowered(NamedTuple):
    """A packed plan with what sampling needs of it, on the host."""

    batch: PackedBatch
    slot_ids: tuple[int, ...]
    cu_logits: list[int]
    drafts: list[list[int]]


class QwenEngine:
    """One hybrid model on one device."""

    def __init__(
        self,
        model: Model,
        config: ModelConfig,
        context: LoadContext,
        *,
        drafts: DraftSource | None = None,
        max_draft: int = 0,
    ) -> None:
        limits = context.limits
        if limits.max_context is not None and limits.max_context > config.context:
            raise ConfigError(
                f"--max-ctx {limits.max_context} is more than the model's {config.context}"
            )
        self._model = model
        self._device = torch.device(context.device.torch_name)
        self._drafts = drafts
        self._slots: dict[int, Slot] = {}
        self._requests: dict[int, Request] = {}
        slots = limits.max_slots
        self._capabilities = EngineCapabilities(
            max_slots=slots,
            max_context=limits.max_context or config.context,
            block_size=BLOCK_SIZE,
            vocab_size=model.vocab_size,
            max_step_rows=_IDLE.rows_total + slots * (1 + max_draft),
            max_draft=max_draft,
            with_decode=_WITH_DECODE,
            idle=_IDLE,
            lone=_IDLE,
        )
        self._memory_need = MemoryNeed(
            bytes_per_token=model.bytes_per_token,
            bytes_per_slot=model.bytes_per_slot(max_draft),
            scratch=_scratch_bytes(config, self._capabilities),
        )
        self._sampler: Sampler = context.sampler(model.vocab_size)
        self._ops = context.ops
        self._buffers: BatchBuffers | None = None
        self._run: Callable[[PackedBatch], Any] = model.forward
        self._replay: Callable[[PackedBatch], Any] = model.replay

    @classmethod
    def load(
        cls, context: LoadContext, *, drafts: DraftSource | None = None, max_draft: int = 0
    ) -> QwenEngine:
        """Read the config, bind every op, prepare every weight."""
        config = read_config(context.gguf.metadata)
        model = Model(context, config)
        return cls(model, config, context, drafts=drafts, max_draft=max_draft)

    @property
    def capabilities(self) -> EngineCapabilities:
        return self._capabilities

    @property
    def memory_need(self) -> MemoryNeed:
        return self._memory_need

    @property
    def held_slots(self) -> list[int]:
        """Slots admitted and not retired."""
        return sorted(self._slots)

    def allocate(self, total_blocks: int) -> None:
        capabilities = self._capabilities
        room = Room(
            blocks=total_blocks,
            slots=capabilities.max_slots,
            max_draft=capabilities.max_draft,
            device=self._device,
        )
        self._model.allocate(room)
        self._buffers = BatchBuffers(
            max_rows=capabilities.max_step_rows,
            max_slots=capabilities.max_slots,
            max_blocks=-(-capabilities.max_context // BLOCK_SIZE),
            null_block=total_blocks,
            null_slot=capabilities.max_slots,
            device=self._device,
        )
        self._run = self._program(self._model.forward)
        if capabilities.max_draft:
            self._replay = self._program(self._model.replay)

    def _program(self, forward: Callable[[PackedBatch], Any]) -> Callable[[PackedBatch], Any]:
        capabilities, buffers = self._capabilities, self._buffers
        assert buffers is not None
        return self._ops.program(
            forward,
            max_rows=capabilities.max_step_rows,
            max_logits=capabilities.max_slots * (1 + capabilities.max_draft),
            max_segments=capabilities.max_slots,
            max_blocks=buffers.max_blocks,
        ).run

    def admit(self, slot: Slot, request: Request) -> None:
        self._model.clear(slot.id)
        self._sampler.admit(slot.id, request)
        self._slots[slot.id] = slot
        self._requests[slot.id] = request

    @hookimpl
    def lower_plan(self, plan: StepPlan) -> Lowered:
        assert self._buffers is not None
        drafts = self._propose(plan)
        batch = pack(plan, self._slots, self._buffers, drafts)
        cu_logits = [0]
        for piece in plan.prefill:
            cu_logits.append(cu_logits[-1] + piece.is_last)
        for row in plan.decode:
            cu_logits.append(cu_logits[-1] + 1 + len(drafts.get(row.slot_id, ())))
        slot_ids = plan.slot_ids
        return Lowered(batch, slot_ids, cu_logits, [list(drafts.get(i, ())) for i in slot_ids])

    def _propose(self, plan: StepPlan) -> Mapping[int, Sequence[int]]:
        if self._drafts is None:
            return {}
        rows = [row for row in plan.decode if row.max_draft]
        proposed = [
            list(self._drafts(self._requests[row.slot_id], row.max_draft))[: row.max_draft]
            for row in rows
        ]
        ids = [row.slot_id for row in rows]
        return dict(zip(ids, self._sampler.clip_drafts(ids, proposed), strict=True))

    @hookimpl
    def execute(self, lowered: Lowered) -> StepResult:
        with torch.inference_mode():
            logits = self._run(lowered.batch)
            accepted = self._sampler.accept(
                logits, lowered.cu_logits, lowered.slot_ids, lowered.drafts
            )
            self._commit(lowered, accepted)
        return StepResult(
            {
                slot_id: SlotOutput(chosen.tokens, chosen.logprobs, len(drafts), chosen.error)
                for slot_id, chosen, drafts in zip(
                    lowered.slot_ids, accepted, lowered.drafts, strict=True
                )
            }
        )

    def _commit(self, lowered: Lowered, accepted: Sequence[Accepted]) -> None:
        """Bring the state of slots with verify rows to their last durable row.

        A slot's newest token is not in its cache: of its rows, the anchor and the accepted drafts
        are durable, which are as many as its new tokens. A failed slot has none and stays.
        """
        if not any(lowered.drafts):
            return
        rows = [0] * len(self._model.accepted)
        for slot_id, chosen in zip(lowered.slot_ids, accepted, strict=True):
            rows[slot_id] = len(chosen.tokens)
        self._model.accepted.copy_(torch.tensor(rows, dtype=torch.int32))
        self._replay(lowered.batch)

    @hookimpl
    def commit_prefill(self, slot: Slot) -> None:
        """Nothing to seed: this engine has no draft model."""

    @hookimpl
    def retire(self, slot: Slot) -> None:
        self._slots.pop(slot.id, None)
        self._requests.pop(slot.id, None)
        self._sampler.retire(slot.id)

    def close(self) -> None:
        self._slots.clear()
        self._requests.clear()
        self._run, self._replay = self._model.forward, self._model.replay
        self._model.allocate(NO_ROOM)


def _scratch_bytes(config: ModelConfig, capabilities: EngineCapabilities) -> int:
    """Activations of the widest step in its widest layer, and its logits."""
    delta, moe = config.delta, config.moe
    feed = 3 * config.inner
    if moe is not None:
        feed = 3 * moe.shared_inner + moe.experts + moe.top_k * (3 * moe.inner + config.width)
    row = 3 * config.width + max(
        feed,
        2 * delta.channels + 3 * delta.value_width,
        5 * config.heads * config.head_dim,
    )
    logit_rows = capabilities.max_slots * (1 + capabilities.max_draft)
    return 4 * (capabilities.max_step_rows * row + 4 * logit_rows * capabilities.vocab_size)
