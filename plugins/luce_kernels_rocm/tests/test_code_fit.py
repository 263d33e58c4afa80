"""Code books that kernels compute instead of looking them up."""

from __future__ import annotations

import numpy as np
import pytest
from luce_kernels_rocm.jit.code_fit import fit

from luce_core.errors import LuceError
from luce_core.weights.quant.float4 import IQ4_VALUES


def test_the_polynomial_gives_every_value_in_float32() -> None:
    coefficients = [np.float32(c) for c in fit(IQ4_VALUES)]
    codes = np.arange(16, dtype=np.float32)
    total = np.zeros(16, np.float32)
    for coefficient in reversed(coefficients):
        total = total * codes + coefficient
    assert tuple(np.floor(total + np.float32(0.5)).astype(int)) == IQ4_VALUES


def test_what_no_polynomial_gives_is_refused() -> None:
    with pytest.raises(LuceError, match="no polynomial"):
        fit((0, 9, 0, 9, 0, 9, 0, 9))
