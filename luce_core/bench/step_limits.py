"""The share of the machine's limit that each op of a decode step reaches, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from luce_core.bench.bandwidth import buffer_bytes
from luce_core.bench.report import shown
from luce_core.bench.step_report import StepCase, StepReport, by_time, op_limits_ms
from luce_core.ops.program import Rates, Work

_HEAD = ("", "reads MB", "int8 Mop", "float Mop", "limit us", "measured us", "share", "in turn")


def limit_lines(report: StepReport) -> list[str]:
    """A table for each decode case whose work is known; none without rates."""
    rates = report.rates
    if rates is None:
        return []
    lines = [
        "",
        "Share of the limit, that is the longer of reading and computing, call by call; in turn: "
        "of one after the other. At best, "
        f"on all workers: {rates.read_bytes / 1e9:.1f} GB/s from a buffer of "
        f"{buffer_bytes(report.weight_bytes) / 1e6:.0f} MB, "
        f"{rates.int8_operations / 1e9:.0f} G int8 operations/s and "
        f"{rates.float_operations / 1e9:.0f} G float operations/s.",
    ]
    for case in report.cases:
        if case.work:
            head = (case.name, *_HEAD[1:])
            lines += ["", _row(head), _row(("---", *["--:"] * (len(head) - 1)))]
            lines += [_row(cells) for cells in _cells(case, rates)]
    return lines


def _cells(case: StepCase, rates: Rates) -> Iterator[tuple[str, ...]]:
    limits = op_limits_ms(case, rates)
    for op in by_time([case]):
        yield _line(op, case.work.get(op, ()), limits.get(op, 0.0), case.ops_ms[op], rates)
    everything = [work for calls in case.work.values() for work in calls]
    limit, kernels = sum(limits.values()), case.phases_ms["kernels"]
    yield _line("kernels", everything, limit, kernels, rates)
    yield _line("step", everything, limit, case.total_ms, rates)
    outside = case.total_ms - kernels
    share = f"{outside / case.total_ms:.1%} of the step"
    yield ("outside kernels", "-", "-", "-", "-", shown(1e3 * outside), share, "")


def _line(
    name: str, calls: Iterable[Work], limit_ms: float, measured_ms: float, rates: Rates
) -> tuple[str, ...]:
    total = Work(*map(sum, zip(Work(0), *calls, strict=True)))
    least_ms = (limit_ms, 1e3 * rates.seconds_in_turn(total))
    return (
        name,
        *(shown(value / 1e6) if value else "-" for value in total),
        shown(1e3 * limit_ms) if limit_ms else "-",
        shown(1e3 * measured_ms),
        *(f"{least / measured_ms:.0%}" if least and measured_ms else "-" for least in least_ms),
    )


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
