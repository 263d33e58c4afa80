"""embedding_rows: one program for a piece of a row, dequantised to the reference's bits."""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_kernels_rocm.configs import PIECE, PIECE_WARPS
from luce_kernels_rocm.jit.quants import dequantized, values_of
from luce_kernels_rocm.launch import Launch
from luce_kernels_rocm.quant_table import QUANTS


@triton.jit
def _embedding_rows(
    token_ids,
    table,
    out,
    K: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    QTYPE: tl.constexpr,
    TWO: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    GROUPS: tl.constexpr,
    B: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * B + tl.arange(0, B)[:, None]
    plane = tl.program_id(2)
    at = tl.arange(0, WIDTH)[None, :]
    inside = group < GROUPS
    token = tl.load(token_ids + row).to(tl.int64)
    values = dequantized(table + token * ROW_BYTES, group, at, plane, inside, QTYPE)
    target = out + row * K + values_of(group, at, plane, WIDTH, HALF, TWO)
    tl.store(target, values.to(out.dtype.element_ty), mask=inside)


def embedding_rows(
    token_ids: Tensor,  # [T]
    table: Tensor,  # [N, row_bytes] uint8
    out: Tensor,  # [T, K]
    *,
    qtype: str,
    n: int,
    k: int,
) -> None:
    grid, launch = _launch(qtype, k, table.shape[1])
    launch((token_ids.shape[0], *grid), token_ids, table, out)


@cache
def _launch(qtype: str, k: int, row_bytes: int) -> tuple[tuple[int, int], Launch]:
    quant = QUANTS[qtype]
    block = PIECE // quant.width
    groups = k // (quant.planes * quant.width)
    launch = Launch(
        _embedding_rows,
        warps=PIECE_WARPS,
        exact=True,
        K=k,
        ROW_BYTES=row_bytes,
        QTYPE=qtype,
        TWO=quant.planes == 2,
        WIDTH=quant.width,
        HALF=quant.half,
        GROUPS=groups,
        B=block,
    )
    return (triton.cdiv(groups, block), quant.planes), launch
