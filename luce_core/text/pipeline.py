"""Token ids to text deltas: detokenise, stop strings, output parser. Streamed or not, one pipeline.

Concatenated deltas are the same however the tokens were grouped into pushes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from luce_core.plan import TokenLogprob
from luce_core.text.detokenizer import Detokenizer
from luce_core.text.output_parser import OutputParser, Piece, PieceKind, PlainParser
from luce_core.text.stop_strings import StopStrings


class CallDelta(NamedTuple):
    """More of a choice's tool call, counted from 0. The first of a call has its name."""

    number: int
    name: str = ""
    arguments: str = ""


class TextDelta(NamedTuple):
    """New text of one choice; `logprobs` are of tokens whose text is in this or earlier deltas."""

    content: str = ""
    reasoning: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    calls: tuple[CallDelta, ...] = ()

    @property
    def has_text(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)

    @property
    def is_empty(self) -> bool:
        return not (self.has_text or self.logprobs)


NOTHING = TextDelta()


class TextPipeline:
    """One generation's way from ids to text; asyncio thread only.

    After a stop string is complete nothing more comes out and nothing more is counted; the string
    itself is not delivered. `tokens_used` counts all tokens up to the one that completed it. Text
    of the first `min_tokens` tokens stops nothing. `reasoning_tokens` counts tokens that arrived
    while the parser was inside a thinking block, its tags included where they are one token.
    `calls` counts the tool calls begun; one more than `most_calls` ends the text as a stop string
    does.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stop_strings: StopStrings,
        parser: OutputParser,
        *,
        min_tokens: int = 0,
        most_calls: int | None = None,
    ) -> None:
        self._detokenizer = detokenizer
        self._characters = detokenizer.push
        self._stops = stop_strings
        self._parser = parser
        self._min_tokens = min_tokens
        self._most_calls = most_calls
        self._has_enough = False
        self._is_plain = stop_strings.is_empty and isinstance(parser, PlainParser)
        self._produced = 0
        # Entries in token order, each with how much text must be decided before it may go out.
        self._pending: deque[tuple[int, TokenLogprob]] = deque()
        self.tokens_used = 0
        self.reasoning_tokens = 0
        self.calls = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string, or a call too many, has ended the text."""
        return self._stops.stopped or self._has_enough

    def push(
        self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob] | None = None
    ) -> TextDelta:
        """The text that these tokens complete. `logprobs` has one entry per token."""
        if self._is_plain and logprobs is None:
            self.tokens_used += len(tokens)
            text = "".join(map(self._characters, tokens))
            return TextDelta(text) if text else NOTHING
        if self.stopped:
            return NOTHING
        pieces: list[Piece] = []
        for index, token in enumerate(tokens):
            inside = self._parser.in_reasoning
            text = self._characters(token)
            if text:
                self._produced += len(text)
                if self.tokens_used >= self._min_tokens:
                    text = self._stops.push(text)
                pieces += self._count(self._parser.push(text))
            self.tokens_used += 1
            if inside or self._parser.in_reasoning:
                self.reasoning_tokens += 1
            if logprobs is not None:
                needed = self._produced + self._detokenizer.holds_bytes
                self._pending.append((needed, logprobs[index]))
            if self.stopped:
                break
        return self._delta(pieces, self._produced - self._stops.held - self._parser.held)

    def finish(self) -> TextDelta:
        """What was held back, once no more tokens come. Call it after a stop as well."""
        pieces: list[Piece] = []
        if not self.stopped:
            pieces += self._count(self._parser.push(self._stops.push(self._detokenizer.flush())))
        if not self.stopped:
            pieces += self._count(self._parser.push(self._stops.flush()))
        if not self._has_enough:
            pieces += self._count(self._parser.flush())
        logprobs = tuple(entry for _, entry in self._pending)
        self._pending.clear()
        return self._joined(pieces)._replace(logprobs=logprobs)

    def _count(self, pieces: list[Piece]) -> list[Piece]:
        """The pieces up to the call that is one too many, if there is one."""
        for position, piece in enumerate(pieces):
            if piece.kind is PieceKind.CALL:
                if self.calls == self._most_calls:
                    self._has_enough = True
                    return pieces[:position]
                self.calls += 1
        return pieces

    def _delta(self, pieces: list[Piece], decided: int) -> TextDelta:
        delta = self._joined(pieces)
        if not delta.has_text:
            return NOTHING
        entries: list[TokenLogprob] = []
        while self._pending and self._pending[0][0] <= decided:
            entries.append(self._pending.popleft()[1])
        return delta._replace(logprobs=tuple(entries))

    def _joined(self, pieces: list[Piece]) -> TextDelta:
        """The pieces of this push as one delta; call numbers follow from `calls`."""
        content = "".join(text for kind, text in pieces if kind is PieceKind.CONTENT)
        reasoning = "".join(text for kind, text in pieces if kind is PieceKind.REASONING)
        if len(content) + len(reasoning) == sum(len(text) for _, text in pieces):
            return TextDelta(content, reasoning)
        number = self.calls - sum(kind is PieceKind.CALL for kind, _ in pieces) - 1
        calls: list[CallDelta] = []
        for kind, text in pieces:
            if kind is PieceKind.CALL:
                number += 1
                calls.append(CallDelta(number, name=text))
            elif kind is PieceKind.ARGUMENTS:
                calls.append(CallDelta(number, arguments=text))
        return TextDelta(content, reasoning, calls=join_calls(calls))


def join_calls(deltas: Iterable[CallDelta]) -> tuple[CallDelta, ...]:
    """The same text with one delta for each call."""
    return tuple(
        CallDelta(number, "".join(d.name for d in same), "".join(d.arguments for d in same))
        for number, same in ((n, tuple(g)) for n, g in groupby(deltas, attrgetter("number")))
    )
