"""Where an engine's routed experts are, as the settings ask, and what is counted about them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from luce_core.device import Device
from luce_core.engine import LoadContext
from luce_core.errors import ConfigError
from luce_core.ops.registry import OpBinder
from luce_core.weights.tensor_claims import TensorClaims
from luce_deepseek_v4.config import ModelConfig
from luce_deepseek_v4.moe import LocalExperts, RoutedExperts
from luce_deepseek_v4.placement import MB, expert_sizes, place_experts
from luce_deepseek_v4.route_counts import RouteCounts
from luce_deepseek_v4.settings import DeepSeekSettings
from luce_deepseek_v4.two_devices import TwoDevices
from luce_deepseek_v4.usage import read_usage

log = logging.getLogger(__name__)


class ExpertHost:
    """Gives layers their experts; told of each step's end, for the counts."""

    def __init__(
        self, devices: TwoDevices | None, counts: RouteCounts | None, *, group_rows: int
    ) -> None:
        self._devices = devices
        self._counts = counts
        self._group_rows = group_rows

    def take(
        self, ops: OpBinder, claims: TensorClaims, config: ModelConfig, layer: int
    ) -> RoutedExperts:
        """The model's `take_experts`. Where no expert is far, steps are replayed as ever."""
        experts: RoutedExperts
        if self._devices is None or not self._devices.placement.far_experts:
            experts = LocalExperts(ops, claims, config, layer=layer, group_rows=self._group_rows)
        else:
            experts = self._devices.take(claims, config, layer)
        return experts if self._counts is None else self._counts.around(experts)

    def forward_of(self, forward: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], Any]:
        """The pass to record: with further outputs for `step_done` where routes are counted."""
        return forward if self._counts is None else self._counts.with_routes(forward)

    def step_done(self, further: Sequence[Tensor]) -> None:
        """After each step, with what the pass gave behind logits and best tokens."""
        if self._counts is not None:
            self._counts.add(further)
        if self._devices is not None:
            self._devices.step_done()

    @property
    def facts(self) -> Mapping[str, object]:
        """For `/props`."""
        facts: dict[str, object] = {"expert_group_rows": self._group_rows}
        if self._devices is not None:
            facts["expert_devices"] = self._devices.facts
        return facts

    def close(self) -> None:
        """Idempotent."""
        if self._devices is not None:
            self._devices.close()
        if self._counts is not None:
            self._counts.write()
            self._counts = None


def open_experts(context: LoadContext, config: ModelConfig) -> ExpertHost:
    """ConfigError for settings that need a second device or that it cannot keep."""
    settings = context.settings or DeepSeekSettings()
    devices = _open_devices(context, settings, config)
    counts = None
    if settings.ds4_collect_routing is not None:
        counts = RouteCounts(settings.ds4_collect_routing, config, context.ops.device)
    return ExpertHost(devices, counts, group_rows=settings.ds4_group_rows)


def _open_devices(
    context: LoadContext, settings: DeepSeekSettings, config: ModelConfig
) -> TwoDevices | None:
    if settings.ds4_expert_device is None:
        _refuse_details(context, settings)
        return None
    if settings.ds4_expert_budget_mb is None:
        raise ConfigError(
            f"--ds4-expert-device {settings.ds4_expert_device} needs --ds4-expert-budget-mb, the "
            "MB of experts that stay on the target device"
        )
    far = Device.parse(settings.ds4_expert_device)
    usage: Sequence[Sequence[int]] = [[0] * config.moe.experts] * config.layers
    if settings.ds4_expert_profile is not None:
        usage = read_usage(settings.ds4_expert_profile, config).counts
    sizes = expert_sizes(context.gguf, config)
    placement = place_experts(usage, sizes, budget=settings.ds4_expert_budget_mb * MB)
    devices = TwoDevices(
        context.ops,
        (context.device, far),
        placement,
        batched=settings.ds4_batch_copies,
        grouped=settings.ds4_group_experts,
        group_rows=settings.ds4_group_rows,
        peer_access=context.peer_access,
    )
    log.info(
        "%d experts (%.0f MB) on %s, %d (%.0f MB) on %s",
        placement.near_experts,
        placement.near_bytes / MB,
        context.device,
        placement.far_experts,
        placement.far_bytes / MB,
        far,
    )
    return devices


def _refuse_details(context: LoadContext, settings: DeepSeekSettings) -> None:
    fields = DeepSeekSettings.model_fields
    given = [
        name
        for name in (
            "ds4_expert_budget_mb",
            "ds4_expert_profile",
            "ds4_batch_copies",
            "ds4_group_experts",
        )
        if getattr(settings, name) != fields[name].default
    ]
    if context.peer_access:
        given.append("peer_access")
    if given:
        flag = given[0].replace("_", "-")
        raise ConfigError(f"--{flag} needs --ds4-expert-device, which is not given")
