"""Rows of a quantised table by token id; only the rows used are dequantised."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from luce_core.ops.cases import WEIGHT_TYPES, CaseMaker, Inputs, OpCase, row_inputs
from luce_core.ops.spec import EXACT, ArgKind, ArgSpec, OpSpec, OutSpec, Rows
from luce_core.weights.quant_types import QuantTensor, dequantize


def keep_blocks(weight: QuantTensor, device: torch.device) -> Tensor:
    """The table stays in its quant blocks [N, row_bytes]."""
    return weight.blocks.to(device)


def embedding_rows(
    token_ids: Tensor,  # [T]
    table: Tensor,  # [N, row_bytes] uint8
    out: Tensor,  # [T, K]
    *,
    qtype: str,
    n: int,
    k: int,
) -> None:
    out.copy_(dequantize(table.index_select(0, token_ids), qtype))


def out_shape(token_ids: Tensor, *, qtype: str, n: int, k: int) -> tuple[int, ...]:
    return (token_ids.shape[0], k)


def cases() -> Iterator[OpCase]:
    for qtype in WEIGHT_TYPES:

        def make(maker: CaseMaker, qtype: str = qtype) -> Inputs:
            ids = maker.integers(0, 33, 7)
            ids[:2] = torch.tensor([0, 32])
            return row_inputs(ids, weights=(maker.weight(33, 256, qtype),))

        yield OpCase(qtype, {"qtype": qtype, "n": 33, "k": 256}, make)


SPEC = OpSpec(
    name="embedding_rows",
    doc="Rows of a weight [N, K] by token id.",
    args=(
        ArgSpec("token_ids", ArgKind.FIELD, ("T",), Rows.TOKENS),
        ArgSpec("table", ArgKind.WEIGHT, ("N", "K")),
    ),
    out=OutSpec(Rows.TOKENS, out_shape),
    facts=("qtype", "n", "k"),
    reference=embedding_rows,
    prepare=keep_blocks,
    tolerance=EXACT,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
