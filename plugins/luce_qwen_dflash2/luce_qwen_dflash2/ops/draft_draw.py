"""Draft tokens from logits alone, drawn as the sampler will draw the target's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import CaseMaker, Inputs, OpCase, Part
from luce_core.ops.spec import EXACT, ArgKind, ArgSpec, OpSpec, OutSpec, Rows
from luce_core.sampling.noise import GumbelNoise
from luce_qwen_dflash2.ops.case_blocks import block_batch, block_rows


def draft_draw(
    logits: Tensor,  # [L, V]
    batch: PackedBatch,
    temperatures: Tensor,  # [slots + 1] float32
    noise_keys: Tensor,  # [slots + 1, K] int64, one for each row of a block
    out: Tensor,  # [L] int32
) -> None:
    starts = batch.cu_logits.tolist()
    for segment, slot in enumerate(batch.slot_ids.tolist()):
        rows = slice(starts[segment], starts[segment + 1])
        scores = logits[rows].float()
        temperature = temperatures[slot]
        if temperature > 0:
            noise = GumbelNoise(scores.shape[1], str(scores.device))
            keys = noise_keys[slot, : scores.shape[0]]
            scores = (scores - scores.amax(1, keepdim=True)) / temperature + noise.rows(keys)
        out[rows] = scores.argmax(1)


def out_shape(logits: Tensor, *step_args: Any) -> tuple[int, ...]:
    return (logits.shape[0],)


def cases() -> Iterator[OpCase]:
    for name, widths, vocab in (("blocks", (8, 2, 16, 5), 1000), ("one block", (8,), 257)):

        def make(maker: CaseMaker, widths: tuple[int, ...] = widths, vocab: int = vocab) -> Inputs:
            batch = block_batch([(0, width) for width in widths], maker.device)
            logits = maker.normal(batch.logits, vocab, std=4.0)
            logits[-1] = 0.0
            logits[-1, 5:7] = 9.0
            temperatures, keys = slot_noise(maker, len(widths))
            alone = []
            for index, rows in enumerate(block_rows([width - 1 for width in widths])):
                own = block_batch([(0, widths[index])], maker.device, slots=[index])
                alone.append(Part((logits[rows], own, temperatures, keys), rows))
            return Inputs((logits, batch, temperatures, keys), alone=tuple(alone))

        yield OpCase(name, {}, make)


def slot_noise(maker: CaseMaker, slots: int, most: int = 16) -> tuple[Tensor, Tensor]:
    """Temperatures and keys of slots and of the null slot, whose keys nobody may need; every
    second slot is greedy."""
    temperatures = torch.tensor([0.0 if slot % 2 == 0 else 0.8 for slot in range(slots + 1)])
    low, high = maker.integers(0, 1 << 30, 2, slots + 1, most).long()
    return temperatures.to(maker.device), (high << 33) - (low << 2)


SPEC = OpSpec(
    name="draft_draw",
    doc="argmax of each row; at a slot's temperature T > 0 the argmax of (row - its maximum) / T "
    "plus the Gumbel noise of the row's key. Ties go to the lowest index.",
    args=(
        ArgSpec("logits", ArgKind.ACTIVATION, ("L", "V"), Rows.LOGITS),
        ArgSpec("batch", ArgKind.BATCH),
        ArgSpec("temperatures", ArgKind.CACHE, ("slots + 1",)),
        ArgSpec("noise_keys", ArgKind.CACHE, ("slots + 1", "K")),
    ),
    out=OutSpec(Rows.LOGITS, out_shape, torch.int32),
    reference=draft_draw,
    tolerance=EXACT,
    row_invariant=True,
    cases=cases,
)
