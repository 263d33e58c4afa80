"""From quant blocks to float32, in torch, on the device where the blocks are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from luce_core.errors import ConfigError
from luce_core.weights.quant import float4, iq_quants, k_quants, legacy, plain, rocmfp, ternary
from luce_core.weights.quant.table import QuantType, quant_type

DEQUANTIZERS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "F32": plain.f32,
        "F16": plain.f16,
        "BF16": plain.bf16,
        "F64": plain.f64,
        "I8": plain.i8,
        "I16": plain.i16,
        "I32": plain.i32,
        "I64": plain.i64,
        "Q4_0": legacy.q4_0,
        "Q4_1": legacy.q4_1,
        "Q5_0": legacy.q5_0,
        "Q5_1": legacy.q5_1,
        "Q8_0": legacy.q8_0,
        "Q2_K": k_quants.q2_k,
        "Q3_K": k_quants.q3_k,
        "Q4_K": k_quants.q4_k,
        "Q5_K": k_quants.q5_k,
        "Q6_K": k_quants.q6_k,
        "IQ1_S": iq_quants.iq1_s,
        "IQ1_M": iq_quants.iq1_m,
        "IQ2_XXS": iq_quants.iq2_xxs,
        "IQ2_XS": iq_quants.iq2_xs,
        "IQ2_S": iq_quants.iq2_s,
        "IQ3_XXS": iq_quants.iq3_xxs,
        "IQ3_S": iq_quants.iq3_s,
        "IQ4_NL": float4.iq4_nl,
        "IQ4_XS": float4.iq4_xs,
        "MXFP4": float4.mxfp4,
        "NVFP4": float4.nvfp4,
        "TQ1_0": ternary.tq1_0,
        "TQ2_0": ternary.tq2_0,
        "ROCMFP2": rocmfp.fp2,
        "ROCMFP3": rocmfp.fp3,
        "ROCMFP4": rocmfp.fp4,
        "ROCMFP4_FAST": rocmfp.fp4_fast,
        "ROCMFP6": rocmfp.fp6,
        "ROCMFP8": rocmfp.fp8,
    }
)

# Temporaries are several times the output, so large tensors go through in slices. On a CPU a slice
# stays in the cache, and is the most that torch computes without waking other threads.
_CPU_SLICE_VALUES = 1 << 15
_SLICE_VALUES = 1 << 24


def dequantize(blocks: Tensor, qtype: QuantType | str) -> Tensor:
    """Values `[..., n * block_values]` float32 of blocks `[..., n * block_bytes]` uint8.

    Raises ConfigError for a type that has no float meaning here, naming those that have.
    """
    kind = quant_type(qtype)
    decode = DEQUANTIZERS.get(kind.name)
    if decode is None:
        raise ConfigError(
            f"cannot dequantize {kind.name}: known types are {', '.join(DEQUANTIZERS)}"
        )
    assert blocks.dtype == torch.uint8, blocks.dtype
    assert blocks.shape[-1] % kind.block_bytes == 0, (kind.name, blocks.shape)
    rows = blocks.contiguous().view(-1, kind.block_bytes)
    values_per_row = blocks.shape[-1] // kind.block_bytes * kind.block_values
    out = torch.empty(rows.shape[0], kind.block_values, dtype=torch.float32, device=blocks.device)
    slice_values = _CPU_SLICE_VALUES if blocks.device.type == "cpu" else _SLICE_VALUES
    step = slice_values // kind.block_values
    for start in range(0, rows.shape[0], step):
        out[start : start + step] = decode(rows[start : start + step])
    return out.view(*blocks.shape[:-1], values_per_row)
