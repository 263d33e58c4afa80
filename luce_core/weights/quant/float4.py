"""Four-bit codes into a table of 16 values: MXFP4, NVFP4 and the non-linear IQ4 types."""

from __future__ import annotations

import torch
from torch import Tensor

from luce_core.weights.quant.bits import half, nibbles, shifted, u16
from luce_core.weights.quant.grids import looked_up

# The e2m1 numbers of the OCP microscaling formats, doubled; block scales are halved to match.
E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def mxfp4(blocks: Tensor) -> Tensor:
    """e[1] qs[16]; scale 2^(e - 128), as float32 bits: subnormal for e below 2."""
    e = blocks[:, 0:1].int()
    bits = torch.where(e < 2, 0x00200000 << e.clamp(max=1), (e - 1).clamp(min=0) << 23)
    return bits.view(torch.float32) * _from_values(E2M1_DOUBLED, nibbles(blocks[:, 1:17]))


def nvfp4(blocks: Tensor) -> Tensor:
    """scales[4] unsigned e4m3, qs[32]; 4 groups of 16 values; scale 0x7f (no number) means 0."""
    code = blocks[:, 0:4]
    exponent = ((code >> 3) & 15).float()
    mantissa = (code & 7).float()
    normal = (1 + mantissa / 8) * torch.exp2(exponent - 7)
    scale = torch.where(exponent == 0, mantissa * 2**-9, normal) * 0.5
    scale = torch.where(code == 0x7F, 0.0, scale)
    q = _from_values(E2M1_DOUBLED, nibbles(blocks[:, 4:36].view(-1, 4, 8)))
    return (scale[..., None] * q).flatten(1)


def iq4_nl(blocks: Tensor) -> Tensor:
    """d[2] qs[16]; 32 values d v[q]."""
    return half(blocks, 0) * _from_values(IQ4_VALUES, nibbles(blocks[:, 2:18]))


def iq4_xs(blocks: Tensor) -> Tensor:
    """d[2] scales_h[2] scales_l[4] qs[128]; 8 groups of 32; value = d (s - 32) v[q]."""
    low = shifted(blocks[:, 4:8], range(0, 8, 4), 15, dim=2).flatten(1)
    high = shifted(u16(blocks, 2, 1), range(0, 16, 2), 3, dim=2).flatten(1)
    step = half(blocks, 0) * ((low | (high << 4)).float() - 32)
    q = _from_values(IQ4_VALUES, nibbles(blocks[:, 8:136].view(-1, 8, 16)))
    return (step[..., None] * q).flatten(1)


def _from_values(values: tuple[int, ...], codes: Tensor) -> Tensor:
    table = torch.tensor(values, dtype=torch.float32, device=codes.device)
    return looked_up(table, codes)
