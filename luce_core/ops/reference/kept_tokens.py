"""Which tokens of each row may be drawn: the sampler's min_p, top_k and top_p."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from luce_core.ops.cases import CaseMaker, Inputs, OpCase, row_inputs
from luce_core.ops.spec import EXACT, ArgKind, ArgSpec, OpSpec, OutSpec, Rows
from luce_core.request import SamplingParams
from luce_core.sampling import filters


def kept_tokens(
    logits: Tensor,  # [R, V]
    scaled: Tensor,  # [R, V] float32
    top_k: Tensor,  # [R] int64
    top_p: Tensor,  # [R] float64
    min_p: Tensor,  # [R] float32
    out: Tensor,  # [R, V] int8
) -> None:
    vocab = logits.shape[1]
    wanted = filters.RowFilters(
        top_k,
        top_p,
        min_p,
        any_top_k=bool((top_k < vocab).any()),
        any_top_p=bool((top_p < 1.0).any()),
        any_min_p=bool((min_p > 0.0).any()),
    )
    out.copy_(filters.kept_tokens(logits, scaled, wanted))


def out_shape(logits: Tensor, *filters: Tensor) -> tuple[int, ...]:
    return tuple(logits.shape)


_CASES: dict[str, tuple[SamplingParams, ...]] = {
    "one row": (SamplingParams(temperature=0.9, top_k=40, top_p=0.5, min_p=0.001),),
    "counts": tuple(SamplingParams(temperature=1.0, top_k=k) for k in (1, 5, 1299)),
    "shares": tuple(
        SamplingParams(temperature=t, top_p=p)
        for t, p in ((0.7, 0.9), (0.01, 0.999999), (5.0, 0.1))
    ),
    "least": tuple(SamplingParams(temperature=1.3, min_p=p) for p in (0.05, 1.0)),
    "mixed": (
        SamplingParams(temperature=1.0, top_k=5),
        SamplingParams(temperature=0.7, top_p=0.9),
        SamplingParams(temperature=2.0, top_k=40, top_p=0.5, min_p=0.001),
        SamplingParams(temperature=2.0),
    ),
}
# A block of the widest that kernels rank at once, and a ragged end.
_VOCAB = 1300


def cases() -> Iterator[OpCase]:
    for name, rows in _CASES.items():

        def make(maker: CaseMaker, rows: tuple[SamplingParams, ...] = rows) -> Inputs:
            """Rows with ties, both zeros and banned tokens beside plain ones."""
            logits = maker.normal(len(rows), _VOCAB, std=4.0)
            logits[: 1 + len(rows) // 2] = logits[: 1 + len(rows) // 2].round()
            logits[0, 100:120] = -0.0
            logits[-1, 3:1200] = float("-inf")
            temperature = torch.tensor([row.temperature for row in rows])[:, None]
            exact = logits.float().cpu()
            scaled = (exact - exact.amax(1, keepdim=True)) / temperature
            wanted = filters.row_filters(list(rows), _VOCAB, str(maker.device))
            return row_inputs(logits, scaled.to(maker.device), *wanted[:3])

        yield OpCase(name, {}, make)


SPEC = OpSpec(
    name="kept_tokens",
    doc=(
        "1 for the tokens of each row that min_p, then top_k, then top_p leave, else 0. `scaled` "
        "is (logits - the row's best) / temperature, float32; the order of tokens is that of "
        "`logits`, ties go to the lowest index. top_k is int64 and the vocabulary's size where it "
        "is off, top_p float64 and 1 where off, min_p float32 and 0 where off. Shares are counted "
        "in units of 2^-44 of the best token's, so that sums do not depend on their order; tokens "
        "of less are left out. The sampler calls it between steps, for rows with such filters."
    ),
    args=(
        ArgSpec("logits", ArgKind.ACTIVATION, ("R", "V"), Rows.ANY),
        ArgSpec("scaled", ArgKind.ACTIVATION, ("R", "V"), Rows.ANY),
        ArgSpec("top_k", ArgKind.FIELD, ("R",), Rows.ANY),
        ArgSpec("top_p", ArgKind.FIELD, ("R",), Rows.ANY),
        ArgSpec("min_p", ArgKind.FIELD, ("R",), Rows.ANY),
    ),
    out=OutSpec(Rows.ANY, out_shape, torch.int8),
    reference=kept_tokens,
    tolerance=EXACT,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
