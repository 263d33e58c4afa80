"""A code book of whole numbers as a polynomial: cheaper in registers than looking codes up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from luce_core.errors import LuceError

DEGREE = 4
# Rounding errors of float32 Horner steps are far below this.
MARGIN = 0.02


def fit(values: Sequence[int]) -> tuple[float, ...]:
    """Coefficients, constant first, of a polynomial in the code whose nearest whole number is the
    value of every code; LuceError if there is none of this degree.

    Least squares weighted anew in each round by the error that was left (Lawson's algorithm) comes
    near the smallest possible largest error.
    """
    codes = np.arange(len(values), dtype=np.float64)
    powers = np.vander(codes, DEGREE + 1, increasing=True)
    wanted = np.array(values, dtype=np.float64)
    weights = np.ones(len(values))
    for _ in range(200):
        root = np.sqrt(weights)
        found, *_ = np.linalg.lstsq(powers * root[:, None], wanted * root, rcond=None)
        error = np.abs(powers @ found - wanted)
        weights = weights * (error + 1e-12)
        weights /= weights.sum()
    if error.max() >= 0.5 - MARGIN:
        raise LuceError(f"no polynomial of degree {DEGREE} gives {values}")
    return tuple(float(number) for number in found)
