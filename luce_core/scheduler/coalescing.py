"""The wait for company of a server that goes from idle to busy."""

from __future__ import annotations

from collections.abc import Callable


class Coalescing:
    """Waits until nobody else comes: no request on its way, and none for `quiet_s`.

    At most `most_s` in all, 0 being never. `is_receiving` tells whether requests are on their way
    that have not been submitted yet.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        is_receiving: Callable[[], bool],
        *,
        most_s: float,
        quiet_s: float,
    ) -> None:
        self._clock = clock
        self._is_receiving = is_receiving
        self._most_s = most_s
        self._quiet_s = quiet_s
        self._until: float | None = None  # None: not waiting
        self._quiet_from = 0.0

    def arrived(self, *, was_idle: bool) -> None:
        """A request has been submitted."""
        now = self._clock()
        if was_idle and self._most_s > 0:
            self._until = now + self._most_s
        self._quiet_from = now + self._quiet_s

    def waits(self, *, is_full: bool) -> bool:
        """Whether to let nobody in yet; once it is over, or the slots are full, it is over."""
        if self._until is None:
            return False
        now = self._clock()
        if is_full or now >= self._until or (now >= self._quiet_from and not self._is_receiving()):
            self._until = None
        return self._until is not None

    def sleep_s(self) -> float:
        """How long it may be before `waits` has another answer, arrivals aside."""
        if self._until is None:
            return 0.0
        now = self._clock()
        # While a request is on its way, look again after a quiet time.
        again = self._quiet_from if now < self._quiet_from else now + self._quiet_s
        return max(0.0, min(self._until, again) - now)
