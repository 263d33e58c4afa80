"""How many KV blocks fit, and the sum that says why. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from luce_core.engine import EngineCapabilities, MemoryNeed
from luce_core.errors import ConfigError

CPU_SHARE = 0.8
RESERVE_BYTES = 256 << 20
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The chosen pool and the terms of its sum, in bytes, in the order of the formula."""

    blocks: int
    block_size: int
    terms: tuple[tuple[str, int], ...]
    note: str

    @property
    def tokens(self) -> int:
        return self.blocks * self.block_size

    def explain(self) -> str:
        """The sum as lines of text, for the start screen and for errors."""
        lines = [f"{name:<28}{value / _GIB:>10.2f} GiB" for name, value in self.terms]
        return "\n".join([*lines, f"{self.tokens} tokens in {self.blocks} blocks: {self.note}"])


def size_pool(
    capabilities: EngineCapabilities,
    need: MemoryNeed,
    *,
    free_bytes: int,
    wanted_tokens: int = 0,
    reserve_bytes: int = RESERVE_BYTES,
) -> PoolSize:
    """Blocks for the KV pool.

    `wanted_tokens` > 0 is an explicit size, rounded up to whole blocks. 0 derives the size:
    min(slots x max_context, (free - weights to load - per-slot state - draft - scratch - reserve) /
    bytes per token), rounded down. ConfigError with the sum if it cannot hold one max_context.
    """
    block = capabilities.block_size
    slot_state = (capabilities.max_slots + 1) * need.bytes_per_slot
    terms = [
        ("free memory", free_bytes),
        ("- weights still to load", need.weights_to_load),
        (f"- state of {capabilities.max_slots} + 1 slots", slot_state),
        ("- draft model", need.draft),
        ("- scratch of a step", need.scratch),
        ("- reserve", reserve_bytes),
    ]
    left = free_bytes - sum(value for _, value in terms[1:])
    null_block = block * need.bytes_per_token
    fitting_tokens = max(0, left - null_block) // max(1, need.bytes_per_token)
    if wanted_tokens:
        blocks = -(-wanted_tokens // block)
        note = f"as asked for; memory would hold {fitting_tokens}"
    else:
        most_tokens = capabilities.max_slots * -(-capabilities.max_context // block) * block
        blocks = min(most_tokens, fitting_tokens) // block
        note = (
            "every slot can hold a whole context"
            if most_tokens <= fitting_tokens
            else "what memory holds"
        )
    terms.append((f"= {blocks} blocks + 1 null", (blocks + 1) * block * need.bytes_per_token))
    size = PoolSize(blocks, block, tuple(terms), note)
    if not wanted_tokens and size.tokens < capabilities.max_context:
        raise ConfigError(
            f"the KV pool cannot hold one context of {capabilities.max_context} tokens; "
            f"lower --max-ctx or --max-concurrency, or choose a smaller --cache-type-k/-v\n"
            f"{size.explain()}"
        )
    return size
