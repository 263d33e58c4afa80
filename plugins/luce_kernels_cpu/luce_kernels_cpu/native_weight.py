"""Weights repacked for the kernels. A weight that two ops share (a tied head) is packed once."""

from __future__ import annotations

import weakref
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from luce_core.errors import ConfigError
from luce_core.weights.quant_types import QUANT_TYPES, QuantTensor
from luce_kernels_cpu.library import last_error
from luce_kernels_cpu.provider import Provider, provider
from luce_kernels_cpu.weight_types import book_of


class NativeWeight:
    """An lk_weight [n, k]; freed with this object."""

    def __init__(self, owner: Provider, weight: QuantTensor) -> None:
        n, k = weight.shape
        library = owner.library
        book = book_of(weight.qtype.name)
        if book is not None and library.lk_set_code_book(
            weight.qtype.ggml_id, book.data_ptr(), book.numel()
        ):
            raise ConfigError(f"{weight.name}: {last_error(library)}")
        blocks = weight.blocks.contiguous()
        handle = library.lk_weight_pack(
            owner.pool, weight.qtype.ggml_id, n, k, blocks.data_ptr(), blocks.numel()
        )
        if handle is None:
            raise ConfigError(f"{weight.name}: {last_error(library)}")
        self.handle: int = handle
        self.n, self.k = n, k
        # Values that share a scale in the int8 rows that it multiplies; 0: it reads float32.
        self.int8_block: int = library.lk_weight_int8_block(handle)
        self.kernel: str = library.lk_weight_kernel(handle).decode()
        self.nbytes: int = library.lk_weight_bytes(handle)
        weakref.finalize(self, library.lk_weight_free, handle)

    @property
    def takes_int8(self) -> bool:
        return self.int8_block > 0


class PackedWeights:
    """Packed weights by the blocks that they were made from, as long as somebody uses them."""

    def __init__(self) -> None:
        self._packed: Any = WeakIdKeyDictionary()

    def pack(self, weight: QuantTensor) -> NativeWeight:
        known = self._packed.get(weight.blocks)
        packed = known() if known is not None else None
        if packed is None or (packed.n, packed.k) != weight.shape:
            packed = NativeWeight(provider(), weight)
            self._packed[weight.blocks] = weakref.ref(packed)
        return packed


@cache
def _weights() -> PackedWeights:
    return PackedWeights()


def pack_weight(weight: QuantTensor | Tensor, device: torch.device) -> NativeWeight:
    """The `prepare` of matmul and embedding kernels."""
    if isinstance(weight, Tensor):
        values = weight.to(torch.float32).contiguous()
        weight = QuantTensor(
            "weight", QUANT_TYPES["F32"], tuple(values.shape), values.view(torch.uint8)
        )
    return _weights().pack(weight)
