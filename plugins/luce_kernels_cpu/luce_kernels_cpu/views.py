"""Tensors as the records of the library: rows, caches, quantised activations."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from luce_kernels_cpu.structs import Cache, CacheType, Domain, Quantized, Rows

QUANT_BLOCK = 32  # values that share an activation scale, for most types of weights
ALIGN = 64
KV_PART = 256  # LK_KV_PART
MOST_PARTIALS_BYTES = 16 << 20
NO_ROWS = Rows()
NO_QUANTIZED = Quantized()


def contiguous_inside(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether each row lies in one piece; rows may lie apart."""
    expected = 1
    for size, stride in zip(reversed(shape[1:]), reversed(strides[1:]), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def representable(tensor: Tensor) -> Tensor:
    """The tensor, or a copy that lk_rows can describe."""
    if tensor.dtype is torch.float32 and contiguous_inside(tuple(tensor.shape), tensor.stride()):
        return tensor
    return tensor.to(torch.float32).contiguous()


def tensor_rows(tensor: Tensor, domain: Domain = Domain.FIXED) -> Rows:
    """An lk_rows of a `representable` tensor [R, ...]."""
    shape = tensor.shape
    return Rows(tensor.data_ptr(), tensor.stride(0), prod(shape[1:]), domain, shape[0])


def cache_view(cache: Tensor, cache_type: str, facts: Mapping[str, Any]) -> Cache:
    """An lk_cache of a cache tensor [blocks + 1, block_size, kv_heads, row]."""
    assert cache.is_contiguous(), cache.stride()
    return Cache(
        cache.data_ptr(),
        CacheType[cache_type.upper()],
        facts["kv_heads"],
        facts["head_dim"],
        facts["block_size"],
        cache.shape[0] * cache.shape[1],
    )


def aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def quantized_bytes(rows: int, k: int) -> int:
    """Memory of an lk_quantized of so many rows."""
    return aligned(rows * k) + 2 * aligned(rows * (k // QUANT_BLOCK) * 4)


def quantized_at(start: int, rows: int, k: int, block: int) -> Quantized:
    """An lk_quantized in `quantized_bytes` of memory at an aligned address. `block` values share a
    scale: 32 or 256."""
    blocks = k // QUANT_BLOCK
    scales = start + aligned(rows * k)
    return Quantized(start, scales, scales + aligned(rows * blocks * 4), k, blocks, k, block)


def partials_bytes(*, rows: int, keys: int, heads: int, dim: int) -> int:
    """Memory with which workers share one sequence in attention, within a limit; without it, or
    with less, a sequence is one worker's."""
    floats = rows * -(-keys // KV_PART) * heads * (dim + 18)
    return aligned(min(4 * floats, MOST_PARTIALS_BYTES))
