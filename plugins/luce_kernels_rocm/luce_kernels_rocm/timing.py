"""Times on a GPU, by the device's own events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Protocol

import torch

Run = Callable[[], object]


class Clock(Protocol):
    """What times calls; tests have one that needs no GPU."""

    def seconds(self, runs: Sequence[Run]) -> float:
        """The median of one call, the calls taking turns."""
        raise AssertionError("a protocol is never called")


class EventClock:
    """Seconds of calls on a device. Events lie in the queue around the calls, so that what the
    host does in between does not count."""

    def __init__(self, device: torch.device, *, repeats: int = 20) -> None:
        self._device = device
        self._repeats = repeats

    def seconds(self, runs: Sequence[Run]) -> float:
        """The median of one call, the calls taking turns: each with data of its own keeps the
        device's caches from serving what a real step would read from memory."""
        with torch.cuda.device(self._device):
            for run in runs[:2]:
                run()  # compiles
            torch.cuda.synchronize()
            pairs = []
            for number in range(self._repeats):
                begin, end = _event(), _event()
                begin.record()
                runs[number % len(runs)]()
                end.record()
                pairs.append((begin, end))
            torch.cuda.synchronize()
        times: list[float] = [begin.elapsed_time(end) for begin, end in pairs]
        return median(times) / 1e3


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
