"""Small forward passes for tests of recordings: ops over random weights, bound to the kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from luce_core.device import Device
from luce_core.ops.cases import CaseMaker
from luce_core.ops.core_ops import core_registry
from luce_core.ops.kv_layout import KvLayout
from luce_core.ops.record import Recording, record
from luce_core.ops.registry import OpBinder
from luce_kernels_cpu import luce_register_kernels
from luce_kernels_cpu.provider import provider

WIDTH = 96
LAYOUT = KvLayout(kv_heads=1, head_dim=32, block_size=16)
Forward = Callable[[Any], Any]


class Ops:
    """Weights keep the instruction set that is in use when they are made."""

    def __init__(self, threads: int = 2) -> None:
        registry = core_registry()
        luce_register_kernels(registry.register_kernel)
        self.binder: OpBinder = registry.binder(Device("cpu"), torch.float32, threads=threads)
        own = provider()
        own.set_threads(threads)
        own.library.lk_pool_keep_all(own.pool, 1)
        self.maker = CaseMaker("cpu", torch.float32)
        self.embed = self.binder.embedding(self.maker.weight(64, WIDTH, "Q8_0"))
        self.add = self.binder.bind("add")
        self.gather = self.binder.bind("gather_rows")
        self.greedy = self.binder.bind("greedy_token")
        self.swiglu = self.binder.bind("swiglu")

    def linear(self, n: int, k: int, qtype: str = "Q4_0", *, biased: bool = False) -> Any:
        bias = self.maker.normal32(n) if biased else None
        return self.binder.linear(self.maker.weight(n, k, qtype), bias=bias)

    def norm(self, width: int) -> Any:
        weight = self.maker.normal32(width)
        return self.binder.bind("rms_norm", weights=(weight,), eps=1e-5)


def recorded(forward: Forward, *, rows: int = 40) -> Recording:
    return record(forward, max_rows=rows, max_logits=20, max_segments=8, max_blocks=8)


def as_tuple(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)
