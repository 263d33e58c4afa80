"""Calls of the ops of block drafts, at the shapes of a draft of the 27B model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from luce_kernels_rocm.aot.steps import step
from luce_kernels_rocm.ops.dynamic_conv import dynamic_conv
from luce_kernels_rocm.ops.ring_write import ring_write

WIDTH, KV_HEADS, HEADS, DIM = 5120, 8, 32, 128
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
