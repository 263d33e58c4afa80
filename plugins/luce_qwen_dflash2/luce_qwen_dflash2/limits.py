"""What an engine takes in one step, and the memory that a step asks for."""

from __future__ import annotations

from luce_core.engine import EngineCapabilities, PrefillLimits
from luce_core.errors import ConfigError
from luce_qwen_dflash2.config import ModelConfig
from luce_qwen_dflash2.model import BLOCK_SIZE

_WITH_DECODE = PrefillLimits(max_prompts=8, rows_per_slot=512, rows_total=2048, quantum=512)
_IDLE = PrefillLimits(max_prompts=8, rows_per_slot=2048, rows_total=4096, quantum=512)
# A draft reads the residual streams of all rows, several layers side by side: 100 KiB a row at 27B.
# Steps of 1024 prompt rows read the weights often enough for it not to count.
_DRAFTING = PrefillLimits(max_prompts=8, rows_per_slot=512, rows_total=1024, quantum=512)
_DRAFTING_IDLE = PrefillLimits(max_prompts=8, rows_per_slot=1024, rows_total=1024, quantum=512)


def engine_capabilities(
    config: ModelConfig,
    *,
    slots: int,
    max_context: int | None,
    vocab_size: int,
    max_draft: int,
    has_features: bool,
) -> EngineCapabilities:
    """ConfigError if the model's context is shorter than what the settings ask for."""
    if max_context is not None and max_context > config.context:
        raise ConfigError(f"--max-ctx {max_context} is more than the model's {config.context}")
    with_decode, idle = (_DRAFTING, _DRAFTING_IDLE) if has_features else (_WITH_DECODE, _IDLE)
    return EngineCapabilities(
        max_slots=slots,
        max_context=max_context or config.context,
        block_size=BLOCK_SIZE,
        vocab_size=vocab_size,
        max_step_rows=idle.rows_total + slots * (1 + max_draft),
        max_draft=max_draft,
        with_decode=with_decode,
        idle=idle,
        lone=idle,
    )


def scratch_bytes(config: ModelConfig, capabilities: EngineCapabilities) -> int:
    """Activations of the widest step, and its logits with the sampler's copies.

    A recorded pass reuses its buffers whole: a mixer's do not lie where the larger ones of a
    feed-forward layer do, so that both count, and of what is reused up to a fifth lies idle.
    """
    delta, moe = config.delta, config.moe
    feed = 3 * config.inner
    if moe is not None:
        feed = 3 * moe.shared_inner + moe.experts + moe.top_k * (3 * moe.inner + config.width)
    mixer = max(2 * delta.channels + 2 * delta.value_width, 5 * config.heads * config.head_dim)
    values = capabilities.max_step_rows * (3 * config.width + feed + mixer)
    logit_rows = capabilities.max_slots * (1 + capabilities.max_draft)
    return 5 * values + 4 * 4 * logit_rows * capabilities.vocab_size
