"""The free KV blocks, by index. No tensors."""

from __future__ import annotations

import heapq
from collections.abc import Iterable


class BlockPool:
    """Blocks 0..total-1 of `block_size` tokens. The lowest free index goes out first.

    Low indices first keep the used part of the cache dense and make runs repeatable.
    """

    def __init__(self, total: int, block_size: int) -> None:
        assert total >= 1, total
        assert block_size >= 1, block_size
        self.total = total
        self.block_size = block_size
        self._free = list(range(total))  # a sorted list is a valid heap

    @property
    def free_count(self) -> int:
        return len(self._free)

    @property
    def free_blocks(self) -> tuple[int, ...]:
        return tuple(self._free)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_size)

    def take(self, count: int) -> list[int] | None:
        """`count` blocks, or None and nothing has changed."""
        if count > len(self._free):
            return None
        return [heapq.heappop(self._free) for _ in range(count)]

    def give(self, blocks: Iterable[int]) -> None:
        """Take blocks back. Whoever gives them must not use them again."""
        for block in blocks:
            heapq.heappush(self._free, block)
