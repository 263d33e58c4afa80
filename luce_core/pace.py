"""How many prompt rows a server lets in: what is set, else what measuring the engine says."""

from __future__ import annotations

from luce_core.load import LoadedModel
from luce_core.runtime.step_profile import measure_pacing
from luce_core.scheduler.pacing import Pacing
from luce_core.scheduler.policy import SchedulerPolicy
from luce_core.settings import Settings


def build_policy(settings: Settings, pacing: Pacing | None = None) -> SchedulerPolicy:
    """The scheduler's policy.

    `pacing` bounds prompt rows beside decoders, unless --prefill-chunk or --prefill-tokens is set.
    Without both, the limits are those that SchedulerPolicy names.
    """
    plain = SchedulerPolicy()
    chunk, tokens = settings.prefill_chunk, settings.prefill_tokens
    if chunk is None and tokens is None and pacing is not None:
        chunk, tokens, long_tokens = min(pacing.rows, plain.prefill_chunk), pacing.rows, pacing.rows
        # --long-prefill-tokens is meant to give more than that, so the chunk must not forbid it.
        long_chunk = chunk if settings.long_prefill_tokens is None else plain.prefill_chunk
    else:
        chunk = long_chunk = chunk or plain.prefill_chunk
        tokens = tokens or plain.prefill_tokens
        long_tokens = 2 * tokens
    return SchedulerPolicy(
        prefill_chunk=chunk,
        prefill_tokens=tokens,
        idle_prefill_tokens=settings.idle_prefill_tokens,
        long_prefill_threshold=settings.long_prefill_threshold,
        long_prefill_tokens=settings.long_prefill_tokens or long_tokens,
        long_prefill_chunk=long_chunk,
        max_concurrent_prefills=settings.max_concurrent_prefills,
        first_burst_steps=settings.prefill_first_burst_steps,
        admission_coalesce_ms=settings.admission_coalesce_ms,
        reserve=settings.reserve,
        max_step_faults=settings.max_step_faults,
    )


def pace(settings: Settings, loaded: LoadedModel) -> Pacing | None:
    """Measure the loaded engine, before a runtime has it; None if there is nothing to choose."""
    if settings.prefill_chunk is not None or settings.prefill_tokens is not None:
        return None
    engine = loaded.engine
    bounds = build_policy(settings).limits(engine.capabilities).with_decode
    return measure_pacing(engine, pool_blocks=loaded.pool.blocks, bounds=bounds)


def describe_pacing(settings: Settings, loaded: LoadedModel, pacing: Pacing | None) -> str:
    """Prompt rows beside decoders, and why so many; one line."""
    if pacing is not None:
        return pacing.explain()
    limits = build_policy(settings).limits(loaded.engine.capabilities).with_decode
    return f"{limits.rows_total}, {limits.rows_per_slot} of one prompt, not measured"
