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


@hookimpl
def luce_register_recorders(register: Callable[..., None]) -> None:
    """Offer to replay steps as captured graphs, on hip and cuda."""
    from luce_kernels_rocm.graphs.program import compile_recording

    for device in ("hip", "cuda"):
        register(compile_recording, provider=__name__, device=device)


@hookimpl
def luce_register_device_tools(register: Callable[..., None]) -> None:
    """Offer what `luce ops --roofline` and `luce tune` do."""
    from luce_core.ops.device_tools import DeviceTools
    from luce_kernels_rocm.roofline.build import roofline
    from luce_kernels_rocm.tune.command import tune

    register(DeviceTools(provider=__name__, roofline=roofline, tune=tune))
