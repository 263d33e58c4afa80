"""Rotary position embedding of a head's last `rotary_dim` values, in adjacent pairs.

Pair i turns by position * inv_freq[i], with `inverse` by the negative of it: so the output of
attention, a mean of keys that were turned to their positions, is turned back by its query's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import CaseMaker, Inputs, OpCase, Part, Segment
from luce_core.ops.rope_frequencies import OPTIONAL_FACTS, rope_frequencies
from luce_core.ops.spec import ArgKind, ArgSpec, OpSpec, OutSpec, Rows
from luce_deepseek_v4.ops.case_batches import CASE_LAYOUT


def tail_rope(
    x: Tensor,  # [T, H, D]
    batch: PackedBatch,
    out: Tensor,  # [T, H, D]
    *,
    inv_freq: Tensor,  # [rotary_dim / 2] float32, negative with `inverse`
    attention_factor: float,
    head_dim: int,
    rotary_dim: int,
) -> None:
    first = x.shape[-1] - rotary_dim
    angles = batch.positions.float()[:, None, None] * inv_freq  # [T, 1, rotary_dim / 2]
    out[..., :first] = x[..., :first]
    out[..., first:] = turned(x[..., first:].float(), angles, attention_factor)


def turned(
    pairs: Tensor,  # [..., 2 n] float32
    angles: Tensor,  # [..., n] float32
    factor: float,
) -> Tensor:
    """Adjacent pairs turned by their angles, times `factor`."""
    cos, sin = angles.cos() * factor, angles.sin() * factor
    even, odd = pairs[..., 0::2], pairs[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)


def tail_constants(facts: Mapping[str, Any], device: torch.device) -> Mapping[str, Any]:
    """The frequencies, computed once for all providers; ConfigError as for `rope`."""
    inv_freq, attention_factor = rope_frequencies(facts)
    return {
        "inv_freq": (-inv_freq if facts.get("inverse") else inv_freq).to(device),
        "attention_factor": attention_factor,
        "rotary_dim": facts["rotary_dim"],
    }


def rope_constants(facts: Mapping[str, Any], device: torch.device) -> Mapping[str, Any]:
    return {"head_dim": facts["head_dim"], **tail_constants(facts, device)}


def out_shape(x: Tensor, batch: Any, **constants: Any) -> tuple[int, ...]:
    return tuple(x.shape)


def cases() -> Iterator[OpCase]:
    mixed = (Segment(0, 5, True), Segment(300, 16, True), Segment(41, 1), Segment(1900, 1))
    yarn = {"scaling": "yarn", "factor": 16.0, "original_context": 256, "attention_factor": 1.0}
    yield _case("pairs", mixed, heads=3, dim=64, rotary_dim=16, theta=10000.0)
    yield _case("inverse", mixed, heads=3, dim=64, rotary_dim=16, theta=10000.0, inverse=True)
    yield _case("yarn", mixed, heads=1, dim=64, rotary_dim=64, theta=160000.0, **yarn)
    yield _case("real head", (Segment(7, 1),), heads=64, dim=512, rotary_dim=64, theta=1e4)


def _case(
    name: str, segments: tuple[Segment, ...], *, heads: int, dim: int, **facts: Any
) -> OpCase:
    def make(maker: CaseMaker) -> Inputs:
        case = maker.batch(segments, CASE_LAYOUT)
        x = maker.columns(case.batch.rows, heads, dim)
        alone, split = [], []
        for number, segment in enumerate(segments):
            batch, rows = case.alone(number)
            alone.append(Part((x[rows], batch), rows))
            here = slice(rows.stop - 1, rows.stop)
            split.append(Part((x[here], case.one_row(number, segment.rows - 1)), here))
        return Inputs((x, case.batch), alone=tuple(alone), split=tuple(split))

    return OpCase(name, {"head_dim": dim, **facts}, make)


SPEC = OpSpec(
    name="tail_rope",
    doc=(
        "Rotary embedding of the last `rotary_dim` values of each head, in adjacent pairs, by the "
        "batch's positions; with `inverse` by their negatives."
    ),
    args=(
        ArgSpec("x", ArgKind.ACTIVATION, ("T", "H", "D"), Rows.TOKENS),
        ArgSpec("batch", ArgKind.BATCH),
    ),
    out=OutSpec(Rows.TOKENS, out_shape),
    facts=("head_dim", "rotary_dim", "theta"),
    optional_facts={**OPTIONAL_FACTS, "inverse": False},
    constants=rope_constants,
    reference=tail_rope,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
