"""SeqEngine of DeepSeek V4: a plan is packed, run through the model, and sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from luce_core.batch.build import BatchBuffers, pack
from luce_core.batch.packed import PackedBatch
from luce_core.engine import EngineCapabilities, LoadContext, MemoryNeed, hookimpl
from luce_core.errors import ConfigError
from luce_core.kv.slot_table import Slot
from luce_core.plan import SlotOutput, StepPlan, StepResult
from luce_core.request import Request
from luce_core.sampling.sampler import Sampler
from luce_deepseek_v4.config import RATIOS, ModelConfig, read_config
from luce_deepseek_v4.expert_host import ExpertHost, open_experts
from luce_deepseek_v4.limits import engine_capabilities, ring_entries, scratch_bytes
from luce_deepseek_v4.model import Model
from luce_deepseek_v4.room import NO_ROOM, CacheTypes, Room
from luce_deepseek_v4.settings import DeepSeekSettings


class Lowered(NamedTuple):
    """A packed plan with what sampling needs of it, on the host."""

    batch: PackedBatch
    slot_ids: tuple[int, ...]
    cu_logits: list[int]


class DeepSeekEngine:
    """One model on one device, some of its experts on another one if the settings ask for that.

    It does not draft: a slot has one row of logits in a step.
    """

    def __init__(
        self,
        model: Model,
        config: ModelConfig,
        types: CacheTypes,
        context: LoadContext,
        experts: ExpertHost,
    ) -> None:
        limits = context.limits
        self._model = model
        self._experts = experts
        self._device = torch.device(context.device.torch_name)
        self._ops = context.ops
        self._slots: dict[int, Slot] = {}
        self._capabilities = engine_capabilities(
            config,
            context.settings or DeepSeekSettings(),
            slots=limits.max_slots,
            max_context=limits.max_context,
            vocab_size=model.vocab_size,
        )
        self._ring = ring_entries(config, self._capabilities)
        self._memory_need = MemoryNeed(
            bytes_per_token=model.bytes_per_token,
            bytes_per_slot=model.bytes_per_slot(self._ring),
            scratch=scratch_bytes(config, self._capabilities),
        )
        self._facts = {
            **_facts(config, types, self._capabilities, self._ring),
            **experts.facts,
        }
        self._sampler: Sampler = context.sampler(model.vocab_size)
        self._buffers: BatchBuffers | None = None
        self._run: Callable[[PackedBatch], tuple[Tensor, ...]] = model.forward

    @classmethod
    def load(cls, context: LoadContext) -> DeepSeekEngine:
        """Read the config, bind every op, prepare every weight."""
        types = cache_types(context.limits.cache_type_k, context.limits.cache_type_v)
        config = read_config(context.gguf)
        experts = open_experts(context, config)
        model = Model(context, config, types, take_experts=experts.take)
        return cls(model, config, types, context, experts)

    @property
    def capabilities(self) -> EngineCapabilities:
        return self._capabilities

    @property
    def memory_need(self) -> MemoryNeed:
        return self._memory_need

    @property
    def facts(self) -> Mapping[str, object]:
        """For `/props`: layers by kind, types of what is cached, rows of a step, and what goes on
        between two devices."""
        return self._facts

    @property
    def held_slots(self) -> list[int]:
        """Slots admitted and not retired."""
        return sorted(self._slots)

    def allocate(self, total_blocks: int) -> None:
        capabilities = self._capabilities
        self._model.allocate(
            Room(
                blocks=total_blocks,
                slots=capabilities.max_slots,
                ring=self._ring,
                device=self._device,
            )
        )
        self._buffers = BatchBuffers(
            max_rows=capabilities.max_step_rows,
            max_slots=capabilities.max_slots,
            max_blocks=-(-capabilities.max_context // capabilities.block_size),
            null_block=total_blocks,
            null_slot=capabilities.max_slots,
            device=self._device,
        )
        self._run = self._ops.program(
            self._experts.forward_of(self._model.forward),
            max_rows=capabilities.max_step_rows,
            max_logits=capabilities.max_slots,
            max_segments=capabilities.max_slots,
            max_blocks=self._buffers.max_blocks,
        ).run

    def admit(self, slot: Slot, request: Request) -> None:
        self._model.clear(slot.id)
        self._sampler.admit(slot.id, request)
        self._slots[slot.id] = slot

    @hookimpl
    def lower_plan(self, plan: StepPlan) -> Lowered:
        assert self._buffers is not None
        self._ops.expect_step()
        read = self._sampler.reads_logits(plan.slot_ids)
        batch = pack(plan, self._slots, self._buffers, logits_of=read)
        cu_logits = [0]
        for piece in plan.prefill:
            cu_logits.append(cu_logits[-1] + piece.is_last)
        for _ in plan.decode:
            cu_logits.append(cu_logits[-1] + 1)
        return Lowered(batch, plan.slot_ids, cu_logits)

    @hookimpl
    def execute(self, lowered: Lowered) -> StepResult:
        slot_ids = lowered.slot_ids
        with torch.inference_mode():
            logits, greedy, *further = self._run(lowered.batch)
            self._experts.step_done(further)
            no_drafts: list[list[int]] = [[] for _ in slot_ids]
            accepted = self._sampler.accept(logits, lowered.cu_logits, slot_ids, no_drafts, greedy)
        return StepResult(
            {
                slot_id: SlotOutput(chosen.tokens, chosen.logprobs, 0, chosen.error)
                for slot_id, chosen in zip(slot_ids, accepted, strict=True)
            }
        )

    @hookimpl
    def commit_prefill(self, slot: Slot) -> None:
        """Nothing to seed: this engine has no draft model."""

    @hookimpl
    def retire(self, slot: Slot) -> None:
        self._slots.pop(slot.id, None)
        self._sampler.retire(slot.id)

    def close(self) -> None:
        self._slots.clear()
        self._run = self._model.forward
        self._model.allocate(NO_ROOM)
        self._experts.close()


def _facts(
    config: ModelConfig, types: CacheTypes, capabilities: EngineCapabilities, ring: int
) -> Mapping[str, object]:
    return {
        "layers": config.layers,
        "layers_by_ratio": {str(ratio): config.ratios.count(ratio) for ratio in RATIOS},
        "layers_routed_by_token": config.moe.hash_layers,
        "cached_entries": types.entries,
        "cached_indexer_entries": types.indexer,
        "ring_entries": ring,
        "ring_type": str(types.ring).removeprefix("torch."),
        "step_rows": capabilities.max_step_rows,
        "prompt_rows": capabilities.with_decode.rows_per_slot,
        "prefill": "exact",
    }


def cache_types(k_type: str, v_type: str) -> CacheTypes:
    """ConfigError if they differ: one vector is key and value."""
    if k_type != v_type:
        raise ConfigError(
            f"--cache-type-k {k_type} and --cache-type-v {v_type}: DeepSeek V4 caches one vector "
            "as key and value, so both must be the same"
        )
    return CacheTypes(k_type)
