"""Calls of DeepSeek V4's ops, at the shapes of its smaller model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from luce_kernels_rocm.aot.steps import step
from luce_kernels_rocm.ops.group_route import group_route
from luce_kernels_rocm.ops.hyper_begin import hyper_begin
from luce_kernels_rocm.ops.hyper_merge import hyper_merge
from luce_kernels_rocm.ops.hyper_mix import hyper_mix
from luce_kernels_rocm.ops.hyper_spread import hyper_spread
from luce_kernels_rocm.ops.moe_route_by_token import moe_route_by_token
from luce_kernels_rocm.ops.tail_rope import tail_rope
from luce_kernels_rocm.ops.window_write import window_write

WIDTH, STREAMS, HEADS, DIM, ROTARY = 4096, 4, 64, 512, 64
ROWS, SLOTS = 6, 2

Call = tuple[str, Callable[[], None], bool]


def deepseek_calls(dtype: torch.dtype) -> Iterator[Call]:
    """(name, call, whether a decode step makes it)."""
    yield from _streams(dtype)
    batch = step(0)
    route = torch.empty(ROWS, 2, 6)
    facts: dict[str, Any] = {"experts": 256, "top_k": 6, "scale": 1.5}
    rows = (torch.empty(ROWS, 256, dtype=dtype), batch, torch.empty(1000, 6), route)
    yield "moe_route_by_token", partial(moe_route_by_token, *rows, **facts), True
    yield "group_route", partial(group_route, batch, torch.empty(ROWS, 2, 8), groups=8), False
    q = torch.empty(ROWS, HEADS, DIM, dtype=dtype)
    turn: dict[str, Any] = {
        "inv_freq": torch.empty(ROTARY // 2),
        "attention_factor": 1.0,
        "head_dim": DIM,
        "rotary_dim": ROTARY,
    }
    yield "tail_rope", partial(tail_rope, q, batch, q, **turn), True
    for ring_dtype in (torch.float16, torch.bfloat16):
        ring = torch.empty(SLOTS, 143, DIM, dtype=ring_dtype)
        call = partial(window_write, q[:, 0], batch, ring)
        yield f"window_write {ring_dtype}", call, ring_dtype is torch.float16


def _streams(dtype: torch.dtype) -> Iterator[Call]:
    x, y = torch.empty(ROWS, STREAMS, WIDTH), torch.empty(ROWS, WIDTH, dtype=dtype)
    mixes = STREAMS * (2 + STREAMS)
    mix, fn = torch.empty(ROWS, mixes), torch.empty(mixes, STREAMS * WIDTH)
    facts: dict[str, Any] = {"streams": STREAMS, "eps": 1e-6, "hc_eps": 1e-6}
    yield "hyper_begin", partial(hyper_begin, y, x, streams=STREAMS), True
    for head, iterations in ((False, 20), (True, 1)):
        weights = (fn, torch.empty(mixes), torch.empty(3))
        out = mix[:, :STREAMS] if head else mix
        call = partial(hyper_mix, x, *weights, out, head=head, iterations=iterations, **facts)
        yield f"hyper_mix{' head' if head else ''}", call, not head
    yield "hyper_merge", partial(hyper_merge, x, mix, y, streams=STREAMS), True
    yield "hyper_spread", partial(hyper_spread, x, mix, y, x, streams=STREAMS), True
