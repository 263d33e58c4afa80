"""How much a model's caches must hold."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """KV blocks, slots and drafts of a slot in one step; the null block and slot come on top."""

    blocks: int
    slots: int
    max_draft: int
    device: torch.device


NO_ROOM = Room(blocks=0, slots=0, max_draft=0, device=torch.device("cpu"))
