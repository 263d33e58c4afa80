"""How many prompt rows may ride beside decoders: the choice, from what steps cost. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# A step with prompt rows may cost so many steps without them: a client that is being answered sees
# gaps of this many tokens at worst while somebody else's prompt is read.
MIXED_STEP_COST = 4.0
QUANTUM = 16
_MOST_GROWTH = 4
_MOST_PROBES = 8


@dataclass(frozen=True, slots=True)
class Pacing:
    """Prompt rows of a step beside decoders, and the costs that led to them.

    `decoders` rows decode in a step of `decode_s` seconds; with `rows` prompt rows beside them it
    takes `mixed_s`.
    """

    rows: int
    decoders: int
    decode_s: float
    mixed_s: float

    def explain(self) -> str:
        """One line for the start screen and /props."""
        return (
            f"{self.rows}, a step of {self.decoders} decoders takes {1e3 * self.decode_s:.1f} ms, "
            f"with them {1e3 * self.mixed_s:.1f} ms"
        )


def choose_rows(cost: Callable[[int], float | None], *, most: int, decoders: int) -> Pacing:
    """The most prompt rows that keep a step within MIXED_STEP_COST steps without them.

    `cost(rows)` is the seconds of a step with that many prompt rows beside the decoders, None once
    there is no more time to measure; `cost(0)` always answers. The result is a multiple of
    QUANTUM, at least QUANTUM, and one that was measured, or it is `most`, which need not be a
    multiple. Costs may be noisy; they are taken to grow with the rows.
    """
    decode_s = cost(0)
    assert decode_s is not None
    limit = MIXED_STEP_COST * decode_s
    least = min(QUANTUM, most)
    fits, fits_s = 0, decode_s
    exceeds: int | None = None
    exceeds_s = 0.0
    rows = least
    for _ in range(_MOST_PROBES):
        seconds = cost(rows)
        if seconds is None:
            break
        if seconds <= limit or rows == least:
            fits, fits_s = rows, seconds
        else:
            exceeds, exceeds_s = rows, seconds
        if seconds > limit and rows == least:
            break
        if exceeds is None:
            slope = (fits_s - decode_s) / fits
            ahead = int((limit - decode_s) / slope) if slope > 0 else most
            rows = min(max(ahead, fits + QUANTUM), _MOST_GROWTH * fits, most)
        else:
            share = (limit - fits_s) / (exceeds_s - fits_s)
            rows = min(fits + int(share * (exceeds - fits)), exceeds - QUANTUM)
        rows = most if rows == most else rows // QUANTUM * QUANTUM
        if rows <= fits:
            break
    return Pacing(fits or least, decoders, decode_s, fits_s)
