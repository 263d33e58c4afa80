"""Token ids to text deltas: detokenise, stop strings, output parser. Streamed or not, one pipeline.

Concatenated deltas are the same however the tokens were grouped into pushes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from luce_core.plan import TokenLogprob
from luce_core.text.detokenizer import Detokenizer
from luce_core.text.output_parser import OutputParser, Piece, PieceKind, PlainParser
from luce_core.text.stop_strings import StopStrings


class TextDelta(NamedTuple):
    """New text of one choice; `logprobs` are of tokens whose text is in this or earlier deltas."""

    content: str = ""
    reasoning: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.content or self.reasoning or self.logprobs)


NOTHING = TextDelta()


class TextPipeline:
    """One generation's way from ids to text; asyncio thread only.

    After a stop string is complete nothing more comes out and nothing more is counted; the string
    itself is not delivered. `tokens_used` counts all tokens up to the one that completed it. Text
    of the first `min_tokens` tokens stops nothing. `reasoning_tokens` counts tokens that arrived
    while the parser was inside a thinking block, its tags included where they are one token.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stop_strings: StopStrings,
        parser: OutputParser,
        *,
        min_tokens: int = 0,
    ) -> None:
        self._detokenizer = detokenizer
        self._characters = detokenizer.push
        self._stops = stop_strings
        self._parser = parser
        self._min_tokens = min_tokens
        self._is_plain = stop_strings.is_empty and isinstance(parser, PlainParser)
        self._produced = 0
        # Entries in token order, each with how much text must be decided before it may go out.
        self._pending: deque[tuple[int, TokenLogprob]] = deque()
        self.tokens_used = 0
        self.reasoning_tokens = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string has been found."""
        return self._stops.stopped

    def push(
        self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob] | None = None
    ) -> TextDelta:
        """The text that these tokens complete. `logprobs` has one entry per token."""
        if self._is_plain and logprobs is None:
            self.tokens_used += len(tokens)
            text = "".join(map(self._characters, tokens))
            return TextDelta(text) if text else NOTHING
        if self._stops.stopped:
            return NOTHING
        pieces: list[Piece] = []
        for index, token in enumerate(tokens):
            inside = self._parser.in_reasoning
            text = self._characters(token)
            if text:
                self._produced += len(text)
                if self.tokens_used >= self._min_tokens:
                    text = self._stops.push(text)
                pieces += self._parser.push(text)
            self.tokens_used += 1
            if inside or self._parser.in_reasoning:
                self.reasoning_tokens += 1
            if logprobs is not None:
                needed = self._produced + self._detokenizer.holds_bytes
                self._pending.append((needed, logprobs[index]))
            if self._stops.stopped:
                break
        return self._delta(pieces, self._produced - self._stops.held - self._parser.held)

    def finish(self) -> TextDelta:
        """What was held back, once no more tokens come. Call it after a stop as well."""
        pieces: list[Piece] = []
        if not self._stops.stopped:
            pieces += self._parser.push(self._stops.push(self._detokenizer.flush()))
        if not self._stops.stopped:
            pieces += self._parser.push(self._stops.flush())
        pieces += self._parser.flush()
        content, reasoning = _join(pieces)
        logprobs = tuple(entry for _, entry in self._pending)
        self._pending.clear()
        return TextDelta(content, reasoning, logprobs)

    def _delta(self, pieces: Iterable[Piece], decided: int) -> TextDelta:
        content, reasoning = _join(pieces)
        if not (content or reasoning):
            return NOTHING
        entries: list[TokenLogprob] = []
        while self._pending and self._pending[0][0] <= decided:
            entries.append(self._pending.popleft()[1])
        return TextDelta(content, reasoning, tuple(entries))


def _join(pieces: Iterable[Piece]) -> tuple[str, str]:
    content = "".join(text for kind, text in pieces if kind is PieceKind.CONTENT)
    reasoning = "".join(text for kind, text in pieces if kind is PieceKind.REASONING)
    return content, reasoning
