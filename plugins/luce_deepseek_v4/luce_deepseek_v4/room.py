"""How much a model's caches must hold, and the types of what they hold."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import torch

# What serves to choose entries is kept finer than the entries themselves.
_INDEXER_TYPES = MappingProxyType({"q4_0": "q8_0"})
_RING_TYPES = MappingProxyType({"f32": torch.float32, "bf16": torch.bfloat16})


@dataclass(frozen=True, slots=True)
class CacheTypes:
    """The types that follow from the one of compressed entries."""

    entries: str

    @property
    def indexer(self) -> str:
        return _INDEXER_TYPES.get(self.entries, self.entries)

    @property
    def ring(self) -> torch.dtype:
        """Of the newest rows, which are few and weigh most: never in blocks."""
        return _RING_TYPES.get(self.entries, torch.float16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Blocks, slots, and entries of a slot's ring; the null block and slot come on top."""

    blocks: int
    slots: int
    ring: int
    device: torch.device


NO_ROOM = Room(blocks=0, slots=0, ring=1, device=torch.device("cpu"))
