"""Generated ids to text, one character at a time and never half of one."""

from __future__ import annotations

import codecs
from collections.abc import Collection

from luce_core.text.tokenizer import Tokenizer

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one generation, token by token.

    Bytes are held until they form a character; a byte that can no longer become part of one is
    U+FFFD. `starts_text`: nothing stands before the generation, so a sentencepiece vocabulary's
    leading space is dropped; after a prompt it is a real space. `shown` are control tokens whose
    text the output parser needs to see.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        starts_text: bool = False,
        shown: Collection[int] = (),
    ) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._utf8 = _Utf8Decoder(errors="replace")
        self._decode = self._utf8.decode
        self._shown = frozenset(shown)
        self._drop_space = starts_text and tokenizer.strips_leading_space

    @property
    def holds_bytes(self) -> bool:
        """Whether the last token ended inside a character."""
        return bool(self._utf8.getstate()[0])

    def push(self, token_id: int) -> str:
        """The characters that this token completes."""
        text = self._decode(self._token_bytes(token_id, control=token_id in self._shown))
        return self._after_start(text) if self._drop_space else text

    def flush(self) -> str:
        """What is left at the end: U+FFFD for an unfinished character, else nothing."""
        return self._decode(b"", final=True)

    def _after_start(self, text: str) -> str:
        if text:
            self._drop_space = False
        return text.removeprefix(" ")
