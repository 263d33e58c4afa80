"""moe_matmul: products of rows with the weights of the experts that they go to.

Up to NARROW_ROWS rows: a program multiplies a row with some columns of one of its experts. More
rows: the pairs of row and expert are sorted by expert, stably, and a tile of pairs of one expert
meets the matrix instructions. The sort stays on the device; a grid has as many tiles as there can
be, and what is too many ends at once. Both ways go along k in one fixed order; their orders differ.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from luce_kernels_rocm.arch import Arch, arch_of
from luce_kernels_rocm.configs import NARROW_ROWS, grouped_config, pair_config
from luce_kernels_rocm.jit.dtypes import TRITON_DTYPES
from luce_kernels_rocm.jit.products import narrow_products
from luce_kernels_rocm.jit.quants import dequantized, values_of
from luce_kernels_rocm.launch import Launch
from luce_kernels_rocm.ops.quant_matmul import weight_shape


@triton.jit
def _one_pair(
    x,
    route,
    weight,
    out,
    x_stride,
    route_stride,
    TOP_K: tl.constexpr,
    OWN_INPUTS: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    QTYPE: tl.constexpr,
    PLANES: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    GROUPS: tl.constexpr,
    BN: tl.constexpr,
    BG: tl.constexpr,
):
    pair = tl.program_id(0)
    row = (pair // TOP_K).to(tl.int64)
    place = pair % TOP_K
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    expert = tl.load(route + row * route_stride + place).to(tl.int64)
    source = x + row * x_stride
    if OWN_INPUTS:
        source += place * K
    results = narrow_products(
        source,
        None,
        None,
        weight + expert * N * ROW_BYTES,
        n,
        1,
        0,
        N,
        K,
        ROW_BYTES,
        QTYPE,
        PLANES,
        WIDTH,
        HALF,
        GROUPS,
        1,
        BN,
        BG,
    )
    target = out + pair.to(tl.int64) * N + n
    tl.store(target, results[0].to(out.dtype.element_ty), mask=n < N)


@triton.jit
def _grouped(
    x,
    order,
    starts,
    tiles,
    weight,
    out,
    x_stride,
    EXPERTS: tl.constexpr,
    BE: tl.constexpr,
    TOP_K: tl.constexpr,
    OWN_INPUTS: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    QTYPE: tl.constexpr,
    PLANES: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    GROUPS: tl.constexpr,
    COMPUTE: tl.constexpr,
    STEP: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BG: tl.constexpr,
):
    """Tile `program_id(0)` of those of all experts: expert e has `tiles`[e]..`tiles`[e + 1] - 1 and
    the pairs `starts`[e]..`starts`[e + 1] - 1 of `order`, STEP of them in a tile."""
    tile = tl.program_id(0)
    if tile >= tl.load(tiles + EXPERTS):
        return
    number = tl.arange(0, BE)
    begins = tl.load(tiles + number, mask=number < EXPERTS, other=2147483647)
    expert = tl.sum((begins <= tile).to(tl.int32), 0) - 1
    first = tl.load(starts + expert) + (tile - tl.load(tiles + expert)) * STEP
    m = first + tl.arange(0, BM)
    inside = m < tl.minimum(first + STEP, tl.load(starts + expert + 1))
    pair = tl.load(order + m, mask=inside, other=0).to(tl.int64)
    source = x + (pair // TOP_K) * x_stride
    if OWN_INPUTS:
        source += pair % TOP_K * K
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    own = weight + expert.to(tl.int64) * N * ROW_BYTES
    start = own + tl.minimum(n, N - 1).to(tl.int64)[:, None, None] * ROW_BYTES
    at = tl.arange(0, WIDTH)[None, None, :]
    flat = tl.arange(0, BG * WIDTH)
    sums = tl.zeros([BM, BN], tl.float32)
    for first_group in range(0, GROUPS, BG):
        group = first_group + tl.arange(0, BG)[None, :, None]
        flat_group = first_group + flat // WIDTH
        for plane in tl.static_range(PLANES):
            values = dequantized(start, group, at, plane, group < GROUPS, QTYPE)
            columns = tl.reshape(values.to(COMPUTE), [BN, BG * WIDTH])
            k = values_of(flat_group, flat % WIDTH, plane, WIDTH, HALF, PLANES == 2)
            kept = inside[:, None] & (flat_group < GROUPS)[None, :]
            taken = tl.load(source[:, None] + k[None, :], mask=kept, other=0.0).to(COMPUTE)
            sums = tl.dot(taken, tl.trans(columns), sums, input_precision="ieee")
    target = out + pair[:, None] * N + n[None, :]
    tl.store(target, sums.to(out.dtype.element_ty), mask=inside[:, None] & (n < N)[None, :])


def moe_matmul(
    x: Tensor,  # [R, 1 or top_k, K]
    route: Tensor,  # [R, 2, top_k] float32: of `moe_route`
    weight: Tensor,  # [E, N, row_bytes] uint8
    out: Tensor,  # [R, top_k, N]
    *,
    qtype: str,
    experts: int,
    top_k: int,
    n: int,
    k: int,
    group_rows: int = 0,
) -> None:
    rows = x.shape[0]
    own = x.shape[1] == top_k and top_k > 1
    arch = arch_of(x.device)
    if rows <= NARROW_ROWS:
        columns, launch = _pair_launch(arch, qtype, top_k, own, n, k)
        launch((rows * top_k, columns), x, route, weight, out, x.stride(0), route.stride(0))
        return
    height, columns, launch = _grouped_launch(
        arch, qtype, experts, top_k, own, n, k, x.dtype, group_rows
    )
    numbers, order = route[:, 0].reshape(-1).sort(stable=True)
    bounds = torch.arange(experts + 1, dtype=torch.float32, device=x.device)
    starts = torch.searchsorted(numbers.contiguous(), bounds, out_int32=True)
    tiles = torch.zeros(experts + 1, dtype=torch.int32, device=x.device)
    torch.cumsum((starts.diff() + (height - 1)) // height, 0, dtype=torch.int32, out=tiles[1:])
    most = min(rows * top_k, rows * top_k // height + experts)
    launch((most, columns), x, order, starts, tiles, weight, out, x.stride(0))


@cache
def _pair_launch(
    arch: Arch, qtype: str, top_k: int, own: bool, n: int, k: int
) -> tuple[int, Launch]:
    config = pair_config(arch, qtype, n, k)
    launch = Launch(
        _one_pair,
        warps=config.warps,
        TOP_K=top_k,
        OWN_INPUTS=own,
        **weight_shape(qtype, n, k),
        BN=config.columns,
        BG=config.groups,
    )
    return triton.cdiv(n, config.columns), launch


@cache
def _grouped_launch(
    arch: Arch,
    qtype: str,
    experts: int,
    top_k: int,
    own: bool,
    n: int,
    k: int,
    dtype: torch.dtype,
    group_rows: int,
) -> tuple[int, int, Launch]:
    config = grouped_config(arch, qtype, n, k)
    step = min(group_rows or config.rows, config.rows)
    launch = Launch(
        _grouped,
        warps=config.warps,
        stages=config.stages,
        EXPERTS=experts,
        BE=triton.next_power_of_2(experts),
        TOP_K=top_k,
        OWN_INPUTS=own,
        **weight_shape(qtype, n, k),
        COMPUTE=TRITON_DTYPES[dtype],
        STEP=step,
        BM=config.rows,
        BN=config.columns,
        BG=config.groups,
    )
    return step, triton.cdiv(n, config.columns), launch
