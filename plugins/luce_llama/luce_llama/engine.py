"""SeqEngine of dense models: a plan is packed, run through the model, and sampled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

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
from luce_core.sampling.sampler import Sampler
from luce_llama.config import ModelConfig, read_config
from luce_llama.model import BLOCK_SIZE, Model

log = logging.getLogger(__name__)

# Proposes up to `width` tokens that may follow the request's own; host work only.
DraftSource = Callable[[Request, int], Sequence[int]]

# Types of cached keys with which the most likely token is another at more than one position in
# twenty. Qwen2's keys have large biases, which take the range of their quant blocks.
_COARSE_KEYS = MappingProxyType({"llama": ("q4_0",), "qwen2": ("q4_0", "q8_0"), "qwen3": ("q4_0",)})

_WITH_DECODE = PrefillLimits(max_prompts=8, rows_per_slot=512, rows_total=4096, quantum=512)
_IDLE = PrefillLimits(max_prompts=8, rows_per_slot=2048, rows_total=4096, quantum=512)


class Lowered(NamedTuple):
    """A packed plan with what sampling needs of it, on the host."""

    batch: PackedBatch
    slot_ids: tuple[int, ...]
    cu_logits: list[int]
    drafts: list[list[int]]


class LlamaEngine:
    """One dense model on one device. Slots have no state but their blocks and their sampler's."""

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
            max_draft=max_draft if drafts is not None else 0,
            with_decode=_WITH_DECODE,
            idle=_IDLE,
            lone=_IDLE,
        )
        self._memory_need = MemoryNeed(
            bytes_per_token=sum(layout.bytes_per_token for layout in model.layouts),
            scratch=_scratch_bytes(config, self._capabilities),
        )
        self._sampler: Sampler = context.sampler(model.vocab_size)
        self._ops = context.ops
        self._buffers: BatchBuffers | None = None
        self._run: Callable[[PackedBatch], tuple[torch.Tensor, torch.Tensor]] = model.forward

    @classmethod
    def load(
        cls, context: LoadContext, *, drafts: DraftSource | None = None, max_draft: int = 0
    ) -> LlamaEngine:
        """Read the config, bind every op, prepare every weight."""
        config = read_config(context.gguf.metadata)
        _warn_of_coarse_keys(config.architecture, context.limits.cache_type_k)
        model = Model(context, config)
        return cls(model, config, context, drafts=drafts, max_draft=max_draft)

    @property
    def capabilities(self) -> EngineCapabilities:
        return self._capabilities

    @property
    def memory_need(self) -> MemoryNeed:
        return self._memory_need

    def allocate(self, total_blocks: int) -> None:
        self._model.allocate(total_blocks, self._device)
        capabilities = self._capabilities
        self._buffers = BatchBuffers(
            max_rows=capabilities.max_step_rows,
            max_slots=capabilities.max_slots,
            max_blocks=-(-capabilities.max_context // BLOCK_SIZE),
            null_block=total_blocks,
            null_slot=capabilities.max_slots,
            device=self._device,
        )
        self._run = self._ops.program(
            self._model.forward,
            max_rows=capabilities.max_step_rows,
            max_logits=capabilities.max_slots * (1 + capabilities.max_draft),
            max_segments=capabilities.max_slots,
            max_blocks=self._buffers.max_blocks,
        ).run

    def admit(self, slot: Slot, request: Request) -> None:
        self._sampler.admit(slot.id, request)
        self._slots[slot.id] = slot
        self._requests[slot.id] = request

    @hookimpl
    def lower_plan(self, plan: StepPlan) -> Lowered:
        assert self._buffers is not None
        self._ops.expect_step()
        drafts = self._propose(plan)
        slot_ids = plan.slot_ids
        read = self._sampler.reads_logits(slot_ids)
        batch = pack(plan, self._slots, self._buffers, drafts, logits_of=read)
        cu_logits = [0]
        for piece in plan.prefill:
            cu_logits.append(cu_logits[-1] + piece.is_last)
        for row in plan.decode:
            cu_logits.append(cu_logits[-1] + 1 + len(drafts.get(row.slot_id, ())))
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
        logits, greedy = self._run(lowered.batch)
        accepted = self._sampler.accept(
            logits, lowered.cu_logits, lowered.slot_ids, lowered.drafts, greedy
        )
        return StepResult(
            {
                slot_id: SlotOutput(chosen.tokens, chosen.logprobs, len(drafts), chosen.error)
                for slot_id, chosen, drafts in zip(
                    lowered.slot_ids, accepted, lowered.drafts, strict=True
                )
            }
        )

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
        self._run = self._model.forward
        self._model.allocate(0, self._device)


def _warn_of_coarse_keys(architecture: str, cache_type: str) -> None:
    if cache_type in _COARSE_KEYS[architecture]:
        log.warning(
            "--cache-type-k %s changes what %s models write; %s keys do not",
            cache_type,
            architecture,
            "q8_0" if architecture != "qwen2" else "f16",
        )


def _scratch_bytes(config: ModelConfig, capabilities: EngineCapabilities) -> int:
    """Activations of the widest step (about ten rows of width and heads alive) and its logits."""
    row = 10 * max(config.width, config.heads * config.head_dim)
    logit_rows = capabilities.max_slots * (1 + capabilities.max_draft)
    return 4 * (capabilities.max_step_rows * row + 4 * logit_rows * capabilities.vocab_size)
