"""Counts which experts are picked, beside the pass and without waiting for the device."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from luce_core.errors import ConfigError
from luce_deepseek_v4.config import ModelConfig
from luce_deepseek_v4.moe import RoutedExperts
from luce_deepseek_v4.usage import UsageProfile

log = logging.getLogger(__name__)


class RouteCounts:
    """The layers' routes become further outputs of the pass; they are added up on the device and
    read once, when the engine closes.

    ConfigError at once if the file could not be written then.
    """

    def __init__(self, path: Path, config: ModelConfig, device: torch.device) -> None:
        if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
            raise ConfigError(f"--ds4-collect-routing {path}: no file can be written there")
        self._path = path
        shape = (config.layers, config.moe.experts)
        self._counts = torch.zeros(shape, dtype=torch.int64, device=device)
        self._first = torch.arange(config.layers, device=device)[:, None, None] * config.moe.experts
        self._routes: list[Tensor] = []
        self._rows = 0

    def around(self, experts: RoutedExperts) -> RoutedExperts:
        """The experts of a layer, noting its route."""

        def noted(x: Tensor, route: Tensor) -> Tensor:
            self._routes.append(route)
            return experts(x, route)

        return noted

    def with_routes(self, forward: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], Any]:
        """The pass with the layers' routes behind its outputs."""

        def both(batch: Any) -> tuple[Any, ...]:
            self._routes.clear()
            outputs = forward(batch)
            routes = tuple(self._routes)
            self._routes.clear()
            return (*outputs, *routes)

        return both

    def add(self, routes: Sequence[Tensor]) -> None:
        """One route [T, 2, top_k] of each layer."""
        numbers = torch.stack([route[:, 0] for route in routes]).long() + self._first
        flat = numbers.flatten()
        self._counts.view(-1).scatter_add_(0, flat, torch.ones_like(flat))
        self._rows += routes[0].shape[0]

    def write(self) -> None:
        """Write the profile, if there was a step; what goes wrong is logged, since the engine is
        closing."""
        if not self._rows:
            log.warning("--ds4-collect-routing %s: no step was run, none is written", self._path)
            return
        profile = UsageProfile(rows=self._rows, counts=self._counts.tolist())
        try:
            profile.write(self._path)
        except OSError as error:
            log.error("--ds4-collect-routing %s: %s", self._path, error.strerror or error)
        else:
            log.info("%s: the experts' usage in %d rows", self._path, self._rows)
