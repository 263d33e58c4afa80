"""Attention of draft blocks over their slots' rings and over their own rows.

A block of B rows stands at positions s..s+B-1, where s = context_lens. Its keys are the ring's
entries for positions before s and the block's own rows; the entry for position p lies at
p % ring. With a window, a row sees |own position - key position| < window; causal, nothing behind
itself. Each block is attended on its own, and entries outside what it sees are never read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import CaseMaker, Inputs, OpCase, Part
from luce_core.ops.spec import SUMMED, ArgKind, ArgSpec, OpSpec, OutSpec, Rows
from luce_qwen_dflash2.ops.case_blocks import block_batch, block_rows


def draft_attention(
    q: Tensor,  # [T, heads, D]
    k: Tensor,  # [T, kv_heads, D]
    v: Tensor,  # [T, kv_heads, D]
    batch: PackedBatch,
    k_ring: Tensor,  # [slots + 1, ring, kv_heads, D]
    v_ring: Tensor,  # [slots + 1, ring, kv_heads, D]
    out: Tensor,  # [T, heads, D]
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int,
    causal: bool,
) -> None:
    starts = batch.cu_seqlens.tolist()
    ring = k_ring.shape[1]
    for segment, (slot, past) in enumerate(
        zip(batch.slot_ids.tolist(), batch.context_lens.tolist(), strict=True)
    ):
        rows = slice(starts[segment], starts[segment + 1])
        reach = min(ring, window - 1) if window else ring
        seen = torch.arange(max(0, past - reach), past, device=q.device)
        entries = seen % ring
        keys = torch.cat((k_ring[slot, entries].float(), k[rows].float()))
        values = torch.cat((v_ring[slot, entries].float(), v[rows].float()))
        own = batch.positions[rows]
        distance = own[:, None] - torch.cat((seen, own))
        visible = torch.ones_like(distance, dtype=torch.bool)
        if window:
            visible &= distance.abs() < window
        if causal:
            visible &= distance >= 0
        attended = torch.nn.functional.scaled_dot_product_attention(
            q[rows].float().transpose(0, 1)[None],
            keys.transpose(0, 1)[None],
            values.transpose(0, 1)[None],
            attn_mask=visible,
            scale=scale,
            enable_gqa=True,
        )
        out[rows] = attended[0].transpose(0, 1)


def out_shape(q: Tensor, *step_args: Any, **constants: Any) -> tuple[int, ...]:
    return tuple(q.shape)


def cases() -> Iterator[OpCase]:
    mixed = ((0, 8), (5, 3), (31, 8), (32, 2), (33, 8), (200, 8), (64, 1))
    sizes: dict[str, Any] = {"heads": 4, "kv_heads": 2, "head_dim": 64}
    yield _case("window", mixed, ring=32, window=32, causal=False, **sizes)
    yield _case("causal window", mixed, ring=32, window=32, causal=True, **sizes)
    yield _case("narrow window", mixed, ring=8, window=4, causal=False, **sizes)
    yield _case("wide ring", mixed, ring=50, window=20, causal=False, **sizes)
    yield _case("no window", mixed, ring=256, window=0, causal=False, **sizes)
    yield _case("no window, causal", mixed, ring=256, window=0, causal=True, **sizes)
    yield _case("f16 ring", mixed, ring=32, window=32, causal=False, dtype=torch.float16, **sizes)
    one: dict[str, Any] = {"heads": 8, "kv_heads": 1, "head_dim": 128}
    yield _case("one block", ((70, 8),), ring=64, window=64, causal=False, **one)
    yield _case("no past", ((0, 16),), ring=64, window=64, causal=False, **one)


def _case(
    name: str,
    blocks: tuple[tuple[int, int], ...],
    *,
    ring: int,
    dtype: torch.dtype = torch.float32,
    **facts: Any,
) -> OpCase:
    heads, kv_heads, dim = facts["heads"], facts["kv_heads"], facts["head_dim"]

    def make(maker: CaseMaker) -> Inputs:
        slots = maker.shuffled(len(blocks))
        batch = block_batch(blocks, maker.device, slots=slots)
        rings = [_ring(maker, blocks, slots, ring, facts, dtype) for _ in range(2)]
        q = maker.columns(batch.rows, heads, dim)
        k, v = maker.normal(batch.rows, kv_heads, dim), maker.columns(batch.rows, kv_heads, dim)
        alone = []
        for index, rows in enumerate(block_rows([count for _, count in blocks])):
            own = block_batch([blocks[index]], maker.device, slots=[slots[index]])
            alone.append(Part((q[rows], k[rows], v[rows], own, *rings), rows))
        return Inputs((q, k, v, batch, *rings), alone=tuple(alone))

    return OpCase(name, {**facts, "scale": dim**-0.5}, make)


def _ring(
    maker: CaseMaker,
    blocks: tuple[tuple[int, int], ...],
    slots: list[int],
    ring: int,
    facts: dict[str, Any],
    dtype: torch.dtype,
) -> Tensor:
    """A ring that holds what its slots' blocks may see; all else, the null slot too, is NaN."""
    shape = (len(blocks) + 1, ring, facts["kv_heads"], facts["head_dim"])
    made = torch.full(shape, float("nan"), dtype=dtype)
    for slot, (past, _) in zip(slots, blocks, strict=True):
        reach = min(ring, facts["window"] - 1) if facts["window"] else ring
        for position in range(max(0, past - reach), past):
            made[slot, position % ring] = maker.normal32(*shape[2:])
    return made.to(maker.device)


SPEC = OpSpec(
    name="draft_attention",
    doc="Softmax attention of a draft block over its slot's ring and its own rows.",
    args=(
        ArgSpec("q", ArgKind.ACTIVATION, ("T", "heads", "D"), Rows.TOKENS),
        ArgSpec("k", ArgKind.ACTIVATION, ("T", "kv_heads", "D"), Rows.TOKENS),
        ArgSpec("v", ArgKind.ACTIVATION, ("T", "kv_heads", "D"), Rows.TOKENS),
        ArgSpec("batch", ArgKind.BATCH),
        ArgSpec("k_ring", ArgKind.CACHE, ("slots + 1", "ring", "kv_heads", "D")),
        ArgSpec("v_ring", ArgKind.CACHE, ("slots + 1", "ring", "kv_heads", "D")),
    ),
    out=OutSpec(Rows.TOKENS, out_shape),
    facts=("heads", "kv_heads", "head_dim", "scale", "window", "causal"),
    reference=draft_attention,
    tolerance=SUMMED,
    row_invariant=True,
    cases=cases,
)
