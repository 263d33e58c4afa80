"""Which kernels there are, and which one an op is bound to. Nothing is looked up after load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from luce_core.device import KINDS, Device
from luce_core.errors import ConfigError, PluginError
from luce_core.host_memory import usable_cores
from luce_core.ops.bind_checks import check_weights, complete_facts
from luce_core.ops.bound import Binding, BoundOp
from luce_core.ops.devices import activation_dtype, device_arch
from luce_core.ops.kernel import (
    ANY_DEVICE,
    NO_ISAS,
    REFERENCE,
    Kernel,
    accept_all,
    check_isa,
    float32_weight,
    no_setup,
    no_table,
    same_arguments,
)
from luce_core.ops.program import (
    Compile,
    Expectant,
    Forward,
    Program,
    Recorder,
    Replay,
    build_program,
)
from luce_core.ops.spec import OpSpec
from luce_core.weights.quant_types import QuantTensor

EVERY_OP = "*"

NO_OVERRIDES: Mapping[str, str] = MappingProxyType({})


class OpRegistry:
    """All ops and kernels of the process; plugins fill it through hooks before any engine loads."""

    def __init__(self) -> None:
        self._specs: dict[str, OpSpec] = {}
        self._kernels: dict[str, list[Kernel]] = {}
        self._dormant: dict[str, list[Kernel]] = {}
        self._failures: dict[str, Exception] = {}
        self._recorders: list[Recorder] = []

    @property
    def specs(self) -> Mapping[str, OpSpec]:
        return MappingProxyType(self._specs)

    @property
    def failures(self) -> Mapping[str, Exception]:
        """Providers that could not be imported, with what they raised."""
        return MappingProxyType(self._failures)

    @property
    def providers(self) -> tuple[str, ...]:
        """Names that an override may use."""
        found = {kernel.provider for kernels in self._kernels.values() for kernel in kernels}
        return tuple(sorted(found))

    @property
    def dormant(self) -> Mapping[str, tuple[Kernel, ...]]:
        """Kernels of ops that no plugin has registered: nothing can bind them."""
        return MappingProxyType({op: tuple(kernels) for op, kernels in self._dormant.items()})

    def kernels(self, op: str) -> tuple[Kernel, ...]:
        """The kernels of an op, best first, the reference last."""
        self.spec(op)
        return tuple(sorted(self._kernels[op], key=_rank))

    def spec(self, op: str) -> OpSpec:
        """The op, or ConfigError that lists the known ones."""
        if op not in self._specs:
            raise ConfigError(f"unknown op {op!r}: known ops are {', '.join(sorted(self._specs))}")
        return self._specs[op]

    def register_op(self, spec: OpSpec) -> None:
        """Add an op with its reference. Two ops of one name are a PluginError."""
        if spec.name in self._specs:
            raise PluginError(f"op {spec.name!r} is registered twice")
        self._specs[spec.name] = spec
        self._kernels[spec.name] = [
            Kernel(
                op=spec.name,
                fn=spec.reference,
                provider=REFERENCE,
                prepare=spec.prepare or float32_weight,
                row_invariant=spec.row_invariant,
                split_invariant=spec.split_invariant,
                recordable=spec.recordable,
            ),
            *self._dormant.pop(spec.name, ()),
        ]

    def register_kernel(
        self,
        op: str,
        fn: Callable[..., None],
        *,
        device: str,
        dtypes: Iterable[torch.dtype],
        arch: Iterable[str] = (),
        priority: int = 0,
        accepts: Callable[[Mapping[str, Any]], bool] = accept_all,
        prepare: Callable[[Any, torch.device], Any] = float32_weight,
        setup: Callable[[int], None] = no_setup,
        isas: Mapping[str, Callable[[], None]] = NO_ISAS,
        read_table: Callable[[Path, str], None] = no_table,
        as_read: Callable[[Mapping[str, Any], tuple[Any, ...]], tuple[Any, ...]] = same_arguments,
        row_invariant: bool = False,
        split_invariant: bool = False,
        recordable: bool = True,
        provider: str | None = None,
    ) -> None:
        """Offer a kernel for an op. That of an op which no plugin registers stays dormant: a
        package of kernels may know ops of engines that are not installed.

        `device` is cpu, cuda, hip or any; no `dtypes` means every one; `arch` limits it to device
        architectures (`gfx1201`, `sm_90`); of those that fit, the highest `priority` wins, then
        the first registered.
        `accepts(facts)` sees the op's facts and never a tensor. `prepare(weight, device)` makes
        what the kernel gets as the op's first weight, and as others whose ArgSpec is `prepared`;
        the rest comes as float32 on the device.
        `setup(threads)` is called before the first `prepare` of an engine, once for each distinct
        function. `isas` are the instruction sets among which `--kernel-isa` can choose on this
        machine, the usual one first, each with what chooses it. `read_table(path, arch)` reads
        what `luce tune` wrote, once for each distinct function, before anything is bound.
        `as_read(facts, args)` gives
        the step arguments as the kernel rounds them before it computes (int8 activations): parity
        compares with the reference's result from these.
        `provider` defaults to the function's top package.
        """
        if device not in (*KINDS, ANY_DEVICE):
            kinds = ", ".join((*KINDS, ANY_DEVICE))
            raise PluginError(f"kernel for {op}: device {device!r} is not one of {kinds}")
        name = provider or str(getattr(fn, "__module__", "")).partition(".")[0]
        if name in ("", REFERENCE, EVERY_OP):
            raise PluginError(f"kernel for {op}: {name!r} cannot be a provider's name")
        place = self._kernels[op] if op in self._specs else self._dormant.setdefault(op, [])
        place.append(
            Kernel(
                op=op,
                fn=fn,
                provider=name,
                device=device,
                dtypes=frozenset(dtypes),
                arch=frozenset(arch),
                priority=priority,
                accepts=accepts,
                prepare=prepare,
                setup=setup,
                isas=MappingProxyType(dict(isas)),
                read_table=read_table,
                as_read=as_read,
                row_invariant=row_invariant,
                split_invariant=split_invariant,
                recordable=recordable,
            )
        )

    def register_recorder(self, compile: Compile, *, provider: str, device: str) -> None:
        """Offer to replay recordings on devices of one kind (cpu, cuda, hip or any)."""
        if device not in (*KINDS, ANY_DEVICE):
            raise PluginError(f"recorder of {provider}: unknown device {device!r}")
        self._recorders.append(Recorder(provider, device, compile))

    def recorders(self, device: Device) -> tuple[Recorder, ...]:
        """The recorders for a device, in the order of their registration."""
        return tuple(r for r in self._recorders if r.device in (ANY_DEVICE, device.kind))

    def note_failure(self, provider: str, error: Exception) -> None:
        """Keep why a provider cannot be used; automatic choice goes on without it."""
        self._failures[provider] = error

    def binder(
        self,
        device: Device,
        dtype: torch.dtype,
        overrides: Mapping[str, str] = NO_OVERRIDES,
        *,
        threads: int = 0,
        isa: str | None = None,
        table: Path | None = None,
    ) -> OpBinder:
        """What an engine binds with, on one device at one activation dtype.

        `overrides` maps an op to the provider it must use, or `*` to one that is used for every op
        it offers. Unknown ops and providers are ConfigErrors. `threads` is what a provider's
        `setup` gets; 0 stands for all usable cores. `isa` is chosen of the kernels' instruction
        sets; ConfigError where none that may be bound has it. `table` is a file of tiles, which
        every kernel that may be bound reads; ConfigError where none does.
        """
        for op, provider in overrides.items():
            if op != EVERY_OP:
                self.spec(op)
            self._check_provider(provider)
        return OpBinder(self, device, dtype, overrides, threads=threads, isa=isa, table=table)

    def _check_provider(self, provider: str) -> None:
        if provider in self.providers:
            return
        if provider in self._failures:
            raise ConfigError(f"provider {provider!r} failed to load: {self._failures[provider]}")
        raise ConfigError(f"unknown provider {provider!r}: there are {', '.join(self.providers)}")


def _rank(kernel: Kernel) -> tuple[bool, int]:
    return kernel.provider == REFERENCE, -kernel.priority


class OpBinder:
    """Binds ops for one engine at load: override, then priority, then reference."""

    def __init__(
        self,
        registry: OpRegistry,
        device: Device,
        dtype: torch.dtype,
        overrides: Mapping[str, str] = NO_OVERRIDES,
        *,
        threads: int = 0,
        isa: str | None = None,
        table: Path | None = None,
    ) -> None:
        self.device = torch.device(device.torch_name)
        self.dtype = dtype
        self._registry = registry
        self._device = device
        self._arch = device_arch(device)
        self._overrides = dict(overrides)
        self._threads = threads
        self._isa = isa
        self._set_up: set[Callable[[int], None]] = set()
        self._bound: list[Binding] = []
        self._programs: list[Program] = []
        self._expect: Callable[[], None] | None = None
        if isa is not None:
            check_isa(isa, (kernel for op in registry.specs for kernel in self._candidates(op)))
        if table is not None:
            self._read_table(table)

    def _read_table(self, table: Path) -> None:
        kernels = (kernel for op in self._registry.specs for kernel in self._candidates(op))
        readers = {kernel.read_table for kernel in kernels} - {no_table}
        if not readers:
            raise ConfigError(
                f"--kernel-table {table}: no kernel for {self._device} reads a table of tiles"
            )
        for read in readers:
            read(table, self._arch)

    def beside(self, device: Device) -> OpBinder:
        """The same for a further device of the engine, at its activation dtype; shares `bound`."""
        if device == self._device:
            return self
        isa = self._isa if device.kind == self._device.kind else None
        dtype, overrides = activation_dtype(device), self._overrides
        other = OpBinder(self._registry, device, dtype, overrides, threads=self._threads, isa=isa)
        other._bound = self._bound
        return other

    @property
    def bound(self) -> tuple[Binding, ...]:
        """Everything bound so far, in order."""
        return tuple(self._bound)

    def bind(self, op: str, *, weights: tuple[Any, ...] = (), **facts: Any) -> BoundOp:
        """The op with the best kernel for these facts.

        `weights` are the op's weight arguments: QuantTensor, Tensor or, if optional, None. Each is
        prepared once, here, and its pages of the model file are released. ConfigError for an
        unknown op, a missing or unknown fact, or an override that cannot be honoured.
        """
        spec = self._registry.spec(op)
        complete = MappingProxyType(complete_facts(spec, facts))
        check_weights(spec, weights)
        kernel = self._choose(spec, complete)
        if kernel.setup not in self._set_up:
            self._set_up.add(kernel.setup)
            kernel.choose_isa(self._isa)
            kernel.setup(self._threads or usable_cores())
        prepared = spec.prepared_weights(weights, kernel.prepare, float32_weight, self.device)
        for weight in weights:
            if isinstance(weight, QuantTensor):
                weight.release_pages()
        bound = BoundOp(
            spec,
            kernel,
            facts=complete,
            weights=prepared,
            device=self.device,
            dtype=self.dtype,
        )
        self._bound.append(bound.binding._replace(isa=kernel.isa_in_use(self._isa)))
        return bound

    @property
    def modes(self) -> tuple[str, ...]:
        """How each program runs, for the start screen and `/props`."""
        return tuple(program.mode for program in self._programs)

    def expect_step(self) -> None:
        """Tell the provider that a step follows in a moment. Engines call it before they pack."""
        if self._expect is not None:
            self._expect()

    @property
    def programs(self) -> tuple[Program, ...]:
        """Every program made so far, for profilers."""
        return tuple(self._programs)

    def program(
        self,
        forward: Forward,
        *,
        max_rows: int,
        max_logits: int,
        max_segments: int,
        max_blocks: int,
    ) -> Program:
        """The forward pass replayed by a provider if one can, else op by op. After `allocate`."""
        program = build_program(
            forward,
            self._registry.recorders(self._device),
            max_rows=max_rows,
            max_logits=max_logits,
            max_segments=max_segments,
            max_blocks=max_blocks,
        )
        self._programs.append(program)
        if isinstance(program.run, Replay) and isinstance(program.run.compiled, Expectant):
            self._expect = program.run.compiled.expect
        return program

    def linear(
        self,
        weight: QuantTensor,
        *,
        bias: QuantTensor | Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> BoundOp:
        """A linear layer [T, K] -> [T, N] for a weight [N, K], by its quant type."""
        n, k = weight.shape
        return self.bind(
            "quant_matmul",
            weights=(weight, bias),
            qtype=weight.qtype.name,
            n=n,
            k=k,
            out_dtype=out_dtype,
        )

    def embedding(self, weight: QuantTensor) -> BoundOp:
        """Rows of a table [N, K] by token id: [T] -> [T, K]."""
        n, k = weight.shape
        return self.bind("embedding_rows", weights=(weight,), qtype=weight.qtype.name, n=n, k=k)

    def _wanted(self, op: str) -> str | None:
        """The provider that an override names for the op."""
        general = self._overrides.get(EVERY_OP)
        if all(kernel.provider != general for kernel in self._registry.kernels(op)):
            general = None
        return self._overrides.get(op, general)

    def _candidates(self, op: str) -> list[Kernel]:
        """Kernels that may be bound if they accept the facts, best first."""
        wanted = self._wanted(op)
        return [
            kernel
            for kernel in self._registry.kernels(op)
            if (wanted is None or kernel.provider == wanted)
            and kernel.fits(self._device, self._arch, self.dtype)
        ]

    def _choose(self, spec: OpSpec, facts: Mapping[str, Any]) -> Kernel:
        for kernel in self._candidates(spec.name):
            if kernel.accepts(facts):
                return kernel
        kernels = self._registry.kernels(spec.name)
        offers = ", ".join(kernel.described for kernel in kernels)
        raise ConfigError(
            f"op {spec.name}: provider {self._wanted(spec.name)!r} has no kernel for {dict(facts)} "
            f"on {self._device} ({self._arch or 'any arch'}) in {self.dtype}; there are: {offers}"
        )
