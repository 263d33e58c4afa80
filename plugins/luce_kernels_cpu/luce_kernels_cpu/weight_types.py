"""The GGUF types that the library packs, and how its matmul reads activations for each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from luce_core.weights.quant.grids import code_book
from luce_kernels_cpu.views import QUANT_BLOCK

# Their matmul multiplies int8 activations; that of BF16 bfloat16, of the others float32.
INT8_TYPES = frozenset(
    (
        *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
        *("IQ4_NL", "IQ4_XS", "MXFP4"),
        *("ROCMFP2", "ROCMFP3", "ROCMFP4", "ROCMFP4_FAST", "ROCMFP6", "ROCMFP8"),
    )
)
FLOAT_TYPES = frozenset(("F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"))
# Types whose blocks are codes into a book, and how many entries it has.
BOOK_ENTRIES: Mapping[str, int] = MappingProxyType(
    {
        "IQ2_XXS": 256,
        "IQ2_XS": 512,
        "IQ2_S": 1024,
        "IQ3_XXS": 256,
        "IQ3_S": 512,
        "IQ1_S": 2048,
        "IQ1_M": 2048,
    }
)
WEIGHT_TYPES = INT8_TYPES | FLOAT_TYPES | {"NVFP4", "TQ1_0", "TQ2_0", *BOOK_ENTRIES}


def accepts_weight(facts: Mapping[str, Any]) -> bool:
    return facts["qtype"] in WEIGHT_TYPES


def as_matmul_reads(facts: Mapping[str, Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The activations x [R, K] as `lk_matmul` multiplies them with a weight of this type."""
    return (rounded_for(facts["qtype"], args[0]),)


def rounded_for(qtype: str, x: Tensor) -> Tensor:
    """Activations as products with weights of this type read them."""
    if qtype in INT8_TYPES:
        return int8_rounded(x)
    return x.to(torch.bfloat16).to(x.dtype) if qtype == "BF16" else x


def int8_rounded(x: Tensor) -> Tensor:
    """x rounded as `lk_quantize` does: to d * q per 32 values, d = max|x| / 127."""
    blocks = x.float().reshape(*x.shape[:-1], -1, QUANT_BLOCK)
    largest = blocks.abs().amax(-1, keepdim=True)
    inverse = torch.where(largest > 0, 127 / largest, 0.0)
    return ((blocks * inverse).round() * (largest / 127)).reshape(x.shape)


def book_of(qtype: str) -> Tensor | None:
    """The code book that a type needs, int8; None for a type without one."""
    entries = BOOK_ENTRIES.get(qtype)
    if entries is None:
        return None
    return code_book(qtype, torch.arange(entries)).to(torch.int8).contiguous()
