"""What is on its way in: connections without a request yet, and bodies that are being read."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

# A connection that has sent nothing for so long was opened for later.
_EXPECTED_S = 0.05


class Arrivals:
    """Sources that will probably submit a request in a moment.

    `begin` and `end` are for the asyncio thread; any thread may ask `is_any`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[Hashable, float] = {}

    def begin(self, source: Hashable) -> None:
        self._since[source] = self._clock()

    def end(self, source: Hashable) -> None:
        """The source's request has been read, or will not come. Idempotent."""
        self._since.pop(source, None)

    @property
    def is_any(self) -> bool:
        if not self._since:
            return False
        latest = self._clock() - _EXPECTED_S
        # The list is made in one go, so that the other thread cannot come in between.
        return any(since > latest for since in list(self._since.values()))
