"""Verify and replay against plain decoding, for whatever kernels are bound: equal bits or not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from luce_core.ops.cases import CaseMaker, Segment
from luce_core.ops.kv_layout import KvLayout
from luce_core.ops.registry import OpBinder
from luce_qwen_dflash2.config import DeltaConfig
from luce_qwen_dflash2.state import RecurrentCache

_LAYOUT = KvLayout(kv_heads=1, head_dim=32, block_size=16)


def check_replay(ops: OpBinder, config: DeltaConfig, *, rows: int, accepted: int) -> None:
    """AssertionError unless verifying `rows` rows and replaying `accepted` of them leaves the bits
    in state and output that decoding these rows one by one does."""
    maker = CaseMaker(ops.device, ops.dtype, seed=rows)
    case = maker.batch((Segment(5, rows),), _LAYOUT)
    x = maker.normal(rows, config.channels)
    alpha, beta = maker.normal(rows, config.value_heads), maker.normal(rows, config.value_heads)
    layer = _Layer(ops, config, maker)
    cache = RecurrentCache.allocate(config, slots=1, max_draft=rows - 1, device=ops.device)
    for state in (cache.conv, cache.delta):
        state.copy_(maker.normal32(*state.shape))
    decoded = RecurrentCache(cache.conv.clone(), cache.delta.clone(), *_logs(cache))

    verified = layer(x, alpha, beta, case.batch, cache)
    counts = torch.tensor([accepted, 0], dtype=torch.int32, device=ops.device)
    layer.replay(case.batch, counts, cache)
    for row in range(accepted):
        here = slice(row, row + 1)
        plain = layer(x[here], alpha[here], beta[here], case.one_row(0, row), decoded)
        assert torch.equal(plain, verified[here]), f"output of row {row} of {rows}"
    for name in ("conv", "delta"):
        ours, theirs = getattr(cache, name), getattr(decoded, name)
        assert torch.equal(ours, theirs), f"{name} state after {accepted} of {rows} rows"


def _logs(cache: RecurrentCache) -> tuple[Tensor, ...]:
    logs = (cache.conv_log, cache.key_log, cache.delta_log, cache.decay_log)
    return tuple(torch.full_like(log, float("nan")) for log in logs)


class _Layer:
    """The ops with state of a gated DeltaNet layer."""

    def __init__(self, ops: OpBinder, config: DeltaConfig, maker: CaseMaker) -> None:
        conv: dict[str, Any] = {"channels": config.channels, "kernel": config.kernel}
        rule: dict[str, Any] = {
            "key_heads": config.key_heads,
            "value_heads": config.value_heads,
            "key_dim": config.key_dim,
            "value_dim": config.value_dim,
        }
        taps = maker.normal32(config.channels, config.kernel, std=0.5)
        rates = -maker.normal32(config.value_heads).abs()
        bias = maker.normal32(config.value_heads)
        self._conv = ops.bind("causal_conv1d", weights=(taps,), **conv)
        self._rule = ops.bind("gated_delta", weights=(rates, bias), eps=1e-6, **rule)
        self._conv_replay = ops.bind("conv_replay", **conv)
        self._rule_replay = ops.bind("gated_delta_replay", **rule)

    def __call__(
        self, x: Tensor, alpha: Tensor, beta: Tensor, batch: Any, cache: RecurrentCache
    ) -> Tensor:
        mixed = self._conv(x, batch, cache.conv, cache.conv_log)
        logs = (cache.key_log, cache.delta_log, cache.decay_log)
        out: Tensor = self._rule(mixed, alpha, beta, batch, cache.delta, *logs)
        return out

    def replay(self, batch: Any, accepted: Tensor, cache: RecurrentCache) -> None:
        logs = (cache.key_log, cache.delta_log, cache.decay_log)
        self._conv_replay(batch, accepted, cache.conv_log, cache.conv)
        self._rule_replay(batch, accepted, *logs, cache.delta)
