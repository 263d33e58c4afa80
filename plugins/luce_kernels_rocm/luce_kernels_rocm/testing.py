"""Calls of kernels that run nothing, set against what the roofline counts of them."""

from __future__ import annotations

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import CaseMaker, Segment
from luce_core.ops.kv_layout import KvLayout
from luce_kernels_rocm.roofline.moved import Cost
from luce_kernels_rocm.roofline.shapes import Step

HALF = torch.float16


def empty(*shape: int) -> Tensor:
    """Float16 activations of any values."""
    return torch.empty(*shape, dtype=HALF)


def nbytes(*tensors: Tensor) -> int:
    """Bytes of them all."""
    return sum(tensor.nbytes for tensor in tensors)


def batch_of(step: Step, layout: KvLayout) -> PackedBatch:
    """A step as kernels get it."""
    segment = Segment(step.context, step.rows, step.prefill)
    return CaseMaker("cpu", HALF).batch([segment] * step.segments, layout).batch


def check_cost(cost: Cost, programs: list[int]) -> None:
    """AssertionError unless the calls since the last check had the programs that are counted, and
    these move no less than the least."""
    assert sum(programs) == cost.moved.programs
    assert cost.moved.nbytes >= cost.least.read_bytes
    programs.clear()
