"""How the values of each quant type lie that the kernels read; no triton here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Planes(NamedTuple):
    """A byte of the 4-bit types holds two values that lie `half` values apart. Plane 0 are all the
    first ones, plane 1 the second ones; types of whole bytes have one plane. A plane is cut into
    groups of `width` values that share a scale, numbered along the row. Value j of group g of
    plane p is value

        e = g * width + j;   k = e // half * 2 * half + p * half + e % half   (k = e with one plane)

    of the row."""

    planes: int
    width: int
    half: int


QUANTS: Mapping[str, Planes] = MappingProxyType(
    {
        "F32": Planes(1, 32, 1),
        "F16": Planes(1, 32, 1),
        "BF16": Planes(1, 32, 1),
        "Q8_0": Planes(1, 32, 1),
        "Q4_0": Planes(2, 16, 16),
        "Q4_1": Planes(2, 16, 16),
        "Q5_0": Planes(2, 16, 16),
        "Q5_1": Planes(2, 16, 16),
        "IQ4_NL": Planes(2, 16, 16),
        "MXFP4": Planes(2, 16, 16),
        "ROCMFP2": Planes(1, 16, 1),
        "ROCMFP3": Planes(1, 16, 1),
        "ROCMFP4": Planes(2, 16, 16),
        "ROCMFP4_FAST": Planes(2, 16, 16),
        "Q4_K": Planes(2, 32, 32),
        "Q5_K": Planes(2, 32, 32),
        "Q6_K": Planes(2, 16, 64),
        "IQ4_XS": Planes(2, 16, 16),
    }
)
