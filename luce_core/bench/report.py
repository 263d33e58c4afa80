"""What `luce bench` shows and writes: a table of medians, and every figure as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

from luce_core.bench.options import BenchOptions
from luce_core.bench.stats import Figures, Measurement, median, medians, paired_ratios
from luce_core.readable import readable

# Titles of the table's columns.
_COLUMNS = {
    "tok_s": "tok/s",
    "win_tok_s": "window",
    "ttft_ms": "TTFT ms",
    "ttft_p95_ms": "p95",
    "itl_ms": "ITL ms",
    "itl_p95_ms": "p95",
    "itl_max_ms": "max",
    "prompt_tokens": "prompt",
    "prompt_tok_s": "tok/s in",
}
_NAMES = "AB"


@dataclass(slots=True)
class Results:
    """Measurements of each level in the order of the repeats, for one or two servers."""

    options: BenchOptions
    seed: int
    models: Sequence[str]
    levels: dict[int, tuple[list[Measurement], ...]] = field(default_factory=dict)

    def add(self, place: int, measurement: Measurement) -> None:
        """`place` is the server's: 0 or 1."""
        lists = self.levels.setdefault(measurement.clients, tuple([] for _ in self.options.servers))
        lists[place].append(measurement)

    @property
    def all(self) -> list[Measurement]:
        return [m for lists in self.levels.values() for measured in lists for m in measured]


def results_table(results: Results) -> Table:
    """One row for each level and server, and for two servers one of ratios."""
    pair = len(results.options.servers) == 2
    table = Table()
    for title in ("C", *([""] if pair else []), "asked", "errors", "short"):
        table.add_column(title, justify="right")
    for title in _COLUMNS.values():
        table.add_column(title, justify="right")
    for clients, lists in results.levels.items():
        for name, measured in zip(_NAMES, lists, strict=False):
            tallies = [m.tally for m in measured]
            counts = [
                sum(tally.requests for tally in tallies),
                sum(tally.errors for tally in tallies),
                sum(tally.short for tally in tallies),
            ]
            lead = [str(clients), name] if pair else [str(clients)]
            table.add_row(*lead, *map(str, counts), *_cells(medians(measured)))
        if pair:
            ratios = {name: median(each) for name, each in paired_ratios(*lists).items()}
            table.add_row("", "A/B", "", "", "", *_cells(ratios), end_section=True)
    return table


def _cells(figures: Mapping[str, float | None]) -> list[str]:
    return [shown(figures[name]) for name in _COLUMNS]


def shown(value: float | None) -> str:
    """Three digits at least; `-` for nothing."""
    if value is None:
        return "-"
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def notes(results: Results) -> list[str]:
    """What a reader of the table must know: the seed, and what went wrong."""
    options = results.options
    names = ("",) if options.vs is None else ("A: ", "B: ")
    lines = [
        f"{name}{readable(url)} ({readable(model)})"
        for name, url, model in zip(names, options.servers, results.models, strict=True)
    ]
    lines.append(
        f"{options.api}, {options.tokens} tokens an answer, medians of {options.repeats}, "
        f"--seed {results.seed}"
    )
    measured = results.all
    uncounted = sum(m.tally.uncounted for m in measured)
    if uncounted:
        lines.append(f"{uncounted} answers without usage: their tokens are pieces of text")
    if error := next((m.tally.first_error for m in measured if m.tally.first_error), None):
        lines.append(f"first error: {readable(error)}")
    return lines


def results_json(results: Results) -> dict[str, Any]:
    """Options without the key, medians, every repeat, and ratios of pairs."""
    options = results.options
    levels = []
    for clients, lists in results.levels.items():
        entry: dict[str, Any] = {
            "clients": clients,
            "servers": [
                {"median": medians(measured), "repeats": [_repeat(m) for m in measured]}
                for measured in lists
            ],
        }
        if len(lists) == 2:
            entry["ratios"] = {
                name: {"median": median(each), "pairs": each}
                for name, each in paired_ratios(*lists).items()
            }
        levels.append(entry)
    return {
        "options": options.model_dump(mode="json", exclude={"key", "json_file", "seed"}),
        "seed": results.seed,
        "models": list(results.models),
        "levels": levels,
    }


def _repeat(measurement: Measurement) -> dict[str, Any]:
    figures: Figures = measurement.figures
    return {**asdict(measurement.tally), **figures}
