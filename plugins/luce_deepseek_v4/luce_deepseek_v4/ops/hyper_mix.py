"""The coefficients of manifold-constrained hyper-connections (mHC, DeepSeek V4, arXiv 2512.24880).

A row's residual is N streams X_h of D values. With y = flatten(X) / rms(flatten(X)), m = fn y:

    pre_h  = sigmoid(scale_0 m_h + base_h) + hc_eps                       h < N
    post_h = 2 sigmoid(scale_1 m_{N+h} + base_{N+h})
    C      = softmax over k of (scale_2 m_{2N+jN+k} + base_{2N+jN+k}) + hc_eps     [N, N], row j
    C      <- C / (column sums + hc_eps), then `iterations` - 1 times:
              C <- C / (row sums + hc_eps);  C <- C / (column sums + hc_eps)       (Sinkhorn-Knopp)

Kernels compute in float32. The output row holds pre, post, C by rows. With `head` (the last
reduction of the streams before the model's norm) there are only the N coefficients pre.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from luce_core.ops.cases import CaseMaker, Inputs, OpCase, row_inputs
from luce_core.ops.spec import SUMMED, ArgKind, ArgSpec, OpSpec, OutSpec, Rows


def hyper_mix(
    x: Tensor,  # [R, N, D] float32
    fn: Tensor,  # [M, N D] float32
    base: Tensor,  # [M] float32
    scale: Tensor,  # [3] float32, with `head` [1]
    out: Tensor,  # [R, M] float32, M = N (2 + N), with `head` N
    *,
    streams: int,
    head: bool,
    eps: float,
    hc_eps: float,
    iterations: int,
) -> None:
    mixes = torch.stack([_project(flat, fn, eps) for flat in x.float().flatten(1)])
    pre, post, comb = _parts(mixes, streams)
    pre_base, post_base, comb_base = _parts(base.double()[None], streams)
    out[:, :streams] = (pre * scale[0] + pre_base).sigmoid() + hc_eps
    if head:
        return
    out[:, streams : 2 * streams] = 2 * (post * scale[1] + post_base).sigmoid()
    matrix = (comb * scale[2] + comb_base).view(-1, streams, streams)
    raised = (matrix - matrix.amax(-1, keepdim=True)).exp()
    matrix = raised / _sum(raised, 2) + hc_eps
    matrix = matrix / (_sum(matrix, 1) + hc_eps)
    for _ in range(iterations - 1):
        matrix = matrix / (_sum(matrix, 2) + hc_eps)
        matrix = matrix / (_sum(matrix, 1) + hc_eps)
    out[:, 2 * streams :] = matrix.flatten(1)


def _project(flat: Tensor, fn: Tensor, eps: float) -> Tensor:
    """fn y of one row, so that its bits are its own; in float64, which is rounded at the end, as
    torch's float32 functions give other bits to the last elements of a tensor."""
    y = flat * torch.rsqrt(flat.square().mean() + eps)
    return (fn * y).sum(-1).double()


def _parts(mixes: Tensor, streams: int) -> tuple[Tensor, Tensor, Tensor]:
    return mixes[:, :streams], mixes[:, streams : 2 * streams], mixes[:, 2 * streams :]


def _sum(matrix: Tensor, dim: int) -> Tensor:
    """In order, which `sum` does not promise."""
    total = matrix.narrow(dim, 0, 1)
    for place in range(1, matrix.shape[dim]):
        total = total + matrix.narrow(dim, place, 1)
    return total


def mix_width(streams: int, *, head: bool) -> int:
    """How many coefficients a row has."""
    return streams if head else streams * (2 + streams)


def out_shape(x: Tensor, *, streams: int, head: bool, **constants: Any) -> tuple[int, ...]:
    return (x.shape[0], mix_width(streams, head=head))


def cases() -> Iterator[OpCase]:
    for rows, dim, head in ((1, 64, False), (19, 96, False), (5, 64, True), (2, 4096, False)):
        facts = {"streams": 4, "head": head, "eps": 1e-6, "hc_eps": 1e-6}

        def make(
            maker: CaseMaker, shape: tuple[int, int] = (rows, dim), head: bool = head
        ) -> Inputs:
            rows, dim = shape
            width = mix_width(4, head=head)
            x = maker.normal32(rows, 4, dim, std=3.0).to(maker.device)
            fn = maker.normal32(width, 4 * dim, std=(4 * dim) ** -0.5)
            scale = maker.normal32(1 if head else 3).abs() + 0.5
            return row_inputs(x, weights=(fn, maker.normal32(width), scale))

        name = f"{rows}x{dim}{', head' if head else ''}"
        yield OpCase(name, {**facts, "iterations": 1 if head else 20}, make)


SPEC = OpSpec(
    name="hyper_mix",
    doc=(
        "The coefficients of hyper-connections from a row's streams: pre = sigmoid + hc_eps, post "
        "= 2 sigmoid, and a matrix made doubly stochastic by `iterations` rounds of Sinkhorn; with "
        "`head` only pre."
    ),
    args=(
        ArgSpec("x", ArgKind.ACTIVATION, ("R", "N", "D"), Rows.ANY),
        ArgSpec("fn", ArgKind.WEIGHT, ("M", "N D")),
        ArgSpec("base", ArgKind.WEIGHT, ("M",)),
        ArgSpec("scale", ArgKind.WEIGHT, ("3 or 1",)),
    ),
    out=OutSpec(Rows.ANY, out_shape, dtype=torch.float32),
    facts=("streams", "head", "eps", "hc_eps", "iterations"),
    reference=hyper_mix,
    tolerance=SUMMED,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
