"""The code books of the IQ1, IQ2 and IQ3 types, as the `gguf` package ships them."""

from __future__ import annotations

from functools import cache

import gguf
import torch
from torch import Tensor


def code_book(name: str, codes: Tensor) -> Tensor:
    """Entries of a type's code book, float32: `[..., 8]` for codes `[...]` (`[..., 4]` for IQ3)."""
    return looked_up(_code_book(name).to(codes.device), codes)


def even_signs(codes: Tensor) -> Tensor:
    """Seven sign bits to eight factors `[..., 8]` of 1 or -1; the number of -1 is always even."""
    return looked_up(_even_signs().to(codes.device), codes)


def looked_up(table: Tensor, codes: Tensor) -> Tensor:
    """`table[codes]`, by way of `index_select`, which is several times faster on a CPU."""
    rows = torch.index_select(table, 0, codes.flatten().int())
    return rows.view(*codes.shape, *table.shape[1:])


@cache
def _code_book(name: str) -> Tensor:
    codec = getattr(gguf.quants, name)
    codec.init_grid()
    return torch.from_numpy(codec.grid.copy()).flatten(0, 2)


@cache
def _even_signs() -> Tensor:
    codes = torch.arange(128)
    bits = torch.stack([(codes >> bit) & 1 for bit in range(7)], dim=-1)
    parity = bits.sum(-1, keepdim=True) & 1
    return 1 - 2 * torch.cat([bits, parity], dim=-1).float()
