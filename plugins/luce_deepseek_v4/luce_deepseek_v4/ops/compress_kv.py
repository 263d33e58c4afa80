"""Pools the rows of each window of `ratio` tokens into one entry of the compressed cache.

DeepSeek V4 (HCA and CSA compressors, and the indexer's): for channel d of entry w

    e_d = sum_i p_i c_i,  p = softmax_i(z_i + ape_i)  over the tokens i of the window, by channel,

then RMS norm with `norm`, then rotary embedding of the last `rotary_dim` values in adjacent pairs
at position w * ratio. Where windows overlap, c, z and ape are 2 D wide and hold two series: the
first D channels belong to the next entry, the last D to the window's own, so that entry w pools the
first series of window w - 1 and then the second of window w. Entry 0 has no window before it.

A slot's state is what its open pools hold, folded in token order: for each channel the largest
logit m, s = sum exp(z - m) and a = sum exp(z - m) c. A row at position t adds to it as follows:

    if t % ratio == 0:   own = next if windows overlap and t > 0 else EMPTY;  next = EMPTY
    own  += (c[last D],  z[last D]  + ape[t % ratio, last D])
    next += (c[first D], z[first D] + ape[t % ratio, first D])       where windows overlap
    if t % ratio == ratio - 1:  entry t // ratio = rope(norm * rms(own.a / own.s))

with EMPTY = (m = -inf, s = 0, a = 0) and += the fold
m' = max(m, z), s' = s exp(m - m') + exp(z - m'), a' = a exp(m - m') + exp(z - m') c.
So a row's entry depends on nothing but its window's rows, however the prompt was cut, and rows that
start a window read no state but `next`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import CaseMaker, Inputs, OpCase, PagedCase, Part, Segment
from luce_core.ops.kv_layout import CACHE_TYPES, decode_rows
from luce_core.ops.rope_frequencies import OPTIONAL_FACTS
from luce_core.ops.spec import SUMMED, ArgKind, ArgSpec, OpSpec, Rows
from luce_deepseek_v4.ops.case_batches import CASE_LAYOUT, MIXED, one_by_one
from luce_deepseek_v4.ops.entry_cache import EntryLayout, write_entry
from luce_deepseek_v4.ops.segment_rows import segment_rows
from luce_deepseek_v4.ops.tail_rope import tail_constants, turned

OWN, NEXT = 0, 1  # the pools of a state
LOGIT, SUM, MIX = 0, 1, 2  # what a pool holds of each channel


def compress_kv(
    values: Tensor,  # [T, P D]: c
    gates: Tensor,  # [T, P D]: z
    batch: PackedBatch,
    pool: Tensor,  # [slots + 1, P, 3, D] float32  in place; P = 2 where windows overlap, else 1
    cache: Tensor,  # [blocks + 1, 128 / ratio, row]  in place
    ape: Tensor,  # [ratio, P D] float32
    norm: Tensor,  # [D] float32
    *,
    ratio: int,
    head_dim: int,
    overlap: bool,
    eps: float,
    cache_type: str,
    inv_freq: Tensor,
    attention_factor: float,
    rotary_dim: int,
) -> None:
    physical = batch.kv_rows.tolist()
    for row, _, slot, position in segment_rows(batch):
        phase = position % ratio
        state = pool[slot]
        if phase == 0:
            _begin_window(state, overlap and position > 0)
        logits = (gates[row].float() + ape[phase]).view(-1, head_dim)
        mixed = values[row].float().view(-1, head_dim)
        _fold(state[OWN], logits[-1], mixed[-1])
        if overlap:
            _fold(state[NEXT], logits[0], mixed[0])
        if phase == ratio - 1:
            pooled = state[OWN, MIX] / state[OWN, SUM]
            entry = pooled * torch.rsqrt(pooled.square().mean() + eps) * norm
            angles = float(position - phase) * inv_freq
            tail = turned(entry[-rotary_dim:], angles, attention_factor)
            entry = torch.cat((entry[:-rotary_dim], tail))
            write_entry(cache, physical[row] // ratio, entry, cache_type)


def _begin_window(state: Tensor, continues: bool) -> None:
    if continues:
        state[OWN] = state[NEXT]
        empty = state[NEXT:]
    else:
        empty = state
    empty.zero_()
    empty[:, LOGIT] = -torch.inf


def _fold(pool: Tensor, logit: Tensor, value: Tensor) -> None:
    largest = torch.maximum(pool[LOGIT], logit)
    kept, added = (pool[LOGIT] - largest).exp(), (logit - largest).exp()
    pool[MIX] = pool[MIX] * kept + added * value
    pool[SUM] = pool[SUM] * kept + added
    pool[LOGIT] = largest


def compress_constants(facts: Mapping[str, Any], device: torch.device) -> Mapping[str, Any]:
    """The facts, and the rotation's frequencies."""
    own = ("ratio", "head_dim", "overlap", "eps", "cache_type")
    return {**{name: facts[name] for name in own}, **tail_constants(facts, device)}


