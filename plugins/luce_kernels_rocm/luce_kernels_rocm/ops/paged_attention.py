"""paged_attention: softmax attention of ragged rows over the paged cache.

Prompts' rows: one program goes through all keys of a tile of rows. Rows of decode segments: the
keys are cut into parts at fixed positions, one program each, and a second kernel merges the parts
of a row in order. Which way a segment goes, and what is summed in which order, depends on nothing
but the segment. Lengths are read on the device: a grid may have more parts and rows than there
are. Rows of null segments, which read nothing, become 0.

A tile of queries is some rows of a segment times the query heads that share a key head.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_kernels_rocm.arch import Arch, arch_of
from luce_kernels_rocm.configs import (
    ATTENTION_PART,
    MERGED_PARTS,
    AttentionConfig,
    all_registers,
    decode_attention_config,
    prefill_attention_config,
)
from luce_kernels_rocm.jit.attention import attend_merge, attend_part, attend_prefill
from luce_kernels_rocm.jit.dtypes import TRITON_DTYPES
from luce_kernels_rocm.launch import Launch

# Elements of a cache that 32 bits cannot count; addresses of smaller ones take half the registers.
HUGE = 1 << 31


class _Kernels(NamedTuple):
    """The launches of a layer, and the rows of their tiles."""

    prefill: Launch
    prefill_rows: int
    part: Launch
    part_rows: int
    merge: Launch


def paged_attention(
    q: Tensor,  # [T, heads, D]
    batch: PackedBatch,
    k_cache: Tensor,  # [blocks + 1, block_size, kv_heads, row]
    v_cache: Tensor,  # [blocks + 1, block_size, kv_heads, row]
    out: Tensor,  # [T, heads, D]
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    k_type: str,
    v_type: str,
    scale: float,
    sinks: Tensor | None = None,  # [heads]
) -> None:
    """`sinks` are logits that take part in a head's softmax without a value. Where both caches are
    one, its rows are keys and values at once."""
    kernels = _kernels(
        arch_of(q.device),
        heads,
        kv_heads,
        head_dim,
        block_size,
        k_type,
        v_type,
        k_cache.data_ptr() == v_cache.data_ptr(),
        max(k_cache.numel(), v_cache.numel()) >= HUGE,
        q.dtype,
    )
    steps = (q.stride(0), batch.block_tables.stride(0), k_cache.shape[0] - 1)
    where = (batch.positions, batch.cu_seqlens, batch.context_lens, batch.block_tables)
    if batch.num_prefill:
        grid = (triton.cdiv(batch.max_query, kernels.prefill_rows), batch.num_prefill, kv_heads)
        kernels.prefill(grid, q, *where, k_cache, v_cache, sinks, out, *steps, scale)
    segments = batch.segments - batch.num_prefill
    if segments == 0:
        return
    rows = batch.rows - batch.prefill_rows
    # No decode segment has more rows than remain when every other one has its least.
    longest = min(batch.max_query, rows - segments + 1)
    tiles = triton.cdiv(longest, kernels.part_rows)
    parts = triton.cdiv(batch.max_context, ATTENTION_PART)
    figures = torch.empty(rows * heads * parts * (head_dim + 2), device=q.device)
    sums, bests, totals = figures.split(
        [rows * heads * parts * head_dim, rows * heads * parts, rows * heads * parts]
    )
    kernels.part(
        (segments * tiles, parts, kv_heads),
        q,
        *where,
        k_cache,
        v_cache,
        sums,
        bests,
        totals,
        batch.num_prefill,
        batch.prefill_rows,
        tiles,
        parts,
        *steps,
        scale,
    )
    kernels.merge(
        (rows, heads),
        batch.positions,
        sums,
        bests,
        totals,
        sinks,
        out,
        batch.prefill_rows,
        parts,
    )


@cache
def _kernels(
    arch: Arch,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    k_type: str,
    v_type: str,
    shared: bool,
    is_huge: bool,
    dtype: torch.dtype,
) -> _Kernels:
    group = triton.next_power_of_2(heads // kv_heads)
    block = triton.next_power_of_2(head_dim)
    facts: dict[str, Any] = {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "GROUP": heads // kv_heads,
        "BGROUP": group,
        "BLOCK_SIZE": block_size,
        "K_TYPE": k_type,
        "V_TYPE": v_type,
        "SHARED": shared,
        "D": head_dim,
        "INDEX": tl.int64 if is_huge else tl.int32,
        "COMPUTE": TRITON_DTYPES[dtype],
    }

    def launch(kernel: Any, config: AttentionConfig, **more: Any) -> Launch:
        return Launch(
            kernel,
            warps=config.warps,
            ROWS=config.rows,
            KEYS=config.keys,
            PIECES=config.pieces,
            BD=block // config.pieces,
            **facts,
            **more,
        )

    prefill = prefill_attention_config(arch, group, head_dim, (k_type, v_type))
    part = decode_attention_config(arch, group, head_dim)
    return _Kernels(
        launch(attend_prefill, prefill, RELOAD=prefill.reload),
        prefill.rows,
        launch(attend_part, part, PART=ATTENTION_PART, **all_registers(arch, part.warps)),
        part.rows,
        Launch(
            attend_merge,
            warps=1,
            HEADS=heads,
            D=head_dim,
            BD=block,
            PART=ATTENTION_PART,
            AT_ONCE=MERGED_PARTS,
        ),
    )
