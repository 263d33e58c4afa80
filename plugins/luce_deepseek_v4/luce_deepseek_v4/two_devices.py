"""Two devices that share the routed experts, and the traffic between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any

from luce_core.device import Device
from luce_core.ops.devices import require_device
from luce_core.ops.registry import OpBinder
from luce_core.weights.quant_types import QuantTensor
from luce_core.weights.tensor_claims import TensorClaims
from luce_deepseek_v4.config import ModelConfig
from luce_deepseek_v4.link import Link, copies_directly
from luce_deepseek_v4.owned_experts import Launches, OwnedExperts
from luce_deepseek_v4.picks import Owner
from luce_deepseek_v4.placement import Placement
from luce_deepseek_v4.split_experts import FarThread, Side, SplitExperts


class TwoDevices:
    """The engine's own device (near) and the one with the other experts (far), which may be the
    same. ConfigError if the far one is not there, or cannot copy as asked."""

    def __init__(
        self,
        ops: OpBinder,
        devices: tuple[Device, Device],
        placement: Placement,
        *,
        batched: bool,
        grouped: bool,
        group_rows: int,
        peer_access: bool,
    ) -> None:
        near, far = devices
        require_device(far)
        direct = copies_directly(near, far, peer_access=peer_access)
        self._ops = (ops, ops.beside(far))
        self.placement = placement
        self._grouped = grouped
        self._group_rows = group_rows
        self._link = Link(batched=batched, direct=direct)
        self._launches = (Launches(), Launches())
        self._turn: AbstractContextManager[Any] = Lock() if near == far else nullcontext()
        self._thread = FarThread(self._ops[1].device)
        self._facts: dict[str, object] = {
            "near": str(near),
            "far": str(far),
            "near_experts": placement.near_experts,
            "far_experts": placement.far_experts,
            "near_bytes": placement.near_bytes,
            "far_bytes": placement.far_bytes,
            "batch_copies": batched,
            "group_experts": grouped,
        }
        self._steps = 0

    def take(self, claims: TensorClaims, config: ModelConfig, layer: int) -> SplitExperts:
        """A layer's experts, each on the device that the placement names."""
        moe, prefix = config.moe, f"blk.{layer}"
        up, down = (moe.inner, config.width), (config.width, moe.inner)
        weights = {
            role: claims.take(f"{prefix}.{role}.weight", moe.experts, *shape)
            for role, shape in (("ffn_gate_exps", up), ("ffn_up_exps", up), ("ffn_down_exps", down))
        }
        owned = (self.placement.near[layer], self.placement.far[layer])
        near, far = (
            self._side(number, weights, experts, config, layer)
            for number, experts in enumerate(owned)
        )
        for weight in weights.values():
            weight.release_pages()
        return SplitExperts(near, far, self._link, self._thread)

    def _side(
        self,
        number: int,
        weights: Mapping[str, QuantTensor],
        owned: Sequence[int],
        config: ModelConfig,
        layer: int,
    ) -> Side:
        ops = self._ops[number]
        experts = None
        if owned:
            experts = OwnedExperts(
                ops,
                weights,
                owned,
                config,
                layer=layer,
                grouped=self._grouped,
                group_rows=self._group_rows,
                launches=self._launches[number],
                turn=self._turn,
            )
        owner = Owner(owned, config.moe.experts, grouped=self._grouped)
        return Side(ops, owner, experts)

    def step_done(self) -> None:
        """Bring the figures of `facts` up to date, while nothing runs. Without a far expert there
        is nothing to count: experts run as on one device."""
        if not self.placement.far_experts:
            return
        self._steps += 1
        launches = sum(each.count for each in self._launches)
        self._facts["steps"] = self._steps
        self._facts["copies"] = self._link.copies
        self._facts["expert_launches"] = launches
        self._facts["copies_per_step"] = round(self._link.copies / self._steps, 2)
        self._facts["expert_launches_per_step"] = round(launches / self._steps, 2)

    @property
    def facts(self) -> Mapping[str, object]:
        """What lies where, and the traffic of all steps so far; changes with each step."""
        return self._facts

    def close(self) -> None:
        """Idempotent."""
        self._thread.close()
