"""What an op is: its arguments, its output, its meaning (a torch reference) and its cases.

Kernel convention, for references and plugin kernels alike: the function gets the arguments in
OpSpec order, then `out`, which it must fill completely, then the constants by keyword. An op whose
`out` is None writes into its cache arguments and gets no `out`. Row counts come from the argument
shapes or from the batch, never from facts.

Activations may be views of wider rows (a part of a fused projection): inside a row they are
contiguous, but rows may lie further apart than their width. `out` is contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from luce_core.errors import PluginError

if TYPE_CHECKING:
    from luce_core.ops.cases import OpCase


class ArgKind(StrEnum):
    """Where an argument comes from, which is what a provider must know to compile a call."""

    ACTIVATION = "activation"  # rows that another op has written
    FIELD = "field"  # one tensor of the packed batch
    BATCH = "batch"  # the whole packed batch
    CACHE = "cache"  # persistent device state; the only arguments that an op may write
    WEIGHT = "weight"  # given at bind, prepared once


class Rows(StrEnum):
    """Which axis an argument's first dimension is."""

    TOKENS = "tokens"  # T
    LOGITS = "logits"  # L
    SEGMENTS = "segments"  # S
    ANY = "any"  # any of these; the output has the same
    NONE = "none"  # no row axis


@dataclass(frozen=True, slots=True)
class ArgSpec:
    """One argument. `shape` names its dimensions for readers; weights come last in an op.

    `written` marks a cache that the op writes, `optional` a weight that may be None. A kernel's
    `prepare` makes the first weight and those marked `prepared`; others come as float32.
    """

    name: str
    kind: ArgKind
    shape: tuple[str, ...] = ()
    rows: Rows = Rows.NONE
    written: bool = False
    optional: bool = False
    prepared: bool = False


@dataclass(frozen=True, slots=True)
class OutSpec:
    """The output. `shape(*args, **constants)` gets the call's arguments, or when recording objects
    with the same `.shape`; its first dimension must be the row count. `dtype` None is the
    activation dtype.
    """

    rows: Rows
    shape: Callable[..., tuple[int, ...]]
    dtype: torch.dtype | None = None


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A kernel may differ from the float32 reference by atol + rtol * |reference|."""

    atol: float
    rtol: float


ROUNDED = MappingProxyType(
    {
        torch.float32: Tolerance(2e-5, 2e-5),
        torch.float16: Tolerance(2e-3, 2e-3),
        torch.bfloat16: Tolerance(1.6e-2, 1.6e-2),
    }
)
"""For ops with a few roundings per element."""

SUMMED = MappingProxyType(
    {
        torch.float32: Tolerance(2e-4, 2e-4),
        torch.float16: Tolerance(1e-2, 1e-2),
        torch.bfloat16: Tolerance(6e-2, 4e-2),
    }
)
"""For ops that sum hundreds of products of order one."""

EXACT = MappingProxyType(
    {
        torch.float32: Tolerance(0.0, 0.0),
        torch.float16: Tolerance(0.0, 0.0),
        torch.bfloat16: Tolerance(0.0, 0.0),
    }
)
"""For ops that only copy or compare."""


def same_constants(facts: Mapping[str, Any], device: torch.device) -> Mapping[str, Any]:
    """The usual `constants`: kernels get the facts as they were given."""
    return facts


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpec:
    """An op, listed once. `cases()` yields its parity cases.

    `facts` names the facts that `bind` requires and `optional_facts` those with defaults; others
    are refused. `constants(facts, device)` turns facts into what kernels get by keyword, once at
    bind (rope: the frequencies), so that a formula stands in one place. `prepare(weight, device)`
    is the reference's; None passes weights on as they are. `recordable` False means that the op
    cannot be replayed from the batch header alone.
    """

    name: str
    doc: str
    args: tuple[ArgSpec, ...]
    out: OutSpec | None
    reference: Callable[..., None]
    cases: Callable[[], Iterable[OpCase]]
    facts: tuple[str, ...] = ()
    optional_facts: Mapping[str, Any] = field(default_factory=dict)
    tolerance: Mapping[torch.dtype, Tolerance] = field(default_factory=lambda: ROUNDED)
    constants: Callable[[Mapping[str, Any], torch.device], Mapping[str, Any]] = same_constants
    prepare: Callable[[Any, torch.device], Any] | None = None
    row_invariant: bool = False
    split_invariant: bool = False
    recordable: bool = True

    def __post_init__(self) -> None:
        kinds = [arg.kind for arg in self.args]
        if not kinds or kinds[0] in (ArgKind.CACHE, ArgKind.WEIGHT):
            raise PluginError(f"op {self.name}: the first argument must come from the step")
        if ArgKind.WEIGHT in kinds and set(kinds[kinds.index(ArgKind.WEIGHT) :]) != {
            ArgKind.WEIGHT
        }:
            raise PluginError(f"op {self.name}: weights must be the last arguments")
        if self.out is None and not any(arg.written for arg in self.args):
            raise PluginError(f"op {self.name}: has no output and writes no cache")

    @property
    def step_args(self) -> tuple[ArgSpec, ...]:
        """The arguments of each call."""
        return tuple(arg for arg in self.args if arg.kind is not ArgKind.WEIGHT)

    def prepared_weights(
        self,
        weights: tuple[Any, ...],
        prepare: Callable[[Any, torch.device], Any],
        plain: Callable[[Any, torch.device], Any],
        device: torch.device,
    ) -> tuple[Any, ...]:
        """What a kernel gets as its weights: by its `prepare`, or `plain` where it has no say."""
        return tuple(
            (prepare if place == 0 or arg.prepared else plain)(weight, device)
            for place, (arg, weight) in enumerate(zip(self.weight_args, weights, strict=True))
        )

    @property
    def weight_args(self) -> tuple[ArgSpec, ...]:
        """The arguments given at bind."""
        return tuple(arg for arg in self.args if arg.kind is ArgKind.WEIGHT)
