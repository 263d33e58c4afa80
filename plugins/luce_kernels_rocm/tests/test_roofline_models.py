"""What ops of models' plugins must move, against the sizes of real tensors, and what our programs
ask for, against the grids of real calls."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch
from luce_kernels_rocm.launch import Launch
from luce_kernels_rocm.ops.causal_conv1d import causal_conv1d
from luce_kernels_rocm.ops.gated_rms_norm import gated_rms_norm
from luce_kernels_rocm.ops.sigmoid_gate import sigmoid_gate
from luce_kernels_rocm.roofline import qwen_ops
from luce_kernels_rocm.roofline.moved import Cost
from luce_kernels_rocm.roofline.shapes import DeltaShape, Step

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import CaseMaker, Segment
from luce_core.ops.kv_layout import KvLayout

LAYOUT = KvLayout(kv_heads=2, head_dim=64, block_size=16)
HALF = torch.float16


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many programs each launch would have; nothing runs."""
    found: list[int] = []
    monkeypatch.setattr(Launch, "__call__", lambda self, grid, *args: found.append(prod(grid)))
    return found


def empty(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=HALF)


def nbytes(*tensors: torch.Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def batch_of(step: Step) -> PackedBatch:
    segment = Segment(step.context, step.rows, step.prefill)
    return CaseMaker("cpu", HALF).batch([segment] * step.segments, LAYOUT).batch


def check(cost: Cost, programs: list[int]) -> None:
    """Of the calls since the last check."""
    assert sum(programs) == cost.moved.programs
    assert cost.moved.nbytes >= cost.least.read_bytes
    programs.clear()


STEPS = [
    Step("", 3, 1, 40, False),
    Step("", 1, 200, 0, True),
    Step("", 2, 70, 10, True),
    Step("", 2, 2, 4, True),
]


@pytest.mark.parametrize("step", STEPS)
def test_convolutions_have_the_programs_that_are_counted(programs: list[int], step: Step) -> None:
    shape = DeltaShape(count=1, key_heads=2, value_heads=5, key_dim=64, value_dim=64, taps=3)
    width, slots = shape.channels, step.segments
    x, state, weight = (
        empty(step.all_rows, width),
        torch.empty(slots, 2, width),
        torch.empty(width, 3),
    )
    log, out = torch.empty(slots, 8, width), empty(step.all_rows, width)
    facts: dict[str, Any] = {"channels": width, "kernel": 3}
    causal_conv1d(x, batch_of(step), state, log, weight, out, **facts)
    cost = qwen_ops.causal_conv1d(shape, step)
    check(cost, programs)
    assert cost.least.read_bytes == nbytes(x, state, state, weight, out)


def test_gates_have_the_programs_that_are_counted(programs: list[int]) -> None:
    x, z, weight, out = empty(5, 9, 64), empty(5, 9, 64), torch.empty(64), empty(5, 9, 64)
    gated_rms_norm(x, z, weight, out, eps=1e-6)
    cost = qwen_ops.gated_rms_norm(5, 9, 64)
    check(cost, programs)
    assert cost.least.read_bytes == nbytes(x, z, weight, out)
    wide = [empty(5, 3000) for _ in range(3)]
    sigmoid_gate(*wide)
    cost = qwen_ops.sigmoid_gate(5, 3000)
    check(cost, programs)
    assert cost.least.read_bytes == nbytes(*wide)
