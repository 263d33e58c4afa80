"""Parity cases: inputs that hit every branch of an op, made from a seed on any device and dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from luce_core.batch.build import BatchBuffers, pack
from luce_core.batch.packed import PackedBatch
from luce_core.ops.kv_layout import KvCache, KvLayout, encode_rows
from luce_core.plan import DecodeRow, PrefillSlice, StepPlan
from luce_core.weights.quant_types import QUANT_TYPES, QuantTensor
from luce_core.weights.synthetic_blocks import SYNTHETIC_TYPES, random_chunks

WEIGHT_TYPES = SYNTHETIC_TYPES


class Part(NamedTuple):
    """The same op on part of a case: `args` give the rows `rows` of the whole case's output.

    For an op that writes caches, `args` bring their own; `before` are calls that lead them to where
    the part begins, and `seen` says which rows of what is observed must be equal.
    """

    args: tuple[Any, ...]
    rows: slice
    before: tuple[tuple[Any, ...], ...] = ()
    seen: slice | None = None


@dataclass(frozen=True, slots=True)
class Inputs:
    """Arguments of one call. What counts is the output, and what `observe(args)` copies out of the
    caches that the op has written. `alone` and `split` repeat parts of the call as another company
    and another chunking would: a kernel that declares the invariance must give equal bits.
    """

    args: tuple[Any, ...]
    weights: tuple[Any, ...] = ()
    observe: Callable[[tuple[Any, ...]], Tensor] | None = None
    alone: tuple[Part, ...] = ()
    split: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class OpCase:
    """One case of an op; `make` is called once per kernel and dtype."""

    name: str
    facts: Mapping[str, Any]
    make: Callable[[CaseMaker], Inputs]


class Segment(NamedTuple):
    """A slot's part of a step: `rows` new rows after `context` cached tokens."""

    context: int
    rows: int
    prefill: bool = False


