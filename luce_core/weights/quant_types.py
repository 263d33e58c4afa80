"""What weights are made of: the one import for quant types, tensors and their values."""

from __future__ import annotations

from luce_core.weights.quant.dequantize import DEQUANTIZERS, dequantize
from luce_core.weights.quant.quantize import QUANTIZABLE, quantize
from luce_core.weights.quant.table import QUANT_TYPES, QUANT_TYPES_BY_ID, QuantType, quant_type
from luce_core.weights.quant.tensor import QuantTensor

__all__ = [
    "DEQUANTIZERS",
    "QUANTIZABLE",
    "QUANT_TYPES",
    "QUANT_TYPES_BY_ID",
    "QuantTensor",
    "QuantType",
    "dequantize",
    "quant_type",
    "quantize",
]
