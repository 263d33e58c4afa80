"""The luce plugin of native kernels for x86-64 CPUs. Light: torch and the library load in hooks."""

from __future__ import annotations

from collections.abc import Callable

from luce_core.engine import hookimpl


@hookimpl
def luce_register_kernels(register: Callable[..., None]) -> None:
    """Offer the kernels. KernelsUnavailable where the library was not built: luce then names it
    among the plugins that failed, and the references do the work."""
    from luce_kernels_cpu.offers import register_kernels

    register_kernels(register)


@hookimpl
def luce_register_recorders(register: Callable[..., None]) -> None:
    from luce_kernels_cpu.recorder import compile_recording

    register(compile_recording, provider=__name__, device="cpu")
