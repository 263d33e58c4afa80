"""Graphs without a GPU, for tests: a graph is the call that made it, run again."""

from __future__ import annotations

from collections.abc import Callable

from luce_core.ops.record import Recording


def never(number: int) -> bool:
    return False


class Remembered:
    """Captures as a device does: the memory that `run` was captured with is all it ever reads.
    `failing(number)` says which captures fail, counted from 1."""

    def __init__(self, failing: Callable[[int], bool] = never) -> None:
        self.captured = 0
        self.replayed = 0
        self._failing = failing

    def check(self, recording: Recording) -> None:
        """Every op can be run again."""

    def capture(self, run: Callable[[], object]) -> Callable[[], None]:
        run()
        self.captured += 1
        if self._failing(self.captured):
            raise RuntimeError("operation not permitted when stream is capturing")
        run()

        def replay() -> None:
            self.replayed += 1
            run()

        return replay