def cases() -> Iterator[OpCase]:
    yield _case("overlapping windows of 4", MIXED, ratio=4, dim=64, overlap=True)
    yield _case("windows of 128", MIXED, ratio=128, dim=64, overlap=False)
    yield _case("padded", MIXED, ratio=4, dim=64, overlap=True, null_segments=2)
    long = (Segment(0, 140, True),)
    yield _case("long prompt, 4", long, ratio=4, dim=64, overlap=True)
    yield _case("long prompt, 128", long, ratio=128, dim=64, overlap=False)
    decode = tuple(Segment(124 + n, 1) for n in range(6))
    yield _case("decode, real head", decode, ratio=4, dim=512, overlap=True)
    yield _case("decode, real head, 128", decode, ratio=128, dim=512, overlap=False)
    yield _case("indexer", MIXED, ratio=4, dim=128, overlap=True, rotary_dim=64)
    for cache_type in CACHE_TYPES:
        yield _case(cache_type, MIXED, ratio=4, dim=64, overlap=True, cache_type=cache_type)


def _case(
    name: str,
    segments: tuple[Segment, ...],
    *,
    ratio: int,
    dim: int,
    overlap: bool,
    cache_type: str = "f32",
    rotary_dim: int = 16,
    null_segments: int = 0,
) -> OpCase:
    layout = EntryLayout(ratio=ratio, head_dim=dim, cache_type=cache_type)
    facts = {
        "ratio": ratio,
        "head_dim": dim,
        "overlap": overlap,
        "cache_type": cache_type,
        "eps": 1e-6,
        "rotary_dim": rotary_dim,
        "theta": 160000.0,
        "attention_factor": 1.0,
        "scaling": "yarn",
        "factor": 16.0,
        "original_context": 256,
    }
    series = 2 if overlap else 1

    def make(maker: CaseMaker) -> Inputs:
        case = maker.batch(segments, CASE_LAYOUT, null_segments=null_segments)
        rows = [maker.columns(case.batch.rows, series * dim) for _ in range(2)]
        weights = (maker.normal32(ratio, series * dim), maker.normal32(dim))
        pool = _pools(maker, segments, ratio, (series, 3, dim), is_padded=null_segments > 0)
        cache = layout.allocate(case.total_blocks, maker.device)
        cache.view(torch.uint8).fill_(0xFF)
        return _inputs(case, rows, (pool, cache), weights, cache_type)

    return OpCase(name, facts, make)


def _pools(
    maker: CaseMaker,
    segments: tuple[Segment, ...],
    ratio: int,
    shape: tuple[int, int, int],
    *,
    is_padded: bool,
) -> Tensor:
    """Open pools of slots whose first row goes on with them; what is not read is NaN."""
    made = maker.normal32(len(segments) + 1, *shape)
    made[:, :, SUM] = made[:, :, SUM].abs() + 0.5
    for slot, segment in enumerate(segments):
        if segment.context % ratio == 0:
            made[slot, OWN] = float("nan")
        if segment.context == 0:
            made[slot] = float("nan")
    if not is_padded:
        made[-1] = float("nan")
    return made.to(maker.device)


def _inputs(
    case: PagedCase,
    rows: list[Tensor],
    caches: tuple[Tensor, Tensor],
    weights: tuple[Tensor, Tensor],
    cache_type: str,
) -> Inputs:
    tables = case.batch.block_tables[: len(case.segments)]

    def copies() -> tuple[Tensor, ...]:
        return tuple(cache.clone() for cache in caches)

    def observe(args: tuple[Any, ...]) -> Tensor:
        """By slot: its pools, and the entries of its blocks."""
        entries = decode_rows(args[4][tables], cache_type)
        return torch.cat((args[3][:-1].flatten(1), entries.flatten(1)), 1)

    alone, split = [], []
    for number in range(len(case.segments)):
        seen = slice(number, number + 1)
        batch, where = case.alone(number)
        alone.append(Part((*(x[where] for x in rows), batch, *copies()), where, seen=seen))
        own = copies()
        calls = [(*(x[here] for x in rows), one, *own) for here, one in one_by_one(case, number)]
        split.append(Part(calls[-1], where, tuple(calls[:-1]), seen))
    args = (*rows, case.batch, *copies())
    return Inputs(args, weights, observe, tuple(alone), tuple(split))


SPEC = OpSpec(
    name="compress_kv",
    doc=(
        "Pools each window of `ratio` tokens into one entry: by channel the softmax of gates + ape "
        "over the window's rows weighs their values; then RMS norm, and rotary embedding of the "
        "last `rotary_dim` values at the window's first position. With `overlap` the first D "
        "channels of a row count for the next entry and the last D for its own. Rows are folded "
        "into the slot's pools in token order, and a window's last row writes its entry into the "
        "paged cache."
    ),
    args=(
        ArgSpec("values", ArgKind.ACTIVATION, ("T", "P D"), Rows.TOKENS),
        ArgSpec("gates", ArgKind.ACTIVATION, ("T", "P D"), Rows.TOKENS),
        ArgSpec("batch", ArgKind.BATCH),
        ArgSpec("pool", ArgKind.CACHE, ("slots + 1", "P", "3", "D"), written=True),
        ArgSpec("cache", ArgKind.CACHE, ("blocks + 1", "128 / ratio", "row"), written=True),
        ArgSpec("ape", ArgKind.WEIGHT, ("ratio", "P D")),
        ArgSpec("norm", ArgKind.WEIGHT, ("D",)),
    ),
    out=None,
    facts=("ratio", "head_dim", "overlap", "eps", "cache_type", "rotary_dim", "theta"),
    optional_facts=OPTIONAL_FACTS,
    constants=compress_constants,
    reference=compress_kv,
    tolerance=SUMMED,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
