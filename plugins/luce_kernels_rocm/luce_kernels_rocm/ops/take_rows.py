"""take_rows: what gather_rows does, with places for rows."""

from __future__ import annotations

from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_kernels_rocm.ops.gather_rows import gather_rows


def take_rows(
    batch: PackedBatch,
    places: Tensor,  # [max_rows] int32, of which the first T count
    buffer: Tensor,  # [rows, F]
    out: Tensor,  # [T, F]
) -> None:
    gather_rows(buffer, places, out)
