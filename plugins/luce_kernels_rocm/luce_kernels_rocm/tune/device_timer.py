"""Times a tile on a device: real calls of an op with the tile in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from luce_core.ops.cases import CaseMaker, Segment
from luce_core.ops.kv_layout import KvLayout
from luce_core.weights.quant_types import QUANT_TYPES
from luce_kernels_rocm.ops import paged_attention, quant_matmul
from luce_kernels_rocm.tiles import Tile, TileKey, tiles
from luce_kernels_rocm.timing import Clock, Run

# More than the caches of any GPU hold, so that weights come from memory as in a step.
_WEIGHTS_BYTES = 512 << 20
_MOST_COPIES = 64
# One tile serves all these counts of rows.
_NARROW_ROWS = (1, 2, 4, 8)
_PROMPT_ROWS = 512
_CONTEXT = 4096
_KV_HEADS = 2


class DeviceTimer:
    """A `Timer`; keeps the data of the latest key."""

    def __init__(self, device: torch.device, clock: Clock) -> None:
        self._device = device
        self._clock = clock
        self._key: TileKey | None = None
        self._work: tuple[tuple[Run, ...], ...] = ()

    def __call__(self, key: TileKey, tile: Tile) -> float:
        if key != self._key:
            self._work = ()  # its memory first
            self._work = self._work_of(key)
            self._key = key
        forget_launches()
        try:
            with tiles().trial(key, tile):
                return sum(self._clock.seconds(runs) for runs in self._work)
        finally:
            forget_launches()

    def _work_of(self, key: TileKey) -> tuple[tuple[Run, ...], ...]:
        match key.kernel, key.facts:
            case "narrow", (str(qtype), int(n), int(k)):
                return tuple(self._products(qtype, n, k, rows) for rows in _NARROW_ROWS)
            case "tiled", (str(qtype), int(n), int(k)):
                return (self._products(qtype, n, k, _PROMPT_ROWS),)
            case "decode_attention", (int(group), int(head_dim)):
                return (self._attention(group, head_dim, [Segment(_CONTEXT, 1)] * 4),)
            case "prefill_attention", (int(group), int(head_dim)):
                return (self._attention(group, head_dim, [Segment(0, _PROMPT_ROWS, True)]),)
        raise AssertionError(key)

    def _products(self, qtype: str, n: int, k: int, rows: int) -> tuple[Run, ...]:
        row_bytes = QUANT_TYPES[qtype].row_bytes(k)
        copies = max(1, min(_MOST_COPIES, _WEIGHTS_BYTES // (n * row_bytes)))
        x = torch.randn(rows, k, device=self._device, dtype=torch.float16)
        out = torch.empty(rows, n, device=self._device, dtype=torch.float16)
        facts: dict[str, Any] = {"qtype": qtype, "n": n, "k": k}

        def run(weight: torch.Tensor) -> Run:
            return lambda: quant_matmul.quant_matmul(x, weight, None, out, **facts)

        sizes, kind = (n, row_bytes), torch.uint8
        # Zeros: random bytes may be scales that are NaN, and what is multiplied takes one time.
        weights = (torch.zeros(sizes, dtype=kind, device=self._device) for _ in range(copies))
        return tuple(run(weight) for weight in weights)

    def _attention(self, group: int, head_dim: int, segments: list[Segment]) -> tuple[Run, ...]:
        layout = KvLayout(kv_heads=_KV_HEADS, head_dim=head_dim, block_size=16)
        heads = group * _KV_HEADS
        maker = CaseMaker(self._device, torch.float16)
        case = maker.batch(segments, layout)
        cache = case.filled_cache()
        q = maker.normal(case.batch.rows, heads, head_dim)
        out = torch.empty_like(q)
        facts = {**layout.facts, "heads": heads, "scale": head_dim**-0.5}
        return (
            lambda: paged_attention.paged_attention(q, case.batch, cache.k, cache.v, out, **facts),
        )


def forget_launches() -> None:
    """Launches keep the tile that they were made with."""
    for kept in _caches():
        kept()


def _caches() -> tuple[Callable[[], None], ...]:
    return (
        quant_matmul._narrow_launch.cache_clear,
        quant_matmul._tiled_launch.cache_clear,
        paged_attention._kernels.cache_clear,
    )
