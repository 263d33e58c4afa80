"""Which tiles are tried for which layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from luce_kernels_rocm.arch import Arch
from luce_kernels_rocm.configs import (
    decode_attention_config,
    narrow_config,
    prefill_attention_config,
    tiled_config,
)
from luce_kernels_rocm.quant_table import QUANTS
from luce_kernels_rocm.tiles import Tile, TileKey

SERVED_CACHE = ("f16", "f16")  # the types of keys and values that tiles are timed with


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tiles that are tried for one key; the first is what is used without a table."""

    key: TileKey
    tiles: tuple[Tile, ...]


def narrow_candidates(arch: Arch, qtype: str, n: int, k: int) -> Candidates:
    usual = narrow_config(arch, qtype, n, k, 1)
    first = Tile(rows=1, columns=usual.columns, depth=usual.groups, warps=usual.warps)
    quant = QUANTS[qtype]
    most = k // (quant.planes * quant.width)
    tried = (
        Tile(rows=1, columns=columns, depth=values // quant.width, warps=warps)
        for values, columns, warps in product(
            (32, 64, 128, 256, 512), (1, 2, 4, 8, 16), (1, 2, 4, 8)
        )
        if values // quant.width <= most and 512 <= values * columns <= 4096
    )
    return _candidates(TileKey("narrow", (qtype, n, k)), first, tried)


def tiled_candidates(arch: Arch, qtype: str, n: int, k: int) -> Candidates:
    usual = tiled_config(arch, qtype, n, k)
    first = Tile(rows=usual.rows, columns=usual.columns, depth=usual.groups, warps=usual.warps)
    quant = QUANTS[qtype]
    most = k // (quant.planes * quant.width)
    tried = (
        Tile(rows=rows, columns=columns, depth=values // quant.width, warps=warps, stages=stages)
        for rows, columns, values, warps, stages in product(
            (32, 64, 128), (32, 64, 128), (32, 64), (4, 8), (1, 2)
        )
        if values // quant.width <= most
    )
    return _candidates(TileKey("tiled", (qtype, n, k)), first, tried)


def attention_candidates(arch: Arch, kernel: str, group: int, head_dim: int) -> Candidates:
    """`kernel` is decode_attention or prefill_attention; `group` a power of two."""
    is_decode = kernel == "decode_attention"
    if is_decode:
        usual = decode_attention_config(arch, group, head_dim)
    else:
        usual = prefill_attention_config(arch, group, head_dim, SERVED_CACHE)
    first = Tile(rows=usual.rows, columns=1, depth=usual.keys, warps=usual.warps)
    tiles_of_rows = (16,) if is_decode else (32, 64, 128)
    tried = (
        Tile(rows=max(1, rows // group), columns=1, depth=keys, warps=warps)
        for rows, keys, warps in product(tiles_of_rows, (16, 32, 64, 128), (2, 4, 8))
    )
    return _candidates(TileKey(kernel, (group, head_dim)), first, tried)


def _candidates(key: TileKey, first: Tile, tried: Iterator[Tile]) -> Candidates:
    return Candidates(key, tuple(dict.fromkeys((first, *tried))))
