"""The contract between the core and an engine: what a backend plugin implements.

This module imports neither torch nor a model file reader, so that a plugin can be listed and its
API version checked before its heavy modules are imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pluggy

from luce_core.device import Device
from luce_core.errors import PluginError
from luce_core.hookspecs import PROJECT

if TYPE_CHECKING:
    from pydantic import BaseModel

    from luce_core.kv.slot_table import Slot
    from luce_core.ops.registry import OpBinder
    from luce_core.plan import StepPlan, StepResult
    from luce_core.request import Request
    from luce_core.sampling.sampler import Sampler
    from luce_core.weights.gguf_file import GgufFile

SEQ_ENGINE_API = 1

hookimpl = pluggy.HookimplMarker(PROJECT)
_step_hookspec = pluggy.HookspecMarker(PROJECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillLimits:
    """What an engine takes of prompt rows in one step.

    `max_prompts` prompts at once, `rows_per_slot` of each, `rows_total` together, handed out in
    grants of `quantum` rows.
    """

    max_prompts: int
    rows_per_slot: int
    rows_total: int
    quantum: int

    def __post_init__(self) -> None:
        if min(self.max_prompts, self.rows_per_slot, self.rows_total, self.quantum) < 1:
            raise PluginError(f"every prefill limit must be at least 1, got {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCapabilities:
    """What an engine can do; fixed after load. Counts are tokens unless named otherwise.

    `with_decode` limits prompt rows in steps that also decode, `idle` in steps that do not, `lone`
    for a single prompt with nobody decoding. `max_step_rows` bounds all rows of a step, drafts
    included.
    """

    max_slots: int
    max_context: int
    block_size: int
    vocab_size: int
    max_step_rows: int
    with_decode: PrefillLimits
    idle: PrefillLimits
    lone: PrefillLimits
    max_draft: int = 0
    api_version: int = SEQ_ENGINE_API


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Bytes that an engine asks of its device, for the sum behind the KV pool's size.

    `weights_to_load` is what will still be allocated for weights after `build` returned;
    `bytes_per_slot` is per-slot state (recurrent state, rings), of which slots + 1 exist.
    """

    bytes_per_token: int
    bytes_per_slot: int = 0
    weights_to_load: int = 0
    draft: int = 0
    scratch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What the settings ask of an engine. `max_context` None means what the model file says."""

    max_slots: int
    max_context: int | None = None
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftContext:
    """The draft model's file and what the settings ask of drafting.

    `block_size` None means what the file says. With an acceptance (accepted drafts / drafts) under
    `min_acceptance` an engine drafts less for a slot, or not at all; None leaves it the choice.
    """

    gguf: GgufFile
    device: Device
    block_size: int | None = None
    min_acceptance: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadContext:
    """All that an engine may know of its host.

    `ops.bind` resolves kernels; `sampler(vocab_size)` makes the sampler for all slots;
    `progress(done_bytes, total_bytes, what)` drives the loading bar. `draft` is there if the user
    names a draft model, which only happens to an engine that accepts `draft`. `peer_access` asks an
    engine that accepts it for direct copies between its devices.
    """

    gguf: GgufFile
    device: Device
    ops: OpBinder
    limits: EngineLimits
    sampler: Callable[[int], Sampler]
    settings: Any
    progress: Callable[[int, int, str], None]
    draft: DraftContext | None = None
    peer_access: bool = False


class EngineHooks:
    """The hooks that the step loop calls on one thread. Implement them with `@hookimpl`."""

    @_step_hookspec
    def lower_plan(self, plan: StepPlan) -> Any:
        """Turn a plan into the engine's own form. Host work only; changes no slot state.

        May raise SlotFault(ids): those requests end with `error` and the plan is rebuilt without
        them.
        """

    @_step_hookspec
    def execute(self, lowered: Any) -> StepResult:
        """Run one step. May change device state of the slots in the plan and of no others.

        A failed row is `SlotOutput.error`; anything raised is a StepFault for the whole plan.
        """
        raise AssertionError("a hook specification is never called")

    @_step_hookspec
    def commit_prefill(self, slot: Slot) -> None:
        """The slot holds its whole prompt: seed the draft. It decodes from the next plan on."""

    @_step_hookspec
    def retire(self, slot: Slot) -> None:
        """Drop the slot's device state. Idempotent, legal in any phase, must not fail."""


@runtime_checkable
class SeqEngine(Protocol):
    """One loaded model on its device. All methods are called on the engine thread only."""

    @property
    def capabilities(self) -> EngineCapabilities:
        """Fixed after load."""

    @property
    def memory_need(self) -> MemoryNeed:
        """Read once, after `build`; the core sizes the KV pool from it."""

    def allocate(self, total_blocks: int) -> None:
        """Make the cache of total_blocks + 1 blocks (the last is the null block). Called once."""

    def admit(self, slot: Slot, request: Request) -> None:
        """The slot and its blocks are reserved: clear its device state. No model compute.

        If it raises, the reservation is released and the request ends with `error`.
        """

    def lower_plan(self, plan: StepPlan) -> Any: ...

    def execute(self, lowered: Any) -> StepResult: ...

    def commit_prefill(self, slot: Slot) -> None: ...

    def retire(self, slot: Slot) -> None: ...

    def close(self) -> None:
        """Release the device. Idempotent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """What a plugin registers: how to recognise its models and how to build its engine.

    `architectures` are GGUF `general.architecture` strings; `settings` is a pydantic model whose
    fields become command-line flags; `build` may import heavy modules. `accepts` names shared
    settings that the engine honours beyond the core's own (`draft`, `cache_type_k`, ...).
    """

    name: str
    architectures: tuple[str, ...]
    build: Callable[[LoadContext], SeqEngine]
    settings: type[BaseModel] | None = None
    accepts: frozenset[str] = frozenset()
    api_version: int = SEQ_ENGINE_API


_PLAIN_METHODS = ("allocate", "admit", "close")
_STEP_HOOKS = ("lower_plan", "execute", "commit_prefill", "retire")


def check_engine(engine: object) -> SeqEngine:
    """The engine if it implements the contract, else PluginError naming the hook at fault.

    The step hooks are registered once with a throw-away pluggy manager, which compares signatures;
    what pluggy does not notice (a hook that is missing, or lacks `@hookimpl`) is checked here.
    """
    name = type(engine).__name__
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(EngineHooks)
    try:
        manager.register(engine)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginError(f"engine {name}: {error}") from error
    implemented = {caller.name for caller in manager.get_hookcallers(engine) or ()}
    for hook in _STEP_HOOKS:
        if hook not in implemented:
            found = "lacks @hookimpl" if callable(getattr(engine, hook, None)) else "is missing"
            raise PluginError(f"engine {name}: hook {hook} {found}")
    for method in _PLAIN_METHODS:
        if not callable(getattr(engine, method, None)):
            raise PluginError(f"engine {name}: method {method} is missing")
    capabilities = getattr(engine, "capabilities", None)
    if not isinstance(capabilities, EngineCapabilities):
        raise PluginError(f"engine {name}: capabilities must be an EngineCapabilities")
    if not isinstance(getattr(engine, "memory_need", None), MemoryNeed):
        raise PluginError(f"engine {name}: memory_need must be a MemoryNeed")
    if capabilities.api_version != SEQ_ENGINE_API:
        raise PluginError(
            f"engine {name}: has engine API {capabilities.api_version}, not {SEQ_ENGINE_API}"
        )
    assert isinstance(engine, SeqEngine)
    return engine
