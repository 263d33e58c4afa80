"""Calls of ops of gated DeltaNet layers, at the shapes of the 27B model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from luce_kernels_rocm.aot.steps import step
from luce_kernels_rocm.ops.causal_conv1d import causal_conv1d
from luce_kernels_rocm.ops.conv_replay import conv_replay
from luce_kernels_rocm.ops.gated_delta import gated_delta
from luce_kernels_rocm.ops.gated_delta_replay import gated_delta_replay

KEY_HEADS, HEADS, DIM, TAPS = 16, 48, 128, 4
CHANNELS = (2 * KEY_HEADS + HEADS) * DIM
ROWS, SLOTS, LOGGED = 6, 2, 8

Call = tuple[str, Callable[[], None], bool]


def state_calls(dtype: torch.dtype) -> Iterator[Call]:
    """(name, call, whether a decode step makes it)."""
    conv: dict[str, Any] = {"channels": CHANNELS, "kernel": TAPS}
    rule: dict[str, Any] = {
        "key_heads": KEY_HEADS,
        "value_heads": HEADS,
        "key_dim": DIM,
        "value_dim": DIM,
    }
    x = torch.empty(ROWS, CHANNELS, dtype=dtype)
    conv_state = torch.empty(SLOTS, TAPS - 1, CHANNELS)
    conv_log = torch.empty(SLOTS, LOGGED, CHANNELS)
    taps, accepted = torch.empty(CHANNELS, TAPS), torch.zeros(SLOTS, dtype=torch.int32)
    for batch in (step(0), step(1)):
        call = partial(causal_conv1d, x, batch, conv_state, conv_log, taps, x, **conv)
        yield "causal_conv1d", call, batch.num_prefill == 0
    yield "conv_replay", partial(conv_replay, step(0), accepted, conv_log, conv_state, **conv), True
    rates = torch.empty(ROWS, HEADS, dtype=dtype)
    state = torch.empty(SLOTS, HEADS, DIM, DIM)
    logs = (
        torch.empty(SLOTS, LOGGED, KEY_HEADS, DIM),
        torch.empty(SLOTS, LOGGED, HEADS, DIM),
        torch.empty(SLOTS, LOGGED, HEADS),
    )
    heads = torch.empty(HEADS)
    out = torch.empty(ROWS, HEADS * DIM, dtype=dtype)
    prompt = replace(step(1), prefill_rows=64, max_query=64)
    for batch in (step(0), prompt):
        args = (x, rates, rates, batch, state, *logs, heads, heads, out)
        name = "gated_delta prompt" if batch.num_prefill else "gated_delta"
        yield name, partial(gated_delta, *args, eps=1e-6, **rule), batch.num_prefill == 0
    call = partial(gated_delta_replay, step(0), accepted, *logs, state, **rule)
    yield "gated_delta_replay", call, True
