"""Residual streams of hyper-connections: begun, merged into a layer's input, and spread over.

    begin:   X_h = x for each of the N streams
    merge:   in = sum_h pre_h X_h                          in the order of h
    spread:  X'_k = post_k y + sum_j C[j, k] X_j           in the order of j

with the coefficients (pre, post, C by rows) of `hyper_mix`. The streams are float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from luce_core.ops.cases import CaseMaker, Inputs, OpCase, row_inputs
from luce_core.ops.spec import EXACT, ArgKind, ArgSpec, OpSpec, OutSpec, Rows

_SHAPES = ((1, 64), (19, 96), (5, 4096))


def hyper_begin(
    x: Tensor,  # [R, D]
    out: Tensor,  # [R, N, D] float32
    *,
    streams: int,
) -> None:
    out.copy_(x[:, None])


def hyper_merge(
    x: Tensor,  # [R, N, D] float32
    mix: Tensor,  # [R, M] float32
    out: Tensor,  # [R, D]
    *,
    streams: int,
) -> None:
    total = x[:, 0].float() * mix[:, :1]
    for stream in range(1, streams):
        total = total + x[:, stream].float() * mix[:, stream : stream + 1]
    out.copy_(total)


def hyper_spread(
    x: Tensor,  # [R, N, D] float32
    mix: Tensor,  # [R, N (2 + N)] float32
    y: Tensor,  # [R, D]
    out: Tensor,  # [R, N, D] float32
    *,
    streams: int,
) -> None:
    post, comb = mix[:, streams : 2 * streams], mix[:, 2 * streams :]
    comb = comb.view(-1, streams, streams)
    total = post[:, :, None] * y[:, None].float()
    for stream in range(streams):
        total = total + comb[:, stream, :, None] * x[:, None, stream].float()
    out.copy_(total)


def begun_shape(x: Tensor, *, streams: int) -> tuple[int, ...]:
    return (x.shape[0], streams, x.shape[1])


def merged_shape(x: Tensor, *step_args: Any, **constants: Any) -> tuple[int, ...]:
    return (x.shape[0], x.shape[2])


def spread_shape(x: Tensor, *step_args: Any, **constants: Any) -> tuple[int, ...]:
    return tuple(x.shape)


def begin_cases() -> Iterator[OpCase]:
    for rows, dim in _SHAPES:

        def make(maker: CaseMaker, shape: tuple[int, int] = (rows, dim)) -> Inputs:
            return row_inputs(maker.columns(*shape))

        yield OpCase(f"{rows}x{dim}", {"streams": 4}, make)


def merge_cases() -> Iterator[OpCase]:
    for rows, dim in _SHAPES:
        for width in (24, 4):

            def make(
                maker: CaseMaker, shape: tuple[int, int] = (rows, dim), width: int = width
            ) -> Inputs:
                return row_inputs(*_streams(maker, *shape), _mixes(maker, shape[0], width))

            yield OpCase(f"{rows}x{dim} of {width}", {"streams": 4}, make)


def spread_cases() -> Iterator[OpCase]:
    for rows, dim in _SHAPES:

        def make(maker: CaseMaker, shape: tuple[int, int] = (rows, dim)) -> Inputs:
            mixes = _mixes(maker, shape[0], 24)
            return row_inputs(*_streams(maker, *shape), mixes, maker.columns(*shape))

        yield OpCase(f"{rows}x{dim}", {"streams": 4}, make)


def _streams(maker: CaseMaker, rows: int, dim: int) -> tuple[Tensor]:
    return (maker.normal32(rows, 4, dim).to(maker.device),)


def _mixes(maker: CaseMaker, rows: int, width: int) -> Tensor:
    return maker.normal32(rows, width).sigmoid().to(maker.device)


_X = ArgSpec("x", ArgKind.ACTIVATION, ("R", "N", "D"), Rows.ANY)
_MIX = ArgSpec("mix", ArgKind.ACTIVATION, ("R", "M"), Rows.ANY)

BEGIN = OpSpec(
    name="hyper_begin",
    doc="The streams of a row that enters the model: `streams` copies, in float32.",
    args=(ArgSpec("x", ArgKind.ACTIVATION, ("R", "D"), Rows.ANY),),
    out=OutSpec(Rows.ANY, begun_shape, dtype=torch.float32),
    facts=("streams",),
    reference=hyper_begin,
    tolerance=EXACT,
    row_invariant=True,
    split_invariant=True,
    cases=begin_cases,
)

MERGE = OpSpec(
    name="hyper_merge",
    doc="A layer's input from the streams: the sum over h of pre_h X_h.",
    args=(_X, _MIX),
    out=OutSpec(Rows.ANY, merged_shape),
    facts=("streams",),
    reference=hyper_merge,
    row_invariant=True,
    split_invariant=True,
    cases=merge_cases,
)

SPREAD = OpSpec(
    name="hyper_spread",
    doc="The streams after a layer with output y: X'_k = post_k y + sum over j of C[j, k] X_j.",
    args=(_X, _MIX, ArgSpec("y", ArgKind.ACTIVATION, ("R", "D"), Rows.ANY)),
    out=OutSpec(Rows.ANY, spread_shape, dtype=torch.float32),
    facts=("streams",),
    reference=hyper_spread,
    row_invariant=True,
    split_invariant=True,
    cases=spread_cases,
)
