"""Dots of rounded activations are as near to float64 as ggml's, for the same weights and inputs.

LUCE_GGML_LIBRARY names the shared library of a ggml build that has its CPU kernels
(libggml-cpu.so); it is used as any C program would.
"""

from __future__ import annotations

import ctypes as c
import os
from typing import NamedTuple

import gguf
import pytest
import torch
from luce_kernels_cpu.native_weight import NativeWeight
from luce_kernels_cpu.testing import matmul, pool, random_weight, values
from luce_kernels_cpu.weight_types import INT8_TYPES
from torch import Tensor

from luce_core.weights.quant_types import QuantTensor

LIBRARY = os.environ.get("LUCE_GGML_LIBRARY", "")
# The ROCmFP types are of a fork.
IN_GGML = {kind.name for kind in gguf.GGMLQuantizationType}
LIMIT = 1.05
N, K, ROWS = 512, 4096, 16

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not LIBRARY, reason="LUCE_GGML_LIBRARY names no library"),
]

FromFloat = c.CFUNCTYPE(None, c.c_void_p, c.c_void_p, c.c_int64)
Dot = c.CFUNCTYPE(
    None,
    c.c_int,
    c.POINTER(c.c_float),
    c.c_size_t,
    c.c_void_p,
    c.c_size_t,
    c.c_void_p,
    c.c_size_t,
    c.c_int,
)


class Traits(c.Structure):
    """ggml_type_traits_cpu of ggml-cpu.h."""

    _fields_ = (
        ("from_float", FromFloat),
        ("dot", Dot),
        ("dot_type", c.c_int),
        ("rows", c.c_int64),
    )


class Error(NamedTuple):
    largest: float
    rms: float


def error_of(out: Tensor, exact: Tensor) -> Error:
    off = (out.double() - exact).abs()
    return Error(off.max().item(), off.square().mean().sqrt().item())


def ggml_product(weight: QuantTensor, x: Tensor) -> Tensor:
    """x @ weight^T, a dot at a time, of activations in the type that ggml chooses."""
    library = c.CDLL(LIBRARY)
    library.ggml_cpu_init()
    library.ggml_get_type_traits_cpu.restype = c.POINTER(Traits)
    traits = library.ggml_get_type_traits_cpu(weight.qtype.ggml_id).contents
    quantize = library.ggml_get_type_traits_cpu(traits.dot_type).contents.from_float
    blocks, out = weight.blocks.contiguous(), torch.empty(len(x), len(weight.blocks))
    quants = torch.empty(2 * x.shape[1], dtype=torch.uint8)  # at most 16 bits a value
    result = c.c_float()
    for r, row in enumerate(x):
        quantize(row.data_ptr(), quants.data_ptr(), x.shape[1])
        for n, at in enumerate(blocks):
            traits.dot(x.shape[1], c.byref(result), 0, at.data_ptr(), 0, quants.data_ptr(), 0, 1)
            out[r, n] = result.value
    return out


@pytest.mark.parametrize("qtype", sorted((INT8_TYPES & IN_GGML) | {"F16", "BF16"}))
def test_errors_are_no_larger_than_those_of_ggml(qtype: str) -> None:
    weight = random_weight(qtype, N, K)
    x = torch.randn(ROWS, K, generator=torch.Generator().manual_seed(1))
    exact = x.double() @ values(qtype, N, K).double().T
    ours = error_of(matmul(pool(2), NativeWeight(pool(2), weight), x), exact)
    theirs = error_of(ggml_product(weight, x), exact)
    assert ours.rms <= LIMIT * theirs.rms, (ours, theirs)
    assert ours.largest <= LIMIT * theirs.largest, (ours, theirs)
