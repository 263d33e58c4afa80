"""The tables of `luce plugins` and `luce ops`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from luce_core.plugin_manager import Plugins

if TYPE_CHECKING:
    from luce_core.ops.registry import OpRegistry


def plugins_table(plugins: Plugins) -> Group:
    """Installed plugins with version and hooks, their engines, and what failed to load."""
    engines = Table("engine", "architectures", "takes", title="engines", title_justify="left")
    for spec in plugins.engines().values():
        engines.add_row(spec.name, ", ".join(spec.architectures), ", ".join(sorted(spec.accepts)))
    table = Table("plugin", "version", "hooks", title="plugins", title_justify="left")
    for plugin in plugins.loaded:
        table.add_row(plugin.name, plugin.version, ", ".join(plugin.hooks))
    for failure in plugins.failures:
        table.add_row(failure.name, failure.version, _failed("", failure.error))
    return Group(table, engines)


def ops_table(registry: OpRegistry, isa: str | None = None) -> Group:
    """Every op with its kernels, best first, and their declared invariance; the instruction sets
    of each provider that can choose, with the one in use if `isa` is asked for; and kernels of
    ops that nobody has."""
    table = Table("op", "provider", "device", "invariant", "what it does")
    for name in sorted(registry.specs):
        spec = registry.spec(name)
        for number, kernel in enumerate(registry.kernels(name)):
            levels = [
                level
                for level, declared in (
                    ("rows", kernel.row_invariant),
                    ("splits", kernel.split_invariant),
                )
                if declared
            ]
            table.add_row(
                name if number == 0 else "",
                kernel.provider,
                kernel.device,
                ", ".join(levels),
                spec.doc if number == 0 else "",
            )
    from luce_core.ops.kernel import check_isa  # torch, which `luce plugins` does without

    kernels = [kernel for name in registry.specs for kernel in registry.kernels(name)]
    if isa is not None:
        check_isa(isa, kernels)
    isas = [
        f"{provider}: instruction set {kernel.isa_in_use(isa)}; "
        f"this machine has {', '.join(kernel.isas)} (--kernel-isa)"
        for provider, kernel in {k.provider: k for k in kernels if k.isas}.items()
    ]
    failures = [_failed(f"{name} ", error) for name, error in registry.failures.items()]
    return Group(table, *isas, *_dormant_lines(registry), *failures)


def _dormant_lines(registry: OpRegistry) -> list[str]:
    """Each provider's kernels for ops that nobody has registered."""
    ops: dict[str, list[str]] = {}
    for op, kernels in sorted(registry.dormant.items()):
        for provider in {kernel.provider for kernel in kernels}:
            ops.setdefault(provider, []).append(op)
    return [
        f"{provider}: kernels for ops of plugins that are not installed: {', '.join(names)}"
        for provider, names in sorted(ops.items())
    ]


def _failed(name: str, error: object) -> Text:
    return Text.assemble((f"{name}failed:", "red"), f" {error}")
