"""What both attention ops of DeepSeek V4 compute for a row, given the entries that it sees.

One vector of D values is both key and value. A row at position t attends to its slot's ring entries
of positions t - window + 1 .. t (itself included), then to its compressed entries:

    p_j = exp(scale q . kv_j) / (exp(sink) + sum_i exp(scale q . kv_i)),  out = sum_j p_j kv_j

with one learned `sink` logit per head, whose value is zero. A window's tokens may be in entries as
well; nothing is excluded. The order of the sums is that of positions, then of entries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import CaseMaker, Inputs, OpCase, Part, Segment
from luce_deepseek_v4.ops.case_batches import (
    CASE_LAYOUT,
    filled_entries,
    filled_ring,
    some_rows,
)
from luce_deepseek_v4.ops.entry_cache import EntryLayout


def recent_rows(ring: Tensor, slot: int, position: int, window: int) -> Tensor:
    """Float32 ring entries [n, D] of the last `window` positions up to this one, oldest first."""
    seen = torch.arange(max(0, position - window + 1), position + 1, device=ring.device)
    return ring[slot, seen % ring.shape[1]].float()


def attend(
    q: Tensor,  # [heads, D] float32
    kv: Tensor,  # [n, D] float32
    sinks: Tensor,  # [heads] float32
    scale: float,
) -> Tensor:  # [heads, D]
    scores = torch.cat((q @ kv.t() * scale, sinks[:, None]), -1)
    return scores.softmax(-1)[:, :-1] @ kv


def out_shape(q: Tensor, *step_args: Any, **constants: Any) -> tuple[int, ...]:
    return tuple(q.shape)


MakePicks = Callable[[CaseMaker, PackedBatch], Tensor]


def attention_case(
    name: str,
    segments: tuple[Segment, ...],
    facts: Mapping[str, Any],
    make_picks: MakePicks | None,
    *,
    ring: int,
    ring_dtype: torch.dtype = torch.float32,
) -> OpCase:
    """A case of either op: the rings hold what rows may see, and so do the entries' caches."""
    heads, dim, ratio = facts["heads"], facts["head_dim"], facts["ratio"]

    def make(maker: CaseMaker) -> Inputs:
        case = maker.batch(segments, CASE_LAYOUT)
        q = maker.columns(case.batch.rows, heads, dim)
        rings = filled_ring(maker, case, ring, dim, ring_dtype)
        if ratio:
            layout = EntryLayout(ratio=ratio, head_dim=dim, cache_type=facts["cache_type"])
            cache = filled_entries(case, layout, maker.device, lambda n: maker.normal32(n, dim))
        else:
            cache = torch.full((1, 1, dim), float("nan"), device=maker.device)
        picks = None if make_picks is None else make_picks(maker, case.batch)

        def args(rows: slice, batch: PackedBatch) -> tuple[Any, ...]:
            chosen = () if picks is None else (picks[rows],)
            return (q[rows], *chosen, batch, rings, cache)

        alone, split = [], []
        for number in range(len(segments)):
            batch, where = case.alone(number)
            alone.append(Part(args(where, batch), where))
            split += [Part(args(here, one), here) for here, one in some_rows(case, number)]
        everything = slice(0, case.batch.rows)
        sinks = maker.normal32(heads)
        return Inputs(
            args(everything, case.batch), (sinks,), alone=tuple(alone), split=tuple(split)
        )

    return OpCase(name, facts, make)
