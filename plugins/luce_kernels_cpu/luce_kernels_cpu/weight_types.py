"""The GGUF types that the library packs, and how its matmul reads activations for each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from luce_core.weights.quant.grids import code_book

# Their matmul multiplies int8 activations, of which so many share a scale; that of BF16
# multiplies bfloat16, that of the others float32.
INT8_BLOCKS: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"), 32),
        **dict.fromkeys(
            ("ROCMFP2", "ROCMFP3", "ROCMFP4", "ROCMFP4_FAST", "ROCMFP6", "ROCMFP8"), 32
        ),
        **dict.fromkeys(("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"), 256),
    }
)
INT8_TYPES = frozenset(INT8_BLOCKS)
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
    if qtype == "BF16":
        return x.to(torch.bfloat16).to(x.dtype)
    return int8_rounded(x, qtype)


def int8_rounded(x: Tensor, qtype: str) -> Tensor:
    """x rounded as `lk_quantize` does for weights of this type: to d * q per 32 or 256 values,
    d = max|x| / 127. As it is, if they multiply floats."""
    block = INT8_BLOCKS.get(qtype)
    if block is None:
        return x
    blocks = x.float().reshape(*x.shape[:-1], -1, block)
    largest = blocks.abs().amax(-1, keepdim=True)
    inverse = torch.where(largest > 0, 127 / largest, 0.0)
    return ((blocks * inverse).round() * (largest / 127)).reshape(x.shape)


def book_of(qtype: str) -> Tensor | None:
    """The code book that a type needs, int8; None for a type without one."""
    entries = BOOK_ENTRIES.get(qtype)
    if entries is None:
        return None
    return code_book(qtype, torch.arange(entries)).to(torch.int8).contiguous()
