"""Weights on the device, in the blocks of the file. One that two ops share (a tied head) is copied
once."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from luce_core.weights.quant_types import QuantTensor
from luce_kernels_rocm.quant_table import QUANTS


class DeviceBlocks:
    """Copies by the blocks that they were made from, as long as somebody uses them."""

    def __init__(self) -> None:
        self._copies: Any = WeakIdKeyDictionary()

    def of(self, blocks: Tensor, device: torch.device) -> Tensor:
        known = self._copies.get(blocks)
        copy = known() if known is not None else None
        if copy is None or copy.device != device:
            # On a CPU too: the blocks of a file are mapped, and their pages are given back.
            copy = blocks.to(device, copy=True)
            self._copies[blocks] = weakref.ref(copy)
        return copy


@cache
def _blocks() -> DeviceBlocks:
    return DeviceBlocks()


def blocks_on(weight: QuantTensor | Tensor, device: torch.device) -> Tensor:
    """The `prepare` of kernels that read quant blocks: uint8 [N, row_bytes] on the device."""
    if isinstance(weight, Tensor):
        return weight.to(device, torch.float32).contiguous().view(torch.uint8)
    return _blocks().of(weight.blocks, device)


def accepts_weight(facts: Mapping[str, Any]) -> bool:
    """Whether there is a kernel for the weight's quant type."""
    return facts["qtype"] in QUANTS


def accepts_codebooks(facts: Mapping[str, Any]) -> bool:
    """Whether there are kernels for both codebooks' quant types."""
    return facts["predecessor_type"] in QUANTS and facts["successor_type"] in QUANTS
