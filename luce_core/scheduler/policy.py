"""The settings that steer admission and planning, resolved against an engine's limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from luce_core.engine import EngineCapabilities, PrefillLimits
from luce_core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerPolicy:
    """What the user may set. Prefill settings can lower an engine's limits, never raise them.

    `prefill_chunk` bounds one prompt's rows beside decoders, `prefill_tokens` all prompts' rows
    beside decoders, `idle_prefill_tokens` both where nobody decodes. `first_burst_steps` 0 keeps
    decode in every step; N allows at most N prefill-only steps before one with decode.
    `long_prefill_tokens` and `long_prefill_chunk` replace `prefill_tokens` and `prefill_chunk`
    while a prompt of at least `long_prefill_threshold` tokens is in prefill. `reserve` "full"
    reserves prompt + max_tokens at admission; "rolling" reserves the prompt and a headroom.

    Going from idle to busy, admission waits for company: until no request is on its way and none
    has come for `coalesce_quiet_ms`, at most `admission_coalesce_ms`.
    """

    prefill_chunk: int = 512
    prefill_tokens: int = 2048
    idle_prefill_tokens: int = 4096
    long_prefill_threshold: int = 768
    long_prefill_tokens: int = 4096
    long_prefill_chunk: int | None = None  # None: as prefill_chunk
    max_concurrent_prefills: int = 8
    first_burst_steps: int = 0
    admission_coalesce_ms: int = 20
    coalesce_quiet_ms: float = 3.0
    reserve: Literal["rolling", "full"] = "rolling"
    max_step_faults: int = 3

    def limits(self, engine: EngineCapabilities) -> PlanLimits:
        """The limits that a step of this engine keeps; ConfigError if its own do not fit."""
        widest = engine.max_slots * (1 + engine.max_draft)
        if engine.max_step_rows < widest:
            raise ConfigError(
                f"the engine takes {engine.max_step_rows} rows a step, but {engine.max_slots} "
                f"slots with {engine.max_draft} drafts need {widest}; lower --max-concurrency"
            )

        def lowered(limits: PrefillLimits, rows_total: int, chunk: int) -> PrefillLimits:
            return replace(
                limits,
                max_prompts=min(limits.max_prompts, self.max_concurrent_prefills),
                rows_per_slot=min(limits.rows_per_slot, chunk),
                rows_total=min(limits.rows_total, rows_total),
            )

        return PlanLimits(
            with_decode=lowered(engine.with_decode, self.prefill_tokens, self.prefill_chunk),
            with_decode_long=lowered(
                engine.with_decode,
                self.long_prefill_tokens,
                self.long_prefill_chunk or self.prefill_chunk,
            ),
            idle=lowered(engine.idle, self.idle_prefill_tokens, self.idle_prefill_tokens),
            lone=lowered(engine.lone, self.idle_prefill_tokens, self.idle_prefill_tokens),
            long_threshold=self.long_prefill_threshold,
            max_step_rows=engine.max_step_rows,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLimits:
    """Prefill limits by situation, and the rows that a step can hold."""

    with_decode: PrefillLimits
    with_decode_long: PrefillLimits
    idle: PrefillLimits
    lone: PrefillLimits
    long_threshold: int
    max_step_rows: int
