"""From values to quant blocks: the ROCmFP types here, all others by `gguf.quants`."""

from __future__ import annotations

import gguf
import torch
from torch import Tensor

from luce_core.errors import ConfigError
from luce_core.weights.quant.rocmfp_encode import ROCMFP_TYPES, encode
from luce_core.weights.quant.table import QuantType, quant_type

QUANTIZABLE = (
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4", "I32",
    *ROCMFP_TYPES,
)  # fmt: skip


def quantize(values: Tensor, qtype: QuantType | str) -> Tensor:
    """Blocks `[..., row_bytes]` uint8 on the CPU of values `[..., K]`; K must be whole blocks.

    Raises ConfigError for a type that cannot be written, naming those that can, and for values that
    a ROCmFP type cannot hold.
    """
    kind = quant_type(qtype)
    if kind.name not in QUANTIZABLE:
        raise ConfigError(
            f"cannot quantize to {kind.name}: known types are {', '.join(QUANTIZABLE)}"
        )
    if values.shape[-1] % kind.block_values:
        raise ConfigError(
            f"cannot quantize rows of {values.shape[-1]} values to {kind.name}: "
            f"its blocks hold {kind.block_values}"
        )
    row_bytes = kind.row_bytes(values.shape[-1])
    host = values.detach().cpu().contiguous()
    if kind.name == "I32":
        return host.int().view(torch.uint8).view(*values.shape[:-1], row_bytes)
    if kind.name in ROCMFP_TYPES:
        blocks = encode(host.float().view(-1, kind.block_values), kind.name)
        return blocks.view(*values.shape[:-1], row_bytes)
    packed = gguf.quants.quantize(host.float().numpy(), gguf.GGMLQuantizationType(kind.ggml_id))
    raw = torch.from_numpy(packed.copy()).view(torch.uint8)
    return raw.view(*values.shape[:-1], row_bytes)
