"""A kernel that has been chosen, with its constants and prepared weights: a plain callable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from luce_core.ops.symbols import Symbol

if TYPE_CHECKING:
    from luce_core.ops.kernel import Kernel
    from luce_core.ops.spec import OpSpec


class Binding(NamedTuple):
    """What was chosen for an op, for the start screen, `/props`, `luce ops` and conformance."""

    op: str
    provider: str
    facts: Mapping[str, Any]
    row_invariant: bool
    split_invariant: bool
    isa: str = ""  # where the provider has a choice


class BoundOp:
    """Call it with the op's step arguments; it returns the output, or None if the op has none.

    Given tensors it runs at once into a fresh output. Given recording symbols it adds itself to
    the recording. `kernel`, `facts`, `constants` and `weights` are what a provider compiles from.
    """

    __slots__ = (
        "_run",
        "_shape",
        "constants",
        "device",
        "facts",
        "kernel",
        "out_dtype",
        "spec",
        "weights",
    )

    def __init__(
        self,
        spec: OpSpec,
        kernel: Kernel,
        *,
        facts: Mapping[str, Any],
        weights: tuple[Any, ...],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.spec = spec
        self.kernel = kernel
        self.facts = facts
        self.weights = weights
        self.device = device
        self.constants = spec.constants(facts, device)
        self._run: Callable[..., None] = partial(kernel.fn, **self.constants)
        self._shape: Callable[..., tuple[int, ...]] | None = None
        self.out_dtype = dtype
        if spec.out is not None:
            self._shape = partial(spec.out.shape, **self.constants)
            self.out_dtype = spec.out.dtype or facts.get("out_dtype") or dtype

    def __call__(self, *args: Any) -> Any:
        if isinstance(args[0], Symbol):
            return args[0].recorder.add(self, args)
        if self._shape is None:
            self._run(*args, *self.weights)
            return None
        out = torch.empty(self._shape(*args), dtype=self.out_dtype, device=self.device)
        self._run(*args, *self.weights, out)
        return out

    def out_shape(self, args: tuple[Any, ...]) -> tuple[int, ...]:
        """The output's shape for these step arguments; only their `.shape` is read."""
        assert self._shape is not None, self.spec.name
        return self._shape(*args)

    def run_into(self, args: tuple[Any, ...], out: Tensor | None) -> None:
        """Run on tensors with an output of the caller's (None if the op has none)."""
        if out is None:
            self._run(*args, *self.weights)
        else:
            self._run(*args, *self.weights, out)

    @property
    def binding(self) -> Binding:
        return Binding(
            self.spec.name,
            self.kernel.provider,
            self.facts,
            self.kernel.row_invariant,
            self.kernel.split_invariant,
        )

    def __repr__(self) -> str:
        return f"BoundOp({self.spec.name}, {self.kernel.provider})"
