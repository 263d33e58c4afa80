"""Calls of the ops of block drafts, at the shapes of a draft of the 27B model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from luce_kernels_rocm.aot.cases import blank_weight
from luce_kernels_rocm.aot.steps import step
from luce_kernels_rocm.ops.candidate_select import candidate_select
from luce_kernels_rocm.ops.draft_attention import draft_attention
from luce_kernels_rocm.ops.draft_draw import draft_draw
from luce_kernels_rocm.ops.dynamic_conv import dynamic_conv
from luce_kernels_rocm.ops.ring_write import ring_write

WIDTH, KV_HEADS, HEADS, DIM = 5120, 8, 32, 128
VOCAB, RANK = 248_320, 256
ROWS, SLOTS = 6, 2

Call = tuple[str, Callable[[], None], bool]


def draft_calls(dtype: torch.dtype) -> Iterator[Call]:
    """(name, call, whether a decode step makes it)."""
    x, batch = torch.empty(ROWS, WIDTH, dtype=dtype), step(0)
    delta = torch.empty(ROWS, 2 * 2 * WIDTH // 16, dtype=dtype)
    base = torch.empty(2, 2, WIDTH)
    call = partial(dynamic_conv, x, delta, batch, base, x, side=1, taps=2, group=16)
    yield "dynamic_conv", call, True
    k = torch.empty(ROWS, KV_HEADS, DIM, dtype=dtype)
    ring = torch.empty(SLOTS, 2048, KV_HEADS, DIM, dtype=dtype)
    rows = (k, k, batch, torch.zeros(ROWS, dtype=torch.int32), ring, ring)
    yield "ring_write", partial(ring_write, *rows, kv_heads=KV_HEADS, head_dim=DIM), True
    q = torch.empty(ROWS, HEADS, DIM, dtype=dtype)
    facts: dict[str, Any] = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": DIM, "scale": 0.1}
    for window in (2048, 0):
        call = partial(
            draft_attention, q, k, k, batch, ring, ring, q, window=window, causal=False, **facts
        )
        yield f"draft_attention window {window}", call, window > 0
    logits, tokens = torch.empty(ROWS, VOCAB), torch.zeros(ROWS, dtype=torch.int32)
    noise = (torch.empty(SLOTS), torch.zeros(SLOTS, 16, dtype=torch.int64))
    yield "draft_draw", partial(draft_draw, logits, batch, *noise, tokens), True
    g = torch.empty(ROWS, RANK, dtype=dtype)
    for qtype in ("Q8_0", "Q4_K"):
        book = blank_weight(VOCAB, RANK, qtype).blocks
        facts = {"top_k": 16, "rank": RANK, "predecessor_type": qtype, "successor_type": qtype}
        call = partial(candidate_select, logits, g, batch, *noise, book, book, tokens, **facts)
        yield f"candidate_select {qtype}", call, qtype == "Q8_0"
