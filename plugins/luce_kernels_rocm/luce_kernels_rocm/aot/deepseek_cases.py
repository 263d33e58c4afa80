"""Calls of DeepSeek V4's ops, at the shapes of its smaller model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch

from luce_core.ops.kv_layout import KvLayout
from luce_kernels_rocm.aot.steps import step
from luce_kernels_rocm.ops.compress_kv import compress_kv
from luce_kernels_rocm.ops.group_route import group_route
from luce_kernels_rocm.ops.hyper_begin import hyper_begin
from luce_kernels_rocm.ops.hyper_merge import hyper_merge
from luce_kernels_rocm.ops.hyper_mix import hyper_mix
from luce_kernels_rocm.ops.hyper_spread import hyper_spread
from luce_kernels_rocm.ops.index_topk import index_topk
from luce_kernels_rocm.ops.moe_route_by_token import moe_route_by_token
from luce_kernels_rocm.ops.sparse_attention import sparse_attention
from luce_kernels_rocm.ops.tail_rope import tail_rope
from luce_kernels_rocm.ops.window_attention import window_attention
from luce_kernels_rocm.ops.window_write import window_write

WIDTH, STREAMS, HEADS, DIM, ROTARY = 4096, 4, 64, 512, 64
ROWS, SLOTS = 6, 2

Call = tuple[str, Callable[[], None], bool]


def deepseek_calls(dtype: torch.dtype) -> Iterator[Call]:
    """(name, call, whether a decode step makes it)."""
    yield from _streams(dtype)
    yield from _attention(dtype)
    yield from _entries(dtype)
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


def _attention(dtype: torch.dtype) -> Iterator[Call]:
    q, batch, sinks = torch.empty(ROWS, HEADS, DIM, dtype=dtype), step(0), torch.empty(HEADS)
    facts: dict[str, Any] = {"heads": HEADS, "head_dim": DIM, "window": 128, "scale": 0.04}
    for ratio, cache_type in product((0, 128, 4), ("f16", "bf16", "q8_0", "q4_0")):
        ring_dtype = torch.bfloat16 if cache_type == "bf16" else torch.float16
        ring = torch.empty(SLOTS, 143, DIM, dtype=ring_dtype)
        layout = KvLayout(
            kv_heads=1, head_dim=DIM, block_size=128 // (ratio or 128), k_type=cache_type
        )
        kinds: dict[str, Any] = {**facts, "ratio": ratio, "cache_type": cache_type}
        cache = layout.allocate(8).k.squeeze(2)
        name = f"{cache_type} ratio {ratio}"
        if ratio == 4:
            rows = (q, torch.empty(ROWS, 512), batch, ring, cache, sinks, q)
            call = partial(sparse_attention, *rows, top_k=512, **kinds)
            yield f"sparse_attention {name}", call, cache_type == "f16"
        elif ratio or cache_type in ("f16", "bf16"):
            call = partial(window_attention, q, batch, ring, cache, sinks, q, **kinds)
            yield f"window_attention {name}", call, False
    index: dict[str, Any] = {"heads": 64, "head_dim": 128, "ratio": 4, "cache_type": "f16"}
    keys, picks = torch.empty(8, 32, 128, dtype=torch.float16), torch.empty(ROWS, 128)
    scored, gates = torch.empty(ROWS, 64, 128, dtype=dtype), torch.empty(ROWS, 64, dtype=dtype)
    call = partial(index_topk, scored, gates, batch, keys, picks, top_k=128, **index)
    yield "index_topk", call, False


def _entries(dtype: torch.dtype) -> Iterator[Call]:
    turn: dict[str, Any] = {
        "inv_freq": torch.empty(ROTARY // 2),
        "attention_factor": 1.0,
        "rotary_dim": ROTARY,
        "eps": 1e-6,
    }
    for ratio, dim, cache_type, is_critical in (
        (4, DIM, "f16", True),
        (4, DIM, "q8_0", False),
        (4, 128, "f16", True),
        (128, DIM, "f16", True),
        (128, DIM, "q8_0", False),
    ):
        series = 2 if ratio == 4 else 1
        layout = KvLayout(kv_heads=1, head_dim=dim, block_size=128 // ratio, k_type=cache_type)
        pool, weights = torch.empty(SLOTS, series, 3, dim), torch.empty(ratio, series * dim)
        rows = torch.empty(ROWS, series * dim, dtype=dtype)
        args = (rows, rows, step(0), pool, layout.allocate(2).k.squeeze(2), weights)
        facts: dict[str, Any] = {
            "ratio": ratio,
            "head_dim": dim,
            "overlap": series == 2,
            "cache_type": cache_type,
            **turn,
        }
        call = partial(compress_kv, *args, torch.empty(dim), **facts)
        yield f"compress_kv {cache_type} ratio {ratio} of {dim}", call, is_critical
