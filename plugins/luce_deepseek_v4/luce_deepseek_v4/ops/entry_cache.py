"""How compressed entries lie in the paged cache.

A block of 128 tokens holds 128 / ratio entries of a layer; entry w stands for the tokens
w * ratio .. w * ratio + ratio - 1 (and, where windows overlap, for those of the window before). The
cache of a layer is [blocks + 1, entries of a block, row], the last block being the null block. A
row is `head_dim` values for f32, f16 and bf16, and GGUF blocks (uint8) for q8_0 and q4_0. Entry w
of a slot lies in block `block_tables[segment][w // entries]` at w % entries; the one that the row
with `kv_rows[t]` completes lies at physical entry kv_rows[t] // ratio.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from luce_core.ops.kv_layout import decode_rows, encode_rows, row_bytes, storage_dtype

BLOCK_TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryLayout:
    """Everything that fixes a cache of entries. `ratio` must divide the block's tokens."""

    ratio: int
    head_dim: int
    cache_type: str

    def __post_init__(self) -> None:
        assert BLOCK_TOKENS % self.ratio == 0, self.ratio
        row_bytes(self.cache_type, self.head_dim)  # refuses what cannot be laid out

    @property
    def entries_per_block(self) -> int:
        return BLOCK_TOKENS // self.ratio

    @property
    def bytes_per_block(self) -> int:
        return self.entries_per_block * row_bytes(self.cache_type, self.head_dim)

    def allocate(self, total_blocks: int, device: torch.device | str = "cpu") -> Tensor:
        """A zeroed cache of total_blocks blocks and the null block behind them."""
        dtype = storage_dtype(self.cache_type)
        row = row_bytes(self.cache_type, self.head_dim) // dtype.itemsize
        shape = (total_blocks + 1, self.entries_per_block, row)
        return torch.zeros(shape, dtype=dtype, device=device)


def write_entry(cache: Tensor, physical: int, values: Tensor, cache_type: str) -> None:
    """Store values [D] at a physical entry."""
    cache.flatten(0, 1)[physical] = encode_rows(values, cache_type)


def read_entries(cache: Tensor, blocks: Tensor, count: int, cache_type: str) -> Tensor:
    """Float32 values [count, D] of a slot's first entries, given its blocks in order."""
    needed = -(-count // cache.shape[1])
    stored = cache.index_select(0, blocks[:needed]).flatten(0, 1)[:count]
    return decode_rows(stored, cache_type)
