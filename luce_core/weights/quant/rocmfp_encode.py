"""From values to ROCmFP blocks: of several scale bytes the one with the least squared error.

For a group of values that share a scale let s be the least scale that holds them all: no value lies
beyond the last level. With s no value is off by more than `gap` / 2 * s, so that the root mean
square of the group's errors is at most that for the scale that is chosen, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import torch
from torch import Tensor

from luce_core.errors import ConfigError
from luce_core.weights.quant.rocmfp import GREATEST_SCALE_BYTE, scale_of_byte

_BLOCK = 32
_SLICE_BLOCKS = 1 << 10  # stays in a core's cache


@dataclass(frozen=True, slots=True)
class RocmFp:
    """A type's levels and layout.

    `group` values share a scale; levels go from -`bottom` to `top`, neighbours are at most `gap`
    apart. `level` rounds values in units of the scale to levels, `pack` makes bytes of levels
    `[n, 32]`. Scale bytes from `above` over that of s down to `below` under it are tried.
    """

    group: int
    bottom: int
    top: int
    gap: int
    above: int
    below: int
    level: Callable[[Tensor], Tensor]
    pack: Callable[[Tensor], Tensor]


def encode(values: Tensor, kind: str) -> Tensor:
    """Blocks `[n, block_bytes]` uint8 of values `[n, 32]` float32 on the CPU.

    Raises ConfigError for values that are no numbers, and for those that no scale holds.
    """
    form = ROCMFP_TYPES[kind]
    _refuse_unrepresentable(values, kind, form)
    starts = range(0, max(1, len(values)), _SLICE_BLOCKS)
    return torch.cat([_encode(values[at : at + _SLICE_BLOCKS], form) for at in starts])


def _refuse_unrepresentable(values: Tensor, kind: str, form: RocmFp) -> None:
    if values.numel() == 0:
        return
    least, most = (float(bound) for bound in torch.aminmax(values))
    if not (abs(least) < float("inf") and abs(most) < float("inf")):
        raise ConfigError(f"cannot quantize to {kind}: a value is infinite or no number")
    greatest = scale_of_byte(GREATEST_SCALE_BYTE)
    for value, limit in ((least, -form.bottom * greatest), (most, form.top * greatest)):
        if abs(value) > abs(limit):
            raise ConfigError(f"cannot quantize {value:g} to {kind}: it ends at {limit:g}")


def _encode(values: Tensor, form: RocmFp) -> Tensor:
    groups = values.view(values.shape[0], _BLOCK // form.group, form.group)
    chosen = _scale_bytes(groups, form)
    # With scale 0 all levels are 0: they are divided by any other number.
    scale = _scales()[chosen.clamp(min=1)][..., None]
    levels = form.level(groups / scale) * (chosen > 0)[..., None]
    packed = form.pack(levels.view(-1, _BLOCK).int())
    return torch.cat([packed, chosen.to(torch.uint8)], dim=1)


def _scale_bytes(groups: Tensor, form: RocmFp) -> Tensor:
    """`[n, groups]`: of the bytes around the least that holds all values the best, the first tried
    among equals."""
    need = torch.maximum(groups.amax(-1) / form.top, groups.amin(-1) / -form.bottom)
    least = torch.bucketize(need, _scales()).clamp(max=GREATEST_SCALE_BYTE)
    best, best_error = least, torch.full_like(need, float("inf"))
    for step in (0, *range(1, form.above + 1), *range(-1, -form.below - 1, -1)):
        byte = (least + step).clamp(1, GREATEST_SCALE_BYTE)
        scale = _scales()[byte][..., None]
        error = (groups - form.level(groups / scale) * scale).square().sum(-1)
        better = error < best_error
        best = torch.where(better, byte, best)
        best_error = torch.where(better, error, best_error)
    return torch.where(need > 0, best, 0)


@cache
def _scales() -> Tensor:
    return torch.tensor([scale_of_byte(byte) for byte in range(GREATEST_SCALE_BYTE + 1)])


def _fp2_level(q: Tensor) -> Tensor:
    return q.round().clamp(-1, 2)


def _fp3_level(q: Tensor) -> Tensor:
    a = q.abs()
    return torch.copysign(torch.where(a > 3, 4.0, a.clamp(max=2).round()), q)


def _fp4_level(q: Tensor) -> Tensor:
    a = q.abs()
    return torch.copysign(torch.where(a < 4, a.round(), (a / 2).round() * 2).clamp(max=10), q)


def _up_to(most: int) -> Callable[[Tensor], Tensor]:
    return lambda q: q.round().clamp(-most, most)


def _signed_magnitude(magnitude: Tensor, levels: Tensor, sign_bit: int) -> Tensor:
    return magnitude | torch.where(levels < 0, sign_bit, 0)


def _stream(codes: Tensor, bits: int) -> Tensor:
    """Codes of `bits` bits as a little-endian bit stream: whole words of one or three bytes."""
    in_word = 4 if bits == 2 else 24 // bits
    places = torch.arange(in_word, dtype=torch.int32) * bits
    word = (codes.view(-1, _BLOCK // in_word, in_word) << places).sum(-1, dtype=torch.int32)
    parts = [(word >> shift) & 255 for shift in range(0, bits * in_word, 8)]
    return torch.stack(parts, dim=-1).flatten(1).to(torch.uint8)


def _pack_fp2(levels: Tensor) -> Tensor:
    return _stream(levels + 1, 2)


def _pack_fp3(levels: Tensor) -> Tensor:
    return _stream(_signed_magnitude(levels.abs().clamp(max=3), levels, 4), 3)


def _pack_fp4(levels: Tensor) -> Tensor:
    a = levels.abs()
    codes = _signed_magnitude(torch.where(a > 4, a // 2 + 2, a), levels, 8)
    return (codes[:, :16] | (codes[:, 16:] << 4)).to(torch.uint8)


def _pack_fp6(levels: Tensor) -> Tensor:
    return _stream(_signed_magnitude(levels.abs(), levels, 32), 6)


def _pack_fp8(levels: Tensor) -> Tensor:
    return levels.to(torch.int8).view(torch.uint8)


ROCMFP_TYPES: Mapping[str, RocmFp] = MappingProxyType(
    {
        "ROCMFP2": RocmFp(16, 1, 2, 1, 0, 12, _fp2_level, _pack_fp2),
        "ROCMFP3": RocmFp(16, 4, 4, 2, 2, 8, _fp3_level, _pack_fp3),
        "ROCMFP4": RocmFp(16, 10, 10, 2, 2, 2, _fp4_level, _pack_fp4),
        "ROCMFP4_FAST": RocmFp(32, 10, 10, 2, 2, 2, _fp4_level, _pack_fp4),
        "ROCMFP6": RocmFp(16, 31, 31, 1, 2, 1, _up_to(31), _pack_fp6),
        "ROCMFP8": RocmFp(32, 127, 127, 1, 2, 1, _up_to(127), _pack_fp8),
    }
)
