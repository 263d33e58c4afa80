"""What a recorded step does in one launch instead of several. No op: `graphs/fuse.py` puts these in
the place of ops where a recording shows that what lies between is read by nobody else.

Values between the parts are rounded as where they are written to memory, so every part computes
what the op of its name does.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from luce_kernels_rocm.arch import Arch, arch_of
from luce_kernels_rocm.configs import narrow_config, warps_for
from luce_kernels_rocm.jit.products import narrow_products, row_scales
from luce_kernels_rocm.launch import Launch
from luce_kernels_rocm.ops.quant_matmul import weight_shape
from luce_kernels_rocm.ops.swiglu import gated

Weight = tuple[Tensor, str]  # uint8 [N, row_bytes] on the device, and its quant type


@triton.jit
def _add_rms_norm(
    a, b, weight, total, out, a_stride, b_stride, eps, D: tl.constexpr, B: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, B)
    inside = at < D
    left = tl.load(a + row * a_stride + at, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(b + row * b_stride + at, mask=inside, other=0.0).to(tl.float32)
    rounded = (left + right).to(total.dtype.element_ty)
    tl.store(total + row * D + at, rounded, mask=inside)
    values = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / D + eps)
    normed = values * scale * tl.load(weight + at, mask=inside, other=0.0)
    tl.store(out + row * D + at, normed.to(out.dtype.element_ty), mask=inside)


def add_rms_norm(
    a: Tensor,  # [R, D]
    b: Tensor,  # [R, D]
    weight: Tensor,  # [D] float32
    total: Tensor,  # [R, D]
    out: Tensor,  # [R, D]
    *,
    eps: float,
) -> None:
    """a + b into `total`, and its rms_norm into `out`."""
    rows, width = out.shape
    launch = _add_rms_norm_launch(width)
    launch((rows,), a, b, weight, total, out, a.stride(0), b.stride(0), eps)


@cache
def _add_rms_norm_launch(width: int) -> Launch:
    block = triton.next_power_of_2(width)
    return Launch(_add_rms_norm, warps=warps_for(block), D=width, B=block)


@triton.jit
def _narrow_swiglu(
    x,
    norm,
    eps,
    gate,
    up,
    out,
    rows,
    x_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    GATE_BYTES: tl.constexpr,
    GATE_TYPE: tl.constexpr,
    GATE_PLANES: tl.constexpr,
    GATE_WIDTH: tl.constexpr,
    GATE_HALF: tl.constexpr,
    GATE_GROUPS: tl.constexpr,
    GATE_BG: tl.constexpr,
    UP_BYTES: tl.constexpr,
    UP_TYPE: tl.constexpr,
    UP_PLANES: tl.constexpr,
    UP_WIDTH: tl.constexpr,
    UP_HALF: tl.constexpr,
    UP_GROUPS: tl.constexpr,
    UP_BG: tl.constexpr,
    LIMIT: tl.constexpr,
    ROWS: tl.constexpr,
    BN: tl.constexpr,
):
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    scales = None if norm is None else row_scales(x, eps, rows, x_stride, K, ROWS)
    opened = narrow_products(
        x,
        norm,
        scales,
        gate,
        n,
        rows,
        x_stride,
        N,
        K,
        GATE_BYTES,
        GATE_TYPE,
        GATE_PLANES,
        GATE_WIDTH,
        GATE_HALF,
        GATE_GROUPS,
        ROWS,
        BN,
        GATE_BG,
    )
    values = narrow_products(
        x,
        norm,
        scales,
        up,
        n,
        rows,
        x_stride,
        N,
        K,
        UP_BYTES,
        UP_TYPE,
        UP_PLANES,
        UP_WIDTH,
        UP_HALF,
        UP_GROUPS,
        ROWS,
        BN,
        UP_BG,
    )
    for row in tl.static_range(ROWS):
        rounded = opened[row].to(out.dtype.element_ty).to(tl.float32)
        value = values[row].to(out.dtype.element_ty).to(tl.float32)
        result = gated(rounded, value, LIMIT)
        kept = (n < N) & (row < rows)
        tl.store(out + row * N + n, result.to(out.dtype.element_ty), mask=kept)


def swiglu_matmul(
    x: Tensor,  # [R, K], R at most NARROW_ROWS
    gate: Weight,
    up: Weight,
    out: Tensor,  # [R, N]
    *,
    limit: float | None,
    norm: Tensor | None = None,  # [K] float32
    eps: float = 0.0,
) -> None:
    """swiglu(x @ gate^T, x @ up^T), of rms_norm(x) with weight `norm` if there is one."""
    (rows, n), k = out.shape, x.shape[1]
    if rows == 0:
        return
    (gate_blocks, gate_type), (up_blocks, up_type) = gate, up
    block = triton.next_power_of_2(rows)
    kinds = (gate_type, up_type)
    programs, launch = _swiglu_launch(arch_of(x.device), kinds, n, k, block, limit)
    launch((programs,), x, norm, eps, gate_blocks, up_blocks, out, rows, x.stride(0))


@cache
def _swiglu_launch(
    arch: Arch, kinds: tuple[str, str], n: int, k: int, rows: int, limit: float | None
) -> tuple[int, Launch]:
    constants: dict[str, Any] = {}
    columns, warps = n, 1
    for name, qtype in zip(("GATE", "UP"), kinds, strict=True):
        config = narrow_config(arch, qtype, n, k, rows)
        columns, warps = min(columns, config.columns), max(warps, config.warps)
        shape = weight_shape(qtype, n, k)
        constants |= {
            f"{name}_BYTES": shape["ROW_BYTES"],
            f"{name}_TYPE": qtype,
            f"{name}_PLANES": shape["PLANES"],
            f"{name}_WIDTH": shape["WIDTH"],
            f"{name}_HALF": shape["HALF"],
            f"{name}_GROUPS": shape["GROUPS"],
            f"{name}_BG": config.groups,
        }
    launch = Launch(
        _narrow_swiglu, warps=warps, **constants, N=n, K=k, LIMIT=limit, ROWS=rows, BN=columns
    )
    return triton.cdiv(n, columns), launch
