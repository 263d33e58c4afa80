"""Commands from the asyncio thread to the engine thread."""

from __future__ import annotations

import threading
from collections import deque

from luce_core.commands import Command


class Inbox:
    """A deque and a condition. `put` never waits; `drain` waits only if told to."""

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()
        self._arrived = threading.Condition()

    def put(self, command: Command) -> None:
        with self._arrived:
            self._commands.append(command)
            self._arrived.notify()

    @property
    def has_commands(self) -> bool:
        return bool(self._commands)

    def drain(self, wait_s: float | None) -> list[Command]:
        """All commands so far; if there is none, wait up to `wait_s` seconds (None: for ever)."""
        commands = self._commands
        if not commands and wait_s == 0:  # reading a deque's length needs no lock
            return []
        with self._arrived:
            if not commands and wait_s != 0:
                self._arrived.wait_for(lambda: bool(commands), wait_s)
            drained = list(commands)
            commands.clear()
        return drained
