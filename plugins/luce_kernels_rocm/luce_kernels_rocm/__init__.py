"""The luce plugin of Triton kernels for GPUs. Light: torch and triton load when an op is bound."""

from __future__ import annotations

from collections.abc import Callable

from luce_core.engine import hookimpl


@hookimpl
def luce_register_kernels(register: Callable[..., None]) -> None:
    """Offer the kernels on hip and cuda. PluginError where there is no triton: luce then names the
    plugin among those that failed, and the references do the work."""
    from luce_kernels_rocm.offers import register_kernels

    register_kernels(register)
