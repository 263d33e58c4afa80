"""SeqEngine of hybrid models: a plan is drafted for, packed, run, sampled and committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from luce_core.batch.build import BatchBuffers, pack
from luce_core.batch.packed import PackedBatch
from luce_core.engine import EngineCapabilities, LoadContext, MemoryNeed, hookimpl
from luce_core.kv.slot_table import Slot
from luce_core.plan import SlotOutput, StepPlan, StepResult
from luce_core.request import Request
from luce_core.sampling.accept import Accepted
from luce_core.sampling.sampler import Sampler
from luce_core.weights.tensor_claims import TensorClaims
from luce_qwen_dflash2.config import ModelConfig, read_config
from luce_qwen_dflash2.draft.config import TargetShape
from luce_qwen_dflash2.draft.draft import Draft
from luce_qwen_dflash2.draft.loaded import LoadedDraft, read_target_layers
from luce_qwen_dflash2.drafting import Drafting, Drafts, DraftSource
from luce_qwen_dflash2.limits import engine_capabilities, scratch_bytes
from luce_qwen_dflash2.measured_costs import measure_costs
from luce_qwen_dflash2.model import Model
from luce_qwen_dflash2.room import NO_ROOM, Room
from luce_qwen_dflash2.widths import AdaptiveWidths, FixedWidths, Widths

_NO_DRAFTS: Drafts = MappingProxyType({})


class Lowered(NamedTuple):
    """A plan, packed unless it waits for drafts."""

    plan: StepPlan
    batch: PackedBatch | None


class QwenEngine:
    """One hybrid model on one device, alone or with a draft model.

    `drafts` and `widths` are for tests and benchmarks: what is proposed instead of the draft
    model's tokens, and how much of it. Without them a draft model drafts as many tokens as pay, by
    costs that are measured once the cache exists.
    """

    def __init__(
        self,
        model: Model,
        config: ModelConfig,
        context: LoadContext,
        *,
        draft: LoadedDraft | None = None,
        drafts: DraftSource | None = None,
        max_draft: int = 0,
        widths: Widths | None = None,
    ) -> None:
        limits = context.limits
        self._model = model
        self._device = torch.device(context.device.torch_name)
        self._ops = context.ops
        self._loaded_draft = draft
        self._source = drafts
        self._widths = widths
        self._min_acceptance = (context.draft and context.draft.min_acceptance) or 0.0
        self._slots: dict[int, Slot] = {}
        self._requests: dict[int, Request] = {}
        self._capabilities = engine_capabilities(
            config,
            slots=limits.max_slots,
            max_context=limits.max_context,
            vocab_size=model.vocab_size,
            max_draft=max_draft if draft is None else draft.max_draft,
            has_features=draft is not None,
        )
        self._memory_need = _memory_need(model, config, self._capabilities, draft)
        self._sampler: Sampler = context.sampler(model.vocab_size)
        self._drafting: Drafting | None = None
        self._buffers: BatchBuffers | None = None
        self._run: Callable[[PackedBatch], Any] = model.forward
        self._replay: Callable[[PackedBatch], Any] = model.replay

    @classmethod
    def load(
        cls,
        context: LoadContext,
        *,
        drafts: DraftSource | None = None,
        max_draft: int = 0,
        widths: Widths | None = None,
    ) -> QwenEngine:
        """Read the configs, bind every op, prepare every weight. With a draft model, `max_draft` is
        what its blocks hold."""
        config = read_config(context.gguf.metadata)
        if context.draft is None:
            model, draft = Model(context, config), None
        else:
            table = TensorClaims(context.gguf).take("token_embd.weight", -1, config.width)
            shape = TargetShape(layers=config.layers, width=config.width, vocab_size=table.shape[0])
            # A draft that does not fit is refused before the weights are read.
            features = read_target_layers(context.draft, shape)
            model = Model(context, config, features=features)
            draft = LoadedDraft.load(
                context.draft,
                shape,
                context.ops,
                embed=model.embed,
                head=model.head,
                slots=context.limits.max_slots,
                max_context=context.limits.max_context or config.context,
                progress=context.progress,
            )
        return cls(
            model, config, context, draft=draft, drafts=drafts, max_draft=max_draft, widths=widths
        )

    @property
    def capabilities(self) -> EngineCapabilities:
        return self._capabilities

    @property
    def memory_need(self) -> MemoryNeed:
        return self._memory_need

    @property
    def held_slots(self) -> list[int]:
        """Slots admitted and not retired, whether here or in the draft's rings."""
        drafting = self._drafting
        return sorted({*self._slots, *(() if drafting is None else drafting.held_slots)})

    def allocate(self, total_blocks: int) -> None:
        capabilities = self._capabilities
        room = Room(
            blocks=total_blocks,
            slots=capabilities.max_slots,
            max_draft=capabilities.max_draft,
            device=self._device,
        )
        draft = None
        if self._loaded_draft is not None:
            draft = self._loaded_draft.allocate(max_step_rows=capabilities.max_step_rows)
        self._model.allocate(room, None if draft is None else draft.backlog)
        self._buffers = BatchBuffers(
            max_rows=capabilities.max_step_rows,
            max_slots=capabilities.max_slots,
            max_blocks=-(-capabilities.max_context // capabilities.block_size),
            null_block=total_blocks,
            null_slot=capabilities.max_slots,
            device=self._device,
        )
        self._run = self._program(self._model.forward)
        if capabilities.max_draft:
            self._replay = self._program(self._model.replay)
            self._drafting = self._new_drafting(draft, total_blocks)

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

    def _new_drafting(self, draft: Draft | None, total_blocks: int) -> Drafting | None:
        if draft is None and self._source is None:
            return None
        everything = FixedWidths(self._capabilities.max_draft)
        drafting = Drafting(draft, self._source, self._widths or everything, self._sampler)
        if draft is not None and self._widths is None:
            self._drafting = drafting
            costs = measure_costs(self, drafting.use, blocks=total_blocks)
            drafting.use(AdaptiveWidths(costs, min_acceptance=self._min_acceptance))
        return drafting

    def admit(self, slot: Slot, request: Request) -> None:
        self._model.clear(slot.id)
        self._sampler.admit(slot.id, request)
        if self._drafting is not None:
            self._drafting.admit(slot.id)
        self._slots[slot.id] = slot
        self._requests[slot.id] = request

    @hookimpl
    def lower_plan(self, plan: StepPlan) -> Lowered:
        self._ops.expect_step()
        waits = self._drafting is not None and any(row.max_draft for row in plan.decode)
        return Lowered(plan, None if waits else self._pack(plan, _NO_DRAFTS))

    def _pack(self, plan: StepPlan, drafts: Drafts) -> PackedBatch:
        assert self._buffers is not None
        read = self._sampler.reads_logits(plan.slot_ids)
        return pack(plan, self._slots, self._buffers, drafts, logits_of=read)

    @hookimpl
    def execute(self, lowered: Lowered) -> StepResult:
        with torch.inference_mode():
            return self._execute(*lowered)

    def _execute(self, plan: StepPlan, batch: PackedBatch | None) -> StepResult:
        drafting, drafts = self._drafting, _NO_DRAFTS
        if batch is None:
            assert drafting is not None
            drafts = drafting.propose(plan, self._requests)
            batch = self._pack(plan, drafts)
        if drafting is not None:
            drafting.open(batch.rows)
        logits, greedy = self._run(batch)
        slot_ids = plan.slot_ids
        tokens = [drafts.get(slot_id, ()) for slot_id in slot_ids]
        cu_logits = _logit_starts(plan, drafts)
        chosen = self._sampler.accept(logits, cu_logits, slot_ids, tokens, greedy)
        accepted = dict(zip(slot_ids, chosen, strict=True))
        if drafts:
            self._commit(batch, accepted)
        if drafting is not None:
            drafting.settle(plan, drafts, accepted)
        return StepResult(
            {
                slot_id: SlotOutput(each.tokens, each.logprobs, len(drafted), each.error)
                for slot_id, each, drafted in zip(slot_ids, chosen, tokens, strict=True)
            }
        )

    def _commit(self, batch: PackedBatch, accepted: dict[int, Accepted]) -> None:
        """Bring the state of slots with verify rows to their last durable row.

        A slot's newest token is not in its cache: of its rows, the anchor and the accepted drafts
        are durable, which are as many as its new tokens. A failed slot has none and stays.
        """
        rows = [0] * (1 + self._capabilities.max_slots)
        for slot_id, each in accepted.items():
            rows[slot_id] = len(each.tokens)
        self._model.accepted.fill(rows)
        self._replay(batch)

    @hookimpl
    def commit_prefill(self, slot: Slot) -> None:
        """The draft has taken in the prompt as its rows came."""

    @hookimpl
    def retire(self, slot: Slot) -> None:
        self._slots.pop(slot.id, None)
        self._requests.pop(slot.id, None)
        self._sampler.retire(slot.id)
        if self._drafting is not None:
            self._drafting.retire(slot.id)

    def close(self) -> None:
        self._slots.clear()
        self._requests.clear()
        self._drafting = None
        self._run, self._replay = self._model.forward, self._model.replay
        self._model.allocate(NO_ROOM)


def _logit_starts(plan: StepPlan, drafts: Drafts) -> Sequence[int]:
    """Where each segment's logits begin: the last slice of a prompt has one row of them, a decode
    segment as many as it has rows."""
    starts = [0]
    for piece in plan.prefill:
        starts.append(starts[-1] + piece.is_last)
    for row in plan.decode:
        starts.append(starts[-1] + 1 + len(drafts.get(row.slot_id, ())))
    return starts


def _memory_need(
    model: Model,
    config: ModelConfig,
    capabilities: EngineCapabilities,
    draft: LoadedDraft | None,
) -> MemoryNeed:
    """Recurrent state, replay logs and rings of a slot; the draft's own scratch apart."""
    max_step_rows = capabilities.max_step_rows
    memory = None if draft is None else draft.memory(max_step_rows=max_step_rows)
    return MemoryNeed(
        bytes_per_token=model.bytes_per_token,
        bytes_per_slot=model.bytes_per_slot(capabilities.max_draft)
        + (0 if memory is None else memory.per_slot),
        draft=0 if memory is None else memory.scratch,
        scratch=scratch_bytes(config, capabilities),
    )
