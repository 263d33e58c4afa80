"""The tables of `luce ops --roofline`, for people and for programs."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table

from luce_core.ops.device_tools import OpCost, Roofline, StepCost


def roofline_tables(roofline: Roofline) -> Group:
    """A table for each step; the limit of a row is that of all its calls."""
    lines = [
        f"{device.name}: {device.title}, {device.rates.read_bytes / 1e9:.0f} GB/s, "
        f"{device.rates.float_operations / 1e12:.0f} T operations/s ({device.source})"
        for device in roofline.devices
    ]
    return Group(*lines, *(_table(roofline, step) for step in roofline.steps))


def _table(roofline: Roofline, step: StepCost) -> Table:
    table = Table(title=f"{step.model}, {step.step}", title_justify="left")
    table.add_column("op")
    table.add_column("of what")
    for name in ("calls", "least MB", "Gop", "moved / least"):
        table.add_column(name, justify="right")
    for device in roofline.devices:
        table.add_column(f"us {device.name}", justify="right")
    for cost in step.ops:
        ratio = cost.moved_over_least
        table.add_row(
            cost.op,
            cost.what,
            str(cost.calls),
            f"{cost.calls * cost.least.read_bytes / 1e6:.3g}",
            f"{cost.calls * cost.least.float_operations / 1e9:.3g}",
            "-" if ratio is None else f"{ratio:.2f}",
            *(f"{limit:.3g}" for limit in limits_us(roofline, cost)),
        )
    table.add_section()
    sums = [sum(limits) for limits in zip(*(limits_us(roofline, c) for c in step.ops), strict=True)]
    table.add_row(
        "all",
        "",
        str(sum(cost.calls for cost in step.ops)),
        f"{sum(cost.calls * cost.least.read_bytes for cost in step.ops) / 1e6:.3g}",
        f"{sum(cost.calls * cost.least.float_operations for cost in step.ops) / 1e9:.3g}",
        "",
        *(f"{limit:.3g}" for limit in sums),
        style="bold",
    )
    return table


def limits_us(roofline: Roofline, cost: OpCost) -> tuple[float, ...]:
    """What all calls of a row take at least on each device, in microseconds."""
    seconds = (device.rates.seconds(cost.least) for device in roofline.devices)
    return tuple(1e6 * cost.calls * each for each in seconds)


def roofline_json(roofline: Roofline) -> dict[str, Any]:
    """Bytes and operations are of one call, limits of all calls."""
    return {
        "devices": [
            {
                "name": device.name,
                "title": device.title,
                "bytes_per_s": device.rates.read_bytes,
                "operations_per_s": device.rates.float_operations,
                "source": device.source,
            }
            for device in roofline.devices
        ],
        "steps": [
            {
                "model": step.model,
                "step": step.step,
                "ops": [
                    {
                        "op": cost.op,
                        "what": cost.what,
                        "calls": cost.calls,
                        "least_bytes": cost.least.read_bytes,
                        "operations": cost.least.float_operations,
                        "moved_bytes": cost.moved_bytes,
                        "limits_us": dict(
                            zip(
                                (device.name for device in roofline.devices),
                                limits_us(roofline, cost),
                                strict=True,
                            )
                        ),
                    }
                    for cost in step.ops
                ],
            }
            for step in roofline.steps
        ],
    }
