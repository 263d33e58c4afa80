"""What the asyncio thread tells the engine thread."""

from __future__ import annotations

from dataclasses import dataclass

from luce_core.request import Request


@dataclass(frozen=True, slots=True)
class Submit:
    """A checked request; it ends in exactly one terminal event."""

    request: Request


@dataclass(frozen=True, slots=True)
class Cancel:
    """The client left. Legal in every state, twice, and for ids that are long gone."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Finish:
    """A stop string ended the text: the request has `tokens` tokens and stopped."""

    request_id: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Finish what is accepted, then leave the loop."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Cancel what is left and leave the loop now."""


Command = Submit | Cancel | Finish | Drain | Stop
