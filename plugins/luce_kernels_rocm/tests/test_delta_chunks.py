"""What the chunk form of the delta rule promises about cuts of prompts, and how to do without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from luce_kernels_rocm.configs import DELTA_CHUNK
from luce_kernels_rocm.interpreter import register_interpreted
from luce_kernels_rocm.ops.gated_delta import gated_delta
from torch import Tensor

from luce_core.device import Device
from luce_core.ops.cases import CaseMaker, Segment
from luce_core.ops.core_ops import core_registry
from luce_core.ops.kv_layout import KvLayout

target_ops = pytest.importorskip("luce_qwen_dflash2.ops.target_ops")

LAYOUT = KvLayout(kv_heads=1, head_dim=32, block_size=16)
FACTS: dict[str, Any] = {"key_heads": 1, "value_heads": 2, "key_dim": 16, "value_dim": 24}
START, ROWS = 5, 100


def through(cuts: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """(output, state) of a prompt that is cut behind so many rows."""
    maker = CaseMaker("cpu", torch.float16)
    case = maker.batch((Segment(START, ROWS, True),), LAYOUT)
    qkv, alpha, beta = maker.normal(ROWS, 80), maker.normal(ROWS, 2), maker.normal(ROWS, 2)
    state = maker.normal32(2, 2, 16, 24)
    logs = (torch.empty(2, 8, 1, 16), torch.empty(2, 8, 2, 24), torch.empty(2, 8, 2))
    rates = (-maker.normal32(2).abs(), maker.normal32(2))
    out = torch.empty(ROWS, 48, dtype=torch.float16)
    for first, stop in zip((0, *cuts), (*cuts, ROWS), strict=True):
        here = slice(first, stop)
        rows = (qkv[here], alpha[here], beta[here], case.piece(0, first, stop - first))
        gated_delta(*rows, state, *logs, *rates, out[here], eps=1e-6, **FACTS)
    return out, state[:1]


def test_a_prompt_cut_between_chunks_gives_the_bits_of_the_whole() -> None:
    second, third = (place * DELTA_CHUNK - START for place in (1, 2))
    for whole, cut in zip(through(()), through((second, third)), strict=True):
        assert torch.equal(whole, cut)


def test_an_override_has_all_prompts_in_token_order() -> None:
    registry = core_registry()
    for spec in target_ops.TARGET_OPS:
        registry.register_op(spec)
    register_interpreted(registry.register_kernel)
    weights = (torch.ones(2), torch.ones(2))
    bound = {}
    for name, overrides in (
        ("luce_kernels_rocm", {}),
        ("luce_kernels_rocm_in_order", {"gated_delta": "luce_kernels_rocm_in_order"}),
    ):
        binder = registry.binder(Device("cpu"), torch.float16, overrides)
        bound[name] = binder.bind("gated_delta", weights=weights, eps=1e-6, **FACTS).kernel
        assert bound[name].provider == name
    assert {name: kernel.split_invariant for name, kernel in bound.items()} == {
        "luce_kernels_rocm": False,
        "luce_kernels_rocm_in_order": True,
    }
