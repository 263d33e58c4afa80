"""sparse_attention: the attention of `window_attention` over picked entries."""

from __future__ import annotations

from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_kernels_rocm.ops.window_attention import window_attention


def sparse_attention(
    q: Tensor,  # [T, heads, D]
    picks: Tensor,  # [T, top_k] float32
    batch: PackedBatch,
    ring: Tensor,  # [slots + 1, ring, D]
    cache: Tensor,  # [blocks + 1, 128 / ratio, row]
    sinks: Tensor,  # [heads] float32
    out: Tensor,  # [T, heads, D]
    *,
    heads: int,
    head_dim: int,
    window: int,
    ratio: int,
    top_k: int,
    cache_type: str,
    scale: float,
) -> None:
    window_attention(
        q,
        batch,
        ring,
        cache,
        sinks,
        out,
        heads=heads,
        head_dim=head_dim,
        window=window,
        ratio=ratio,
        cache_type=cache_type,
        scale=scale,
        picks=picks,
    )
