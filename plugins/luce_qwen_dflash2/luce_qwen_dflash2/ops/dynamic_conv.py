"""A short depthwise convolution inside each block of rows, with kernels made for every row.

DFlash2 runs it before and after attention and feed-forward (`GroupedDynamicCausalConv` of
z-lab/dflash): row i of a block becomes the sum over taps t of
(base[side, t] + delta[i, side, t, group]) * x[i - t]. Rows before a block count as zero: nothing
enters from outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import CaseMaker, Inputs, OpCase, Part
from luce_core.ops.spec import ArgKind, ArgSpec, OpSpec, OutSpec, Rows
from luce_qwen_dflash2.ops.case_blocks import block_batch, block_rows


def dynamic_conv(
    x: Tensor,  # [T, H]
    delta: Tensor,  # [T, 2 * taps * H / group], of sides, taps, groups
    batch: PackedBatch,
    base: Tensor,  # [2, taps, H] float32
    out: Tensor,  # [T, H]
    *,
    side: int,
    taps: int,
    group: int,
) -> None:
    rows, width = x.shape
    starts = batch.cu_seqlens[:-1].repeat_interleave(batch.cu_seqlens.diff())
    row = torch.arange(rows, device=x.device)
    changes = delta.reshape(rows, 2, taps, width // group)[:, side].float()
    values = x.float().reshape(rows, width // group, group)
    kernels = base[side].reshape(taps, width // group, group)
    total = torch.zeros_like(values)
    for tap in range(taps):
        inside = (row - tap >= starts)[:, None, None]
        earlier = torch.where(inside, values[(row - tap).clamp(min=0)], 0.0)
        total += (kernels[tap] + changes[:, tap, :, None]) * earlier
    out.copy_(total.flatten(1))


def out_shape(x: Tensor, *step_args: Any, **constants: Any) -> tuple[int, ...]:
    return tuple(x.shape)


def cases() -> Iterator[OpCase]:
    for name, widths in (("one block", (8,)), ("blocks", (8, 2, 5, 8)), ("rows", (1, 1))):
        for side in (0, 1):
            yield _case(f"{name}, side {side}", widths, side=side, taps=2, group=16)
    yield _case("three taps", (4, 2, 7), side=1, taps=3, group=32)
    yield _case("one tap", (3, 3), side=0, taps=1, group=64)


def _case(name: str, widths: tuple[int, ...], *, side: int, taps: int, group: int) -> OpCase:
    def make(maker: CaseMaker) -> Inputs:
        batch = block_batch([(0, width) for width in widths], maker.device)
        x = maker.columns(batch.rows, 192)
        delta = maker.columns(batch.rows, 2 * taps * 192 // group)
        alone = []
        for index, rows in enumerate(block_rows(widths)):
            one = block_batch([(0, widths[index])], maker.device)
            alone.append(Part((x[rows], delta[rows], one), rows))
        return Inputs(
            (x, delta, batch), weights=(maker.normal32(2, taps, 192),), alone=tuple(alone)
        )

    return OpCase(name, {"side": side, "taps": taps, "group": group}, make)


SPEC = OpSpec(
    name="dynamic_conv",
    doc="Causal depthwise convolution inside each segment, by kernels base + delta of each row.",
    args=(
        ArgSpec("x", ArgKind.ACTIVATION, ("T", "H"), Rows.TOKENS),
        ArgSpec("delta", ArgKind.ACTIVATION, ("T", "2 * taps * H / group"), Rows.TOKENS),
        ArgSpec("batch", ArgKind.BATCH),
        ArgSpec("base", ArgKind.WEIGHT, ("2", "taps", "H")),
    ),
    out=OutSpec(Rows.TOKENS, out_shape),
    facts=("side", "taps", "group"),
    reference=dynamic_conv,
    row_invariant=True,
    cases=cases,
)
