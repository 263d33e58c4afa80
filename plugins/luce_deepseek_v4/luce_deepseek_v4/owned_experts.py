"""The experts of a layer that lie on one of two devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from luce_core.ops.registry import OpBinder
from luce_core.weights.quant_types import QuantTensor
from luce_deepseek_v4.config import ModelConfig
from luce_deepseek_v4.placement import ROLES, weight_of


class Launches:
    """Counts the products of experts that a device was asked for, each by one call of its op. Only
    the thread of the device adds to it."""

    def __init__(self) -> None:
        self.count = 0


class OwnedExperts:
    """Runs an owner's picks; everything lies on its device.

    If `grouped`, one launch makes a product of all picks, which come by expert, so that the rows of
    an expert are done together, `group_rows` at a time; else each pick has a launch of its own.
    `turn` is held meanwhile: owners that share a processor would only wake each other's workers.
    """

    def __init__(
        self,
        ops: OpBinder,
        weights: Mapping[str, QuantTensor],
        owned: Sequence[int],
        config: ModelConfig,
        *,
        layer: int,
        grouped: bool,
        group_rows: int,
        launches: Launches,
        turn: AbstractContextManager[Any],
    ) -> None:
        self._grouped = grouped
        self._launches = launches
        self._turn = turn
        self._dtype, self._device = ops.dtype, ops.device

        def experts(role: str) -> Callable[[Tensor, Tensor], Tensor]:
            weight = weight_of(weights[role], owned)
            _, n, k = weight.shape
            facts: dict[str, Any] = {"experts": len(owned), "top_k": 1, "n": n, "k": k}
            facts["group_rows"] = group_rows
            return ops.bind("moe_matmul", weights=(weight,), qtype=weight.qtype.name, **facts)

        self._gate, self._up, self._down = map(experts, ROLES)
        self._swiglu = ops.bind("swiglu", limit=config.moe.routed_limits[layer])

    def outputs(self, x: Tensor, experts: Tensor) -> Tensor:
        """Each row of x [P, width] through its expert [P] -> [P, width]."""
        route = torch.ones(x.shape[0], 2, 1, device=self._device)
        route[:, 0, 0] = experts
        with self._turn:
            if self._grouped:
                return self._run(x, route)
            alone = (slice(place, place + 1) for place in range(x.shape[0]))
            return torch.cat([self._run(x[one], route[one]) for one in alone])

    def _run(self, x: Tensor, route: Tensor) -> Tensor:
        gate, up = self._launch(self._gate, x, route), self._launch(self._up, x, route)
        return self._launch(self._down, self._swiglu(gate, up), route)

    def _launch(
        self, product: Callable[[Tensor, Tensor], Tensor], x: Tensor, route: Tensor
    ) -> Tensor:
        self._launches.count += 1
        return product(x[:, None], route)[:, 0]
