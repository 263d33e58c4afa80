"""Which physical blocks hold a slot's positions."""

from __future__ import annotations


class BlockTable:
    """Position p lives in block `blocks[p // block_size]` at offset `p % block_size`."""

    __slots__ = ("block_size", "blocks")

    def __init__(self, block_size: int, blocks: list[int]) -> None:
        self.block_size = block_size
        self.blocks = blocks

    @property
    def capacity(self) -> int:
        """Tokens that fit without another block."""
        return len(self.blocks) * self.block_size

    def locate(self, position: int) -> tuple[int, int]:
        """(physical block, offset in it) of an absolute position."""
        index, offset = divmod(position, self.block_size)
        return self.blocks[index], offset
