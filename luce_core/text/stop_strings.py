"""Finding stop strings in streamed text, whatever the pieces it arrives in."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopSet:
    """The stop strings of a call, compiled once for all its choices; immutable after that.

    An Aho-Corasick automaton, so that finding is linear in the length of the text.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self.next: list[dict[str, int]] = [{}]
        self.fail = [0]
        self.depth = [0]
        self.match = [0]
        for stop in stops:
            self._add(stop)
        self._link()

    def _add(self, stop: str) -> None:
        state = 0
        for char in stop:
            step = self.next[state].get(char)
            if step is None:
                step = len(self.next)
                self.next[state][char] = step
                self.next.append({})
                self.fail.append(0)
                self.depth.append(self.depth[state] + 1)
                self.match.append(0)
            state = step
        if state:
            self.match[state] = len(stop)

    def _link(self) -> None:
        """Failure links, breadth first; a state inherits the match of the suffix it links to."""
        queue = deque(self.next[0].values())
        while queue:
            state = queue.popleft()
            for char, step in self.next[state].items():
                queue.append(step)
                link = self.fail[state]
                while char not in self.next[link] and link:
                    link = self.fail[link]
                self.fail[step] = self.next[link].get(char, 0)
                if not self.match[step]:
                    self.match[step] = self.match[self.fail[step]]


class StopStrings:
    """Lets text through up to the first stop string; one per choice, over a shared StopSet.

    The match that is complete earliest wins, so the outcome does not depend on how the text was
    cut; of two that end at the same character, the longer. Only text that may still become a stop
    string is held back.
    """

    def __init__(self, stops: StopSet) -> None:
        self._next, self._fail = stops.next, stops.fail
        self._depth, self._match = stops.depth, stops.match
        self._state = 0
        self._held = ""
        self.stopped = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to look for."""
        return len(self._next) == 1

    @property
    def held(self) -> int:
        """How many characters are held back."""
        return len(self._held)

    def push(self, text: str) -> str:
        """The text that is safe to emit. After a match: what stands before it, then nothing."""
        if self.is_empty:
            return text
        if self.stopped:
            return ""
        buffer = self._held + text
        state = self._state
        nodes, fail, match = self._next, self._fail, self._match
        for index, char in enumerate(text, len(self._held)):
            while (step := nodes[state].get(char)) is None and state:
                state = fail[state]
            state = 0 if step is None else step
            if match[state]:
                self.stopped = True
                self._held = ""
                return buffer[: index + 1 - match[state]]
        self._state = state
        safe = len(buffer) - self._depth[state]
        self._held = buffer[safe:]
        return buffer[:safe]

    def flush(self) -> str:
        """What was held back, now that no more text comes."""
        held, self._held, self._state = self._held, "", 0
        return held
