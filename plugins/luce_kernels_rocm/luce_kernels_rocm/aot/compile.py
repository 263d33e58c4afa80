"""Runs cases for an architecture and reports every kernel that they launch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import triton
from triton.runtime import driver

from luce_core.errors import ConfigError
from luce_kernels_rocm.aot.cases import AotCase
from luce_kernels_rocm.aot.driver import TargetDriver
from luce_kernels_rocm.aot.report import KernelReport, figures_of
from luce_kernels_rocm.arch import Arch, arch_of


def compile_cases(cases: Iterable[AotCase], arch: Arch, cache: Path) -> Iterator[KernelReport]:
    """Compile what the cases launch. A kernel that an earlier case has launched in the same form
    is not compiled, or reported, again. `cache` keeps results from run to run.

    ConfigError in a process whose kernels are interpreted.
    """
    if triton.knobs.runtime.interpret:
        raise ConfigError("TRITON_INTERPRET is set: nothing would be compiled")
    found: list[dict[str, Any]] = []

    def listen(
        *, src: Any, metadata: Mapping[str, Any], metadata_group: Any, times: Any, cache_hit: bool
    ) -> None:
        found.append(
            {
                "kernel": src.fn.__name__.lstrip("_"),
                "warps": metadata["num_warps"],
                "lds_bytes": metadata["shared"],
                "seconds": 0.0 if cache_hit else times.total / 1e6,
                **figures_of(metadata_group, triton.knobs.nvidia.cuobjdump.path),
            }
        )

    with _target(arch, cache, listen):
        for case in cases:
            case.run()
            for figures in found:
                yield KernelReport(case=case.name, arch=arch.name, **figures)
            found.clear()


@contextmanager
def _target(arch: Arch, cache: Path, listen: Any) -> Iterator[None]:
    """The architecture under triton, and kernels that are kept in the folder. The driver stays:
    where there is no GPU triton has none to go back to."""
    knobs = triton.knobs
    before = knobs.compilation.listener, knobs.cache.dir
    driver.set_active(TargetDriver(arch))
    arch_of.cache_clear()
    knobs.compilation.listener, knobs.cache.dir = listen, str(cache)
    try:
        yield
    finally:
        knobs.compilation.listener, knobs.cache.dir = before
