"""The per-process hooks, called through pluggy. The per-step hooks are in `engine.EngineHooks`.

Each register hook gets a callable to register with, so a plugin never touches our containers. A
hook implementation may take fewer arguments than its specification.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from luce_core.engine import EngineSpec
    from luce_core.ops.device_tools import DeviceTools
    from luce_core.ops.spec import OpSpec

PROJECT = "luce"
ENTRY_POINT_GROUP = "luce"

hookspec = pluggy.HookspecMarker(PROJECT)


@dataclass(frozen=True, slots=True)
class RequestSummary:
    """What is known of a request when it has ended. Times are seconds."""

    request_id: int
    client_id: str
    finish: str
    prompt_tokens: int
    completion_tokens: int
    queue_s: float
    time_to_first_token_s: float | None
    total_s: float
    preemptions: int
    proposed: int
    accepted: int


@hookspec
def luce_register_engines(register: Callable[[EngineSpec], None]) -> None:
    """Offer engines: call `register(EngineSpec(...))` once for each."""


@hookspec
def luce_register_ops(register: Callable[[OpSpec], None]) -> None:
    """Offer ops that only this plugin's models need, each with its reference and cases."""


@hookspec
def luce_register_kernels(register: Callable[..., None]) -> None:
    """Offer kernels: `register(op, fn, device=..., dtypes=..., priority=..., ...)`."""


@hookspec
def luce_register_recorders(register: Callable[..., None]) -> None:
    """Offer to replay recorded steps: `register(compile, provider=..., device=...)`."""


@hookspec
def luce_register_device_tools(register: Callable[[DeviceTools], None]) -> None:
    """Offer what `luce ops --roofline` and `luce tune` do: `register(DeviceTools(...))`."""


@hookspec
def luce_register_text_formats(register: Callable[..., None]) -> None:
    """Offer chat formats and output parsers, by name or GGUF architecture."""


@hookspec
def luce_request_finished(summary: RequestSummary) -> None:
    """A request has ended. Called on the asyncio thread; must return quickly."""
