"""Products of a few rows with a weight in its quant blocks."""

from __future__ import annotations

import triton
import triton.language as tl

from luce_kernels_rocm.jit.quants import dequantized, values_of


@triton.jit
def row_start(n, N: tl.constexpr, ROW_BYTES: tl.constexpr):
    """Where rows `n` of a weight begin, in bytes; the last row for those past the end. Counted in
    32 bits where that is enough, which halves the registers of addresses."""
    row = tl.minimum(n, N - 1)
    if N * ROW_BYTES >= 2147483648:
        row = row.to(tl.int64)
    return row * ROW_BYTES


@triton.jit
def row_scales(x, eps, rows, x_stride, K: tl.constexpr, ROWS: tl.constexpr):
    """ROWS times what rms_norm multiplies all values of a row of x by; of more rows than there are
    the last is repeated."""
    at = tl.arange(0, triton.next_power_of_2(K))
    scales = (0.0,) * ROWS
    found = scales[:0]
    for row in tl.static_range(ROWS):
        source = x + tl.minimum(row, rows - 1) * x_stride
        values = tl.load(source + at, mask=at < K, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(values * values, 0) / K + eps)
        found = found + (scale,)  # noqa: RUF005
    return found


@triton.jit
def narrow_products(
    x,
    norm,
    scales,
    weight,
    n,
    rows,
    x_stride,
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
    """ROWS times [BN]: rows of x with the rows `n` [BN] of a weight. Of more rows than there are
    the last is repeated.

    With a `norm` [K], x goes through rms_norm first, whose result is rounded to x's dtype as where
    it is written to memory; `scales` are then those of `row_scales`.
    """
    start = weight + row_start(n, N, ROW_BYTES)[:, None, None]
    at = tl.arange(0, WIDTH)[None, None, :]
    sums = (tl.zeros([BN, BG, WIDTH], tl.float32),) * ROWS
    for first in range(0, GROUPS, BG):
        group = first + tl.arange(0, BG)[None, :, None]
        inside = group < GROUPS
        for plane in tl.static_range(PLANES):
            values = dequantized(start, group, at, plane, inside, QTYPE)
            k = values_of(group, at, plane, WIDTH, HALF, PLANES == 2)
            if norm is not None:
                factor = tl.load(norm + k, mask=inside, other=0.0)
            added = sums[:0]
            for row in tl.static_range(ROWS):
                source = x + tl.minimum(row, rows - 1) * x_stride
                taken = tl.load(source + k, mask=inside, other=0.0).to(tl.float32)
                if norm is not None:
                    taken = (taken * scales[row] * factor).to(x.dtype.element_ty).to(tl.float32)
                added = added + (sums[row] + values * taken,)  # noqa: RUF005
            sums = added
    results = sums[:0]
    for row in tl.static_range(ROWS):
        results = results + (tl.sum(tl.sum(sums[row], 2), 1),)  # noqa: RUF005
    return results
