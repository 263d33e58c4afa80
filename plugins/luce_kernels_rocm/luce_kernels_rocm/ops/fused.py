"""What a recorded step may do in one launch instead of several. No op: whoever replays a recording
calls these where the recording shows that what lies between is read by nobody else.

Values between the parts are not rounded to the activations' dtype, so results differ from those of
the separate ops by such roundings.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from luce_kernels_rocm.arch import Arch, arch_of
from luce_kernels_rocm.configs import NARROW_ROWS, narrow_config, warps_for
from luce_kernels_rocm.jit.products import narrow_products
from luce_kernels_rocm.launch import Launch
from luce_kernels_rocm.ops.quant_matmul import narrow_matmul, quant_matmul, weight_shape
from luce_kernels_rocm.ops.rms_norm import rms_norm
from luce_kernels_rocm.ops.swiglu import gated, swiglu


class Weight(NamedTuple):
    """A weight [n, k] in the blocks of `qtype`, uint8 [n, row_bytes] on the device."""

    blocks: Tensor
    qtype: str
    n: int
    k: int


class Norm(NamedTuple):
    """The rms_norm that a product's rows go through first."""

    weight: Tensor  # [k] float32
    eps: float


@triton.jit
def _add_rms_norm(
    a, b, weight, total, out, a_stride, b_stride, eps, D: tl.constexpr, B: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, B)
    inside = at < D
    left = tl.load(a + row * a_stride + at, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(b + row * b_stride + at, mask=inside, other=0.0).to(tl.float32)
    values = left + right
    tl.store(total + row * D + at, values.to(total.dtype.element_ty), mask=inside)
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


def norm_matmul(
    x: Tensor,  # [R, K]
    norm: Norm,
    weight: Weight,
    bias: Tensor | None,  # [N] float32
    out: Tensor,  # [R, N]
    residual: Tensor | None = None,  # [R, N]
) -> None:
    """rms_norm(x) @ weight^T + bias + residual."""
    facts: dict[str, Any] = {"qtype": weight.qtype, "n": weight.n, "k": weight.k}
    if 0 < x.shape[0] <= NARROW_ROWS:
        more: dict[str, Any] = {"norm": norm.weight, "eps": norm.eps, "residual": residual}
        narrow_matmul(x, weight.blocks, bias, out, **facts, **more)
    else:
        normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        rms_norm(x, norm.weight, normed, eps=norm.eps)
        quant_matmul(normed, weight.blocks, bias, out, **facts, residual=residual)


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
    opened = narrow_products(
        x,
        norm,
        eps,
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
        eps,
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
        result = gated(opened[row], values[row], LIMIT)
        kept = (n < N) & (row < rows)
        tl.store(out + row * N + n, result.to(out.dtype.element_ty), mask=kept)


def swiglu_matmul(
    x: Tensor,  # [R, K]
    norm: Norm | None,
    gate: Weight,  # [N, K]
    up: Weight,  # [N, K]
    out: Tensor,  # [R, N]
    *,
    limit: float | None = None,
) -> None:
    """swiglu(x @ gate^T, x @ up^T), of rms_norm(x) if there is a norm."""
    rows = x.shape[0]
    if 0 < rows <= NARROW_ROWS:
        block = triton.next_power_of_2(rows)
        kinds = (gate.qtype, up.qtype)
        programs, launch = _swiglu_launch(arch_of(x.device), kinds, gate.n, gate.k, block, limit)
        weight, eps = (None, 0.0) if norm is None else norm
        grid = (programs,)
        launch(grid, x, weight, eps, gate.blocks, up.blocks, out, rows, x.stride(0))
        return
    if norm is not None:
        normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        rms_norm(x, norm.weight, normed, eps=norm.eps)
        x = normed
    opened, values = torch.empty_like(out), torch.empty_like(out)
    for weight_of, target in ((gate, opened), (up, values)):
        facts: dict[str, Any] = {"qtype": weight_of.qtype, "n": weight_of.n, "k": weight_of.k}
        quant_matmul(x, weight_of.blocks, None, target, **facts)
    swiglu(opened, values, out, limit=limit)


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
