"""What decode steps cost, with drafts and without: a table made from a few measured steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of a step of `n` decoding slots: table[n][d] with d drafts among them.

    A step with drafts includes the draft's pass and the commit. `table[0]` is empty.
    """

    table: tuple[tuple[float, ...], ...]

    def seconds(self, slots: int, drafts: int) -> float:
        return self.table[slots][drafts]

    def row_seconds(self, slots: int) -> float:
        """What one more draft costs where some are drafted."""
        drafting = self.table[slots][1:]
        return (drafting[-1] - drafting[0]) / max(1, len(drafting) - 1)

    @classmethod
    def even(cls, slots: int, max_draft: int) -> StepCosts:
        """Every step costs the same: drafts are for free."""
        rows = (tuple([1.0] * (1 + n * max_draft)) for n in range(1, slots + 1))
        return cls(((), *rows))

    @classmethod
    def from_runs(
        cls, runs: Mapping[tuple[int, int], float], *, slots: int, max_draft: int
    ) -> StepCosts:
        """From seconds by (slots, drafts of each), with straight lines between and behind them.

        Measured must be 1 and `slots` slots with 0 and with at least one other number of drafts.
        """
        measured = sorted({n for n, _ in runs})
        plain = [(float(n), runs[n, 0]) for n in measured]
        drafting = {
            n: sorted((float(n * k), runs[m, k]) for m, k in runs if m == n and k) for n in measured
        }
        table: list[tuple[float, ...]] = [()]
        for n in range(1, slots + 1):
            row = [_on_line(plain, n)]
            for drafts in range(1, n * max_draft + 1):
                by_slots = [(float(m), _on_line(drafting[m], drafts)) for m in measured]
                row.append(max(row[-1], _on_line(by_slots, n)))
            table.append(tuple(row))
        return cls(tuple(table))


def _on_line(points: Sequence[tuple[float, float]], x: float) -> float:
    """The value at x of the line through the two points around it, or nearest to it."""
    if len(points) == 1:
        return points[0][1]
    last = next((i for i, (at, _) in enumerate(points) if at >= x and i), len(points) - 1)
    (x0, y0), (x1, y1) = points[last - 1], points[last]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
