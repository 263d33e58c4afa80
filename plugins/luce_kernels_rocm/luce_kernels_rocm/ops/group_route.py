"""group_route: one program for each row."""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_kernels_rocm.launch import Launch


@triton.jit
def _group_route(out, GROUPS: tl.constexpr, B: tl.constexpr):
    at = tl.arange(0, B)
    target = out + tl.program_id(0).to(tl.int64) * (2 * GROUPS) + at
    tl.store(target, tl.where(at < GROUPS, at, 1).to(tl.float32), mask=at < 2 * GROUPS)


def group_route(
    batch: PackedBatch,
    out: Tensor,  # [T, 2, groups] float32
    *,
    groups: int,
) -> None:
    _launch(groups)((out.shape[0],), out)


@cache
def _launch(groups: int) -> Launch:
    return Launch(_group_route, warps=1, GROUPS=groups, B=triton.next_power_of_2(2 * groups))
