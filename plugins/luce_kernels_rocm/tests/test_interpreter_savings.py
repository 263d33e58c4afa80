"""What is saved in triton's interpreter changes nothing that kernels do or that triton shows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from luce_kernels_rocm.launch import Launch
from triton.runtime import interpreter


@triton.jit
def _twice(x):
    return x + x


@triton.jit
def _sum_of_twice(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    for part in range(2):
        values = _twice(tl.load(x + part * N + at))
        tl.store(out + part, tl.sum(values, 0) + tl.max(_twice(values), 0))


def test_a_launch_calls_functions_and_leaves_the_language_as_it_was() -> None:
    before = tl.load, tl.range, tl.tensor.__add__
    x, out = torch.arange(8, dtype=torch.float32), torch.empty(2)
    for _ in range(2):
        Launch(_sum_of_twice, N=4)((1,), x, out)
        assert out.tolist() == [2 * 6 + 4 * 3, 2 * 22 + 4 * 7]
        assert (tl.load, tl.range, tl.tensor.__add__) == before


def test_types_have_the_dtypes_that_the_interpreter_gives_them() -> None:
    for scalar, name in ((tl.float16, "float16"), (tl.int1, "bool"), (tl.bfloat16, "uint16")):
        for dtype in (scalar, tl.block_type(scalar, [4, 2])):
            assert interpreter._get_np_dtype(dtype) == name
        pointer = tl.pointer_type(scalar)
        for dtype in (pointer, tl.block_type(pointer, [4])):
            assert interpreter._get_np_dtype(dtype) == "uint64"
