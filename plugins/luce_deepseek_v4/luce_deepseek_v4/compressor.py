"""Windows of a layer's input as entries of a cache: of attention, and of its indexer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.registry import OpBinder
from luce_core.weights.tensor_claims import TensorClaims
from luce_deepseek_v4.ops.entry_cache import EntryLayout
from luce_deepseek_v4.state import EntryState


class Compressor:
    """x [T, width] -> entries written for the windows that the rows complete.

    The tensors are `prefix`_kv, _gate, _ape and _norm. Windows of 4 overlap.
    """

    def __init__(
        self,
        ops: OpBinder,
        claims: TensorClaims,
        *,
        prefix: str,
        width: int,
        layout: EntryLayout,
        rope: Mapping[str, Any],
        eps: float,
    ) -> None:
        overlap = layout.ratio == 4
        series = (2 if overlap else 1) * layout.head_dim
        self.state = EntryState(layout, overlap=overlap)
        self._values = ops.linear(claims.take(f"{prefix}_kv.weight", series, width))
        self._gates = ops.linear(claims.take(f"{prefix}_gate.weight", series, width))
        ape = claims.take(f"{prefix}_ape.weight", layout.ratio, series)
        norm = claims.take(f"{prefix}_norm.weight", layout.head_dim)
        self._compress = ops.bind(
            "compress_kv",
            weights=(ape, norm),
            ratio=layout.ratio,
            head_dim=layout.head_dim,
            overlap=overlap,
            eps=eps,
            cache_type=layout.cache_type,
            **rope,
        )

    def __call__(self, x: Tensor, batch: PackedBatch) -> None:
        state = self.state
        self._compress(self._values(x), self._gates(x), batch, state.pool, state.entries)