def row_parts(args: tuple[Any, ...]) -> tuple[Part, ...]:
    """Each row alone, for ops whose arguments all have the output's row axis."""
    rows = args[0].shape[0]
    return tuple(
        Part(tuple(arg[row : row + 1] for arg in args), slice(row, row + 1))
        for row in dict.fromkeys((0, rows // 2, rows - 1))
    )


def row_inputs(*args: Any, weights: tuple[Any, ...] = ()) -> Inputs:
    """Inputs of an op that treats every row alike."""
    parts = row_parts(args)
    return Inputs(args, weights, alone=parts, split=parts)


class CaseMaker:
    """Makes tensors for cases. Same seed, same values on every device."""

    def __init__(self, device: torch.device | str, dtype: torch.dtype, seed: int = 0) -> None:
        self.device = torch.device(device)
        self.dtype = dtype
        self._random = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, std: float = 1.0) -> Tensor:
        """An activation."""
        return self.normal32(*shape, std=std).to(self.device, self.dtype)

    def columns(self, *shape: int, std: float = 1.0) -> Tensor:
        """An activation that is part of wider rows; what lies around it is NaN."""
        rows, width = shape[0], prod(shape[1:])
        wide = torch.full((rows, width + 96), float("nan"), device=self.device, dtype=self.dtype)
        part = wide[:, 32 : 32 + width]
        part.copy_(self.normal(rows, width, std=std))
        return part.view(shape)

    def normal32(self, *shape: int, std: float = 1.0) -> Tensor:
        """Float32 values on the CPU."""
        return torch.randn(*shape, generator=self._random) * std

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Values low..high-1, int32 as in a batch."""
        made = torch.randint(low, high, shape, generator=self._random, dtype=torch.int32)
        return made.to(self.device)

    def shuffled(self, count: int) -> list[int]:
        return [int(number) for number in torch.randperm(count, generator=self._random)]

    def weight(self, n: int, k: int, qtype: str) -> QuantTensor:
        """A weight [n, k] of any of WEIGHT_TYPES, values of order 1 / sqrt(k)."""
        kind = QUANT_TYPES[qtype]
        rng = np.random.default_rng(int(self.integers(0, 1 << 30, 1)))
        raw = b"".join(random_chunks(kind, n * k, k**-0.5, 0.0, rng))
        blocks = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        return QuantTensor("weight", kind, (n, k), blocks.view(n, kind.row_bytes(k)))

    def batch(
        self,
        segments: Iterable[Segment],
        layout: KvLayout,
        *,
        blocks: list[int] | None = None,
        null_segments: int = 0,
    ) -> PagedCase:
        """Segments (prefill first) over physical blocks in random order.

        Every block that a segment does not own, the null block and the rows past a segment's end
        hold NaN: whoever reads them shows it. `blocks` fixes which physical blocks are dealt out.
        """
        return PagedCase(self, tuple(segments), layout, blocks, null_segments)


class PagedCase:
    """A packed batch, its cache, and the values that the cache was written from."""

    def __init__(
        self,
        maker: CaseMaker,
        segments: tuple[Segment, ...],
        layout: KvLayout,
        blocks: list[int] | None = None,
        null_segments: int = 0,
    ) -> None:
        self.segments = segments
        self.layout = layout
        self._device = maker.device
        needed = [-(-(s.context + s.rows) // layout.block_size) for s in segments]
        order = maker.shuffled(sum(needed) + 2) if blocks is None else blocks
        self.total_blocks = max(order) + 1
        self._owned: list[list[int]] = []
        for count in needed:
            self._owned.append(order[:count])
            order = order[count:]
        self.batch = self._pack(range(len(segments)), null_segments=null_segments)
        self.keys = [
            maker.normal32(s.context + s.rows, layout.kv_heads, layout.head_dim) for s in segments
        ]
        self.values = [
            maker.normal32(s.context + s.rows, layout.kv_heads, layout.head_dim) for s in segments
        ]

    def poisoned_cache(self) -> KvCache:
        """A cache in which every value is NaN."""
        cache = self.layout.allocate(self.total_blocks)
        for side in (cache.k, cache.v):
            side.view(torch.uint8).fill_(0xFF)
        return KvCache(cache.k.to(self._device), cache.v.to(self._device))

    def filled_cache(self) -> KvCache:
        """A cache that holds each segment's context and new rows; all else is NaN."""
        cache = self.poisoned_cache()
        for owned, keys, values in zip(self._owned, self.keys, self.values, strict=True):
            where = torch.tensor(owned, device=self._device)
            for side, rows, cache_type in (
                (cache.k, keys, self.layout.k_type),
                (cache.v, values, self.layout.v_type),
            ):
                stored = encode_rows(rows, cache_type).to(self._device)
                view = side[where].flatten(0, 1)
                view[: len(rows)] = stored
                side[where] = view.view(len(owned), -1, *view.shape[1:])
        return cache

    def alone(self, segment: int) -> tuple[PackedBatch, slice]:
        """A batch of this segment only, and its rows in the whole."""
        return self._pack([segment]), self.rows_of(segment)

    def one_row(self, segment: int, row: int) -> PackedBatch:
        """A batch that decodes only this row of this segment."""
        shorter = Segment(self.segments[segment].context + row, 1)
        return self._pack([segment], replaced=shorter)

    def piece(self, segment: int, first: int, count: int) -> PackedBatch:
        """A batch of `count` rows of this segment from its row `first` on, of the same kind."""
        whole = self.segments[segment]
        return self._pack([segment], Segment(whole.context + first, count, whole.prefill))

    def rows_of(self, segment: int) -> slice:
        start = sum(s.rows for s in self.segments[:segment])
        return slice(start, start + self.segments[segment].rows)

    def _pack(
        self,
        chosen: Iterable[int],
        replaced: Segment | None = None,
        *,
        null_segments: int = 0,
    ) -> PackedBatch:
        prefill, decode, drafts, slots = [], [], {}, {}
        numbers = list(chosen)
        for number in numbers:
            segment = replaced or self.segments[number]
            if segment.prefill:
                prefill.append(PrefillSlice(number, segment.context, (0,) * segment.rows, True))
            else:
                decode.append(DecodeRow(number, 0, segment.context, segment.rows - 1))
                drafts[number] = (0,) * (segment.rows - 1)
            table = SimpleNamespace(block_size=self.layout.block_size, blocks=self._owned[number])
            slots[number] = cast("Any", SimpleNamespace(table=table))
        plan = StepPlan(0, tuple(prefill), tuple(decode))
        buffers = BatchBuffers(
            max_rows=plan.rows + null_segments,
            max_slots=len(numbers) + null_segments,
            max_blocks=max(len(owned) for owned in self._owned) + 1,
            null_block=self.total_blocks,
            null_slot=len(self.segments),
            device=self._device,
        )
        return pack(plan, slots, buffers, drafts, null_segments=null_segments)
