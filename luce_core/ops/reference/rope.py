"""Rotary position embedding: pairs of a head's first `rotary_dim` values turn by the position."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from luce_core.ops.cases import CaseMaker, Inputs, OpCase, row_inputs
from luce_core.ops.rope_frequencies import OPTIONAL_FACTS, rope_constants
from luce_core.ops.spec import ArgKind, ArgSpec, OpSpec, OutSpec, Rows


def rope(
    x: Tensor,  # [T, H, D]
    positions: Tensor,  # [T]
    out: Tensor,  # [T, H, D]
    *,
    inv_freq: Tensor,  # [rotary_dim / 2] float32
    attention_factor: float,
    rotary_dim: int,
    interleaved: bool,
) -> None:
    angles = positions.float()[:, None, None] * inv_freq  # [T, 1, rotary_dim / 2]
    cos, sin = angles.cos(), angles.sin()
    if attention_factor != 1.0:
        cos, sin = cos * attention_factor, sin * attention_factor
    turning = x[..., :rotary_dim].float()
    if interleaved:
        first, second = turning[..., 0::2], turning[..., 1::2]
        out[..., 0:rotary_dim:2] = first * cos - second * sin
        out[..., 1:rotary_dim:2] = second * cos + first * sin
    else:
        half = rotary_dim // 2
        first, second = turning[..., :half], turning[..., half:]
        out[..., :half] = first * cos - second * sin
        out[..., half:rotary_dim] = second * cos + first * sin
    if rotary_dim < x.shape[-1]:
        out[..., rotary_dim:] = x[..., rotary_dim:]


def out_shape(x: Tensor, positions: Tensor, **constants: Any) -> tuple[int, ...]:
    return tuple(x.shape)


def cases() -> Iterator[OpCase]:
    whole = {"rotary_dim": 64, "interleaved": False, "theta": 10000.0}
    variants: dict[str, dict[str, Any]] = {
        "halves": {},
        "pairs": {"interleaved": True},
        "partial halves": {"rotary_dim": 16},
        "partial pairs": {"rotary_dim": 48, "interleaved": True},
        "linear": {"scaling": "linear", "factor": 4.0},
        "llama3": {"scaling": "llama3", "factor": 8.0, "original_context": 128},
        "yarn": {"scaling": "yarn", "factor": 4.0, "original_context": 128},
        "file factors": {"freq_factors": tuple(1.0 + i / 8 for i in range(32))},
    }
    for name, changed in variants.items():
        for rows, heads in ((1, 1), (37, 3)):

            def make(maker: CaseMaker, rows: int = rows, heads: int = heads) -> Inputs:
                return row_inputs(maker.normal(rows, heads, 64), maker.integers(0, 2000, rows))

            yield OpCase(f"{name}, {rows} rows", {**whole, **changed}, make)

    def make_columns(maker: CaseMaker) -> Inputs:
        return row_inputs(maker.columns(5, 3, 64), maker.integers(0, 2000, 5))

    yield OpCase("columns", whole, make_columns)


SPEC = OpSpec(
    name="rope",
    doc="Rotary embedding of [T, H, D], halves (NeoX) or interleaved pairs.",
    args=(
        ArgSpec("x", ArgKind.ACTIVATION, ("T", "H", "D"), Rows.TOKENS),
        ArgSpec("positions", ArgKind.FIELD, ("T",), Rows.TOKENS),
    ),
    out=OutSpec(Rows.TOKENS, out_shape),
    facts=("rotary_dim", "interleaved", "theta"),
    optional_facts=OPTIONAL_FACTS,
    constants=rope_constants,
    reference=rope,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
