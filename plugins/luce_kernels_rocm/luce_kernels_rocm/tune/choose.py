"""Choosing among timed tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from luce_kernels_rocm.tiles import Tile, TileKey
from luce_kernels_rocm.tune.candidates import Candidates

# A tile must be so much faster than the usual one to be tabled: less is noise.
LEAST_GAIN = 0.03

# Seconds of a key's work with a tile; what the compiler or the driver refuses is raised.
Timer = Callable[[TileKey, Tile], float]


@dataclass(frozen=True, slots=True)
class Choice:
    """The best tile of a key with its seconds, the usual tile's seconds, and how many of the
    candidates could not be run."""

    key: TileKey
    tile: Tile
    seconds: float
    usual_seconds: float
    failed: int

    @property
    def is_usual(self) -> bool:
        return self.seconds == self.usual_seconds


def choose(candidates: Candidates, timer: Timer) -> Choice:
    """Times every tile. The usual one must run; others may not fit the device."""
    usual = candidates.tiles[0]
    usual_seconds = timer(candidates.key, usual)
    best, best_seconds, failed = usual, usual_seconds * (1 - LEAST_GAIN), 0
    for tile in candidates.tiles[1:]:
        try:
            seconds = timer(candidates.key, tile)
        except Exception:  # triton has an error for each thing that does not fit
            failed += 1
            continue
        if seconds < best_seconds:
            best, best_seconds = tile, seconds
    seconds = usual_seconds if best == usual else best_seconds
    return Choice(candidates.key, best, seconds, usual_seconds, failed)


def choose_all(
    everything: Iterable[Candidates], timer: Timer, tell: Callable[[str], None]
) -> dict[TileKey, Tile]:
    """The tiles for the table; keys that the usual tile is best for are left out."""
    found: dict[TileKey, Tile] = {}
    for candidates in everything:
        choice = choose(candidates, timer)
        name = f"{choice.key.kernel} {' '.join(map(str, choice.key.facts))}"
        if choice.is_usual:
            tell(f"{name}: {1e6 * choice.seconds:.1f} us with the usual tile")
            continue
        found[choice.key] = choice.tile
        tell(
            f"{name}: {1e6 * choice.usual_seconds:.1f} -> {1e6 * choice.seconds:.1f} us with "
            f"{choice.tile}, {choice.failed} of {len(candidates.tiles)} do not run"
        )
    return found
