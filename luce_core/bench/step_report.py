"""What `luce bench-step` shows and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rich.table import Table

from luce_core.bench.report import shown
from luce_core.ops.program import Rates, Work

NO_WORK: Mapping[str, tuple[Work, ...]] = MappingProxyType({})
# Parts of a step in the order of their happening; `other` is what `execute` does beside them.
PHASES = ("plan", "lower", "kernels", "sample", "other", "apply", "deliver")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCase:
    """One kind of step, or a whole prefill. Times are medians in ms over `runs` runs.

    `tokens` come out (decode) or go in (prefill) in `total_ms`, over `steps` steps. `limit_ms` is
    what reading the weights of a decode step takes at the measured bandwidth, None where that is
    not measured. `work` is what the calls of each op must do in the last step, where that is known.
    """

    name: str
    tokens: float
    steps: int
    runs: int
    phases_ms: Mapping[str, float]
    ops_ms: Mapping[str, float]
    total_ms: float
    limit_ms: float | None
    work: Mapping[str, tuple[Work, ...]]

    @property
    def tok_s(self) -> float:
        return 1e3 * self.tokens / self.total_ms

    @property
    def share(self) -> float | None:
        """Of the limit: 1 means that the kernels are as fast as memory."""
        kernels = self.phases_ms["kernels"]
        return None if self.limit_ms is None or not kernels else self.limit_ms / kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """All cases, with what a reader must know of the run. `skipped` says what did not fit."""

    model: str
    engine: str
    device: str
    modes: Sequence[str]
    ops_from: str
    threads: int
    weight_bytes: int
    bandwidth: Mapping[int, float]
    rates: Rates | None
    cases: Sequence[StepCase]
    skipped: Sequence[str]


def report_lines(report: StepReport) -> list[str]:
    lines = [f"{report.model}: {report.engine} on {report.device}, torch threads: {report.threads}"]
    lines += [f"steps: {mode}" for mode in report.modes]
    lines.append(f"times of ops: {report.ops_from}")
    if report.bandwidth:
        rates = ", ".join(
            f"{rate / 1e9:.1f} GB/s with {count} thread{'s' if count > 1 else ''}"
            for count, rate in report.bandwidth.items()
        )
        lines.append(f"a decode step reads {report.weight_bytes / 1e6:.1f} MB; memory: {rates}")
    return [*lines, *report.skipped]


def report_table(report: StepReport) -> Table:
    """Parts of a step by row, kinds of step by column; ms."""
    table = Table("ms")
    for case in report.cases:
        table.add_column(case.name, justify="right")
    for phase in PHASES:
        table.add_row(phase, *(shown(case.phases_ms[phase]) for case in report.cases))
        if phase == "kernels":
            for op in by_time(report.cases):
                values = (shown(case.ops_ms.get(op)) for case in report.cases)
                table.add_row(f"  {op}", *values, style="dim")
    table.add_section()
    table.add_row("all", *(shown(case.total_ms) for case in report.cases), style="bold")
    table.add_row("tok/s", *(shown(case.tok_s) for case in report.cases), style="bold")
    if report.bandwidth:
        table.add_row("limit", *(shown(case.limit_ms) for case in report.cases))
        shares = (case.share for case in report.cases)
        table.add_row("share", *("-" if share is None else f"{share:.0%}" for share in shares))
    return table


def report_json(report: StepReport) -> dict[str, Any]:
    cases = [
        {
            "name": case.name,
            "tokens": case.tokens,
            "steps": case.steps,
            "runs": case.runs,
            "phases_ms": dict(case.phases_ms),
            "ops_ms": dict(case.ops_ms),
            "total_ms": case.total_ms,
            "tok_s": case.tok_s,
            "limit_ms": case.limit_ms,
            "share": case.share,
            "limits_ms": op_limits_ms(case, report.rates),
        }
        for case in report.cases
    ]
    return {
        "model": report.model,
        "engine": report.engine,
        "device": report.device,
        "modes": list(report.modes),
        "ops_from": report.ops_from,
        "threads": report.threads,
        "weight_bytes": report.weight_bytes,
        "bandwidth_bytes_per_s": {str(count): rate for count, rate in report.bandwidth.items()},
        "rates_per_s": report.rates._asdict() if report.rates else None,
        "cases": cases,
        "skipped": list(report.skipped),
    }


def op_limits_ms(case: StepCase, rates: Rates | None) -> dict[str, float]:
    """What the calls of each op take at least; empty where it is not known."""
    if rates is None:
        return {}
    return {op: 1e3 * sum(map(rates.seconds, calls)) for op, calls in case.work.items()}


def by_time(cases: Sequence[StepCase]) -> list[str]:
    """Every op, the one that takes most of all cases first."""
    totals: dict[str, float] = {}
    for case in cases:
        for op, value in case.ops_ms.items():
            totals[op] = totals.get(op, 0.0) + value / case.total_ms
    return sorted(totals, key=lambda op: -totals[op])
