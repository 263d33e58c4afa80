"""How keys and values lie in the paged cache, and the arithmetic of its quantised types.

A cache holds one of K and V of one layer: [blocks + 1, block_size, kv_heads, row], where the last
block is the null block. `row` is head_dim values for f32, f16 and bf16, and the bytes of the GGUF
blocks along head_dim for q8_0 and q4_0 (uint8), so that kernels for weights fit caches too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from luce_core.errors import ConfigError
from luce_core.huge_pages import zeros_on_huge_pages
from luce_core.weights.quant_types import QUANT_TYPES, dequantize

_PLAIN = (("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16))
_QUANTISED = ("q8_0", "q4_0")
CACHE_TYPES = (*(name for name, _ in _PLAIN), *_QUANTISED)
_BLOCK = 32


@dataclass(frozen=True, slots=True)
class KvCache:
    """The paged keys and values of one layer."""

    k: Tensor  # [blocks + 1, block_size, kv_heads, row of the K type]
    v: Tensor  # [blocks + 1, block_size, kv_heads, row of the V type]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """Everything that fixes the layout of a layer's cache; refuses what cannot be laid out."""

    kv_heads: int
    head_dim: int
    block_size: int
    k_type: str = "f16"
    v_type: str = "f16"

    def __post_init__(self) -> None:
        for cache_type in (self.k_type, self.v_type):
            row_bytes(cache_type, self.head_dim)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's key and value in one layer."""
        return self.kv_heads * (
            row_bytes(self.k_type, self.head_dim) + row_bytes(self.v_type, self.head_dim)
        )

    def allocate(self, total_blocks: int, device: torch.device | str = "cpu") -> KvCache:
        """A zeroed cache of total_blocks blocks and the null block behind them."""
        shape = (total_blocks + 1, self.block_size, self.kv_heads)
        return KvCache(
            *(
                _zeros(
                    (*shape, *_row_shape(cache_type, self.head_dim)),
                    storage_dtype(cache_type),
                    torch.device(device),
                )
                for cache_type in (self.k_type, self.v_type)
            )
        )

    @property
    def facts(self) -> dict[str, Any]:
        """What `bind("kv_write", ...)` and `bind("paged_attention", ...)` ask about the cache."""
        return {
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "block_size": self.block_size,
            "k_type": self.k_type,
            "v_type": self.v_type,
        }


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return zeros_on_huge_pages(shape, dtype)
    return torch.zeros(shape, dtype=dtype, device=device)


def storage_dtype(cache_type: str) -> torch.dtype:
    """The dtype of a cache tensor; ConfigError for an unknown type."""
    if cache_type in _QUANTISED:
        return torch.uint8
    for name, dtype in _PLAIN:
        if name == cache_type:
            return dtype
    raise ConfigError(f"unknown cache type {cache_type!r}: choose from {', '.join(CACHE_TYPES)}")


def row_bytes(cache_type: str, head_dim: int) -> int:
    """Bytes of one head's row; ConfigError if head_dim is not whole quant blocks."""
    return _row_shape(cache_type, head_dim)[0] * storage_dtype(cache_type).itemsize


def _row_shape(cache_type: str, head_dim: int) -> tuple[int]:
    if storage_dtype(cache_type) is not torch.uint8:
        return (head_dim,)
    if head_dim % _BLOCK:
        raise ConfigError(
            f"cache type {cache_type} needs a head size that is a multiple of {_BLOCK}, "
            f"got {head_dim}"
        )
    return (QUANT_TYPES[cache_type.upper()].row_bytes(head_dim),)


def encode_rows(values: Tensor, cache_type: str) -> Tensor:
    """Values [..., D] as the cache stores them: [..., row]."""
    if cache_type == "q8_0":
        return _encode_q8_0(values.float())
    if cache_type == "q4_0":
        return _encode_q4_0(values.float())
    return values.to(storage_dtype(cache_type))


def decode_rows(stored: Tensor, cache_type: str) -> Tensor:
    """Float32 values [..., D] of stored rows [..., row]."""
    if cache_type in _QUANTISED:
        return dequantize(stored, cache_type.upper())
    return stored.float()


def _encode_q8_0(values: Tensor) -> Tensor:
    """d[2] q[32] signed: d = max|x| / 127, q = x / d rounded, halves away from zero (ggml)."""
    blocks = values.reshape(*values.shape[:-1], -1, _BLOCK)
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    scaled = blocks * _inverse(scale)
    size = scaled.abs()
    floor = size.floor()
    rounded = (floor + (2 * (size - floor)).floor()) * scaled.sign()
    quants = rounded.to(torch.int8).view(torch.uint8)
    return torch.cat((_half_bytes(scale), quants), -1).flatten(-2)


def _encode_q4_0(values: Tensor) -> Tensor:
    """d[2] q[16]: d = (x of largest |x|) / -8, q = trunc(x / d + 8.5) in 0..15; byte j holds
    value j in its low and value j + 16 in its high half (ggml)."""
    blocks = values.reshape(*values.shape[:-1], -1, _BLOCK)
    extreme = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    scale = extreme / -8
    quants = (blocks * _inverse(scale) + 8.5).trunc().clamp(0, 15).to(torch.uint8)
    low, high = quants.chunk(2, -1)
    return torch.cat((_half_bytes(scale), low | (high << 4)), -1).flatten(-2)


def _inverse(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 0.0, 1 / scale)


def _half_bytes(scale: Tensor) -> Tensor:
    return scale.to(torch.float16).view(torch.uint8)
