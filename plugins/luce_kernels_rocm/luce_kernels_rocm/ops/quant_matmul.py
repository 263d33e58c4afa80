"""quant_matmul: x @ weight^T + bias over the file's quant blocks, dequantised in registers.

Up to NARROW_ROWS rows go through the narrow kernel: a program has some rows of the weight, reads
each block once, multiplies it with all rows of x, and sums at the end. More rows go through the
tiled kernel and the matrix instructions. Both go along k in one fixed order; their orders differ.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from luce_core.weights.quant_types import QUANT_TYPES
from luce_kernels_rocm.arch import Arch, arch_of
from luce_kernels_rocm.configs import NARROW_ROWS, narrow_config, tiled_config
from luce_kernels_rocm.jit.dtypes import TRITON_DTYPES
from luce_kernels_rocm.jit.products import narrow_products, row_scales, row_start
from luce_kernels_rocm.jit.quants import dequantized, values_of
from luce_kernels_rocm.launch import Launch
from luce_kernels_rocm.quant_table import QUANTS


@triton.jit
def _narrow(
    x,
    norm,
    eps,
    weight,
    bias,
    residual,
    out,
    rows,
    x_stride,
    residual_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    QTYPE: tl.constexpr,
    PLANES: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    BN: tl.constexpr,
    BG: tl.constexpr,
):
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    scales = None if norm is None else row_scales(x, eps, rows, x_stride, K, ROWS)
    results = narrow_products(
        x,
        norm,
        scales,
        weight,
        n,
        rows,
        x_stride,
        N,
        K,
        ROW_BYTES,
        QTYPE,
        PLANES,
        WIDTH,
        HALF,
        GROUPS,
        ROWS,
        BN,
        BG,
    )
    for row in tl.static_range(ROWS):
        result = results[row]
        kept = (n < N) & (row < rows)
        if bias is not None:
            result += tl.load(bias + n, mask=n < N, other=0.0)
        if residual is not None:
            more = tl.load(residual + row * residual_stride + n, mask=kept, other=0.0)
            result = result.to(out.dtype.element_ty).to(tl.float32) + more.to(tl.float32)
        tl.store(out + row * N + n, result.to(out.dtype.element_ty), mask=kept)


@triton.jit
def _tiled(
    x,
    weight,
    bias,
    residual,
    out,
    rows,
    x_stride,
    residual_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    QTYPE: tl.constexpr,
    PLANES: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    GROUPS: tl.constexpr,
    COMPUTE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BG: tl.constexpr,
):
    """A tile of BM rows of x times BN rows of the weight, multiplied in COMPUTE, summed in
    float32."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    start = weight + row_start(n, N, ROW_BYTES)[:, None, None]
    source = x + tl.minimum(m, rows - 1).to(tl.int64)[:, None] * x_stride
    at = tl.arange(0, WIDTH)[None, None, :]
    flat = tl.arange(0, BG * WIDTH)
    sums = tl.zeros([BM, BN], tl.float32)
    for first in range(0, GROUPS, BG):
        group = first + tl.arange(0, BG)[None, :, None]
        flat_group = first + flat // WIDTH
        for plane in tl.static_range(PLANES):
            values = dequantized(start, group, at, plane, group < GROUPS, QTYPE)
            tile = tl.reshape(values.to(COMPUTE), [BN, BG * WIDTH])
            k = values_of(flat_group, flat % WIDTH, plane, WIDTH, HALF, PLANES == 2)
            taken = tl.load(source + k[None, :], mask=(flat_group < GROUPS)[None, :], other=0.0)
            sums = tl.dot(taken.to(COMPUTE), tl.trans(tile), sums, input_precision="ieee")
    if bias is not None:
        sums += tl.load(bias + n, mask=n < N, other=0.0)[None, :]
    kept = (m < rows)[:, None] & (n < N)[None, :]
    if residual is not None:
        place = residual + m.to(tl.int64)[:, None] * residual_stride + n[None, :]
        more = tl.load(place, mask=kept, other=0.0)
        sums = sums.to(out.dtype.element_ty).to(tl.float32) + more.to(tl.float32)
    target = out + m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(target, sums.to(out.dtype.element_ty), mask=kept)


def quant_matmul(
    x: Tensor,  # [R, K]
    weight: Tensor,  # [N, row_bytes] uint8
    bias: Tensor | None,  # [N] float32
    out: Tensor,  # [R, N]
    *,
    qtype: str,
    n: int,
    k: int,
    residual: Tensor | None = None,  # [R, N]
) -> None:
    """`residual` is added as the op `add` would: to the rounded product."""
    rows = x.shape[0]
    if rows <= NARROW_ROWS:
        narrow_matmul(x, weight, bias, out, qtype=qtype, n=n, k=k, residual=residual)
        return
    tile_rows, tiles, launch = _tiled_launch(arch_of(x.device), qtype, n, k, x.dtype)
    grid = (triton.cdiv(rows, tile_rows), tiles)
    step = 0 if residual is None else residual.stride(0)
    launch(grid, x, weight, bias, residual, out, rows, x.stride(0), step)


def narrow_matmul(
    x: Tensor,  # [R, K], R at most NARROW_ROWS
    weight: Tensor,  # [N, row_bytes] uint8
    bias: Tensor | None,  # [N] float32
    out: Tensor,  # [R, N]
    *,
    qtype: str,
    n: int,
    k: int,
    residual: Tensor | None = None,  # [R, N]
    norm: Tensor | None = None,  # [K] float32
    eps: float = 0.0,
) -> None:
    """For few rows, which may go through an rms_norm with weight `norm` on their way in."""
    rows = x.shape[0]
    if rows == 0:
        return
    block = triton.next_power_of_2(rows)
    programs, launch = _narrow_launch(arch_of(x.device), qtype, n, k, block)
    step = 0 if residual is None else residual.stride(0)
    launch((programs,), x, norm, eps, weight, bias, residual, out, rows, x.stride(0), step)


def weight_shape(qtype: str, n: int, k: int) -> dict[str, Any]:
    """What kernels know of a weight."""
    quant = QUANTS[qtype]
    return {
        "N": n,
        "K": k,
        "ROW_BYTES": QUANT_TYPES[qtype].row_bytes(k),
        "QTYPE": qtype,
        "PLANES": quant.planes,
        "WIDTH": quant.width,
        "HALF": quant.half,
        "GROUPS": k // (quant.planes * quant.width),
    }


@cache
def _narrow_launch(arch: Arch, qtype: str, n: int, k: int, rows: int) -> tuple[int, Launch]:
    config = narrow_config(arch, qtype, n, k, rows)
    launch = Launch(
        _narrow,
        warps=config.warps,
        stages=config.stages,
        **weight_shape(qtype, n, k),
        ROWS=rows,
        BN=config.columns,
        BG=config.groups,
    )
    return triton.cdiv(n, config.columns), launch


@cache
def _tiled_launch(
    arch: Arch, qtype: str, n: int, k: int, dtype: torch.dtype
) -> tuple[int, int, Launch]:
    config = tiled_config(arch, qtype, n, k)
    launch = Launch(
        _tiled,
        warps=config.warps,
        stages=config.stages,
        **weight_shape(qtype, n, k),
        COMPUTE=TRITON_DTYPES[dtype],
        BM=config.rows,
        BN=config.columns,
        BG=config.groups,
    )
    return config.rows, triton.cdiv(n, config.columns), launch
