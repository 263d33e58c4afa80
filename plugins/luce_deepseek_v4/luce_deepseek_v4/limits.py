"""What an engine takes in one step, and the memory that a step asks for."""

from __future__ import annotations

from luce_core.engine import EngineCapabilities, PrefillLimits
from luce_core.errors import ConfigError
from luce_deepseek_v4.config import ModelConfig
from luce_deepseek_v4.ops.entry_cache import BLOCK_TOKENS
from luce_deepseek_v4.settings import DeepSeekSettings


def engine_capabilities(
    config: ModelConfig,
    settings: DeepSeekSettings,
    *,
    slots: int,
    max_context: int | None,
    vocab_size: int,
) -> EngineCapabilities:
    """ConfigError if the settings ask for more context than the model has, or for steps that do
    not hold what they must."""
    if max_context is not None and max_context > config.context:
        raise ConfigError(f"--max-ctx {max_context} is more than the model's {config.context}")
    step_rows, prompt_rows = settings.ds4_step_rows, settings.ds4_prompt_rows
    if step_rows < slots:
        raise ConfigError(
            f"--ds4-step-rows {step_rows} does not hold a row of each of --max-concurrency {slots}"
        )
    if prompt_rows > step_rows:
        raise ConfigError(f"--ds4-prompt-rows {prompt_rows} is more than a step's {step_rows} rows")
    shared = PrefillLimits(
        max_prompts=slots, rows_per_slot=prompt_rows, rows_total=step_rows, quantum=prompt_rows
    )
    lone = PrefillLimits(
        max_prompts=1, rows_per_slot=step_rows, rows_total=step_rows, quantum=step_rows
    )
    return EngineCapabilities(
        max_slots=slots,
        max_context=max_context or config.context,
        block_size=BLOCK_TOKENS,
        vocab_size=vocab_size,
        max_step_rows=step_rows,
        with_decode=shared,
        idle=shared,
        lone=lone,
    )


def ring_entries(config: ModelConfig, capabilities: EngineCapabilities) -> int:
    """Entries of a slot's ring: all rows of a step are written before the first one attends, which
    still needs the window before it."""
    return config.attention.window - 1 + capabilities.lone.rows_per_slot


def scratch_bytes(config: ModelConfig, capabilities: EngineCapabilities) -> int:
    """Activations of the widest step (streams before and after, and of what one part of a layer
    needs at once the larger), and its logits with the sampler's copies."""
    attention, indexer, moe = config.attention, config.indexer, config.moe
    heads = attention.heads * attention.head_dim
    attending = 4 * heads + 6 * attention.head_dim + indexer.heads * indexer.head_dim
    attending += indexer.top_k + 2 * attention.out_groups * attention.out_rank
    feeding = moe.top_k * (3 * moe.inner + config.width) + 3 * moe.inner + moe.experts
    row = (2 * config.hyper.streams + 4) * config.width + attending + feeding
    logits = 4 * capabilities.max_slots * capabilities.vocab_size
    return 5 * capabilities.max_step_rows * row + 4 * logits
