"""The vocabulary of a model file: what each token id stands for, in bytes and in words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from luce_core.errors import ModelFileError

if TYPE_CHECKING:
    from luce_core.weights.typed_metadata import TypedMetadata

MAX_TOKENS = 2_000_000
SPACE_MARK = "\u2581"  # how a sentencepiece vocabulary writes a space


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's spelling of bytes: printable Latin-1 is itself, the rest follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in alphabet:
            alphabet[byte] = chr(0x100 + len(alphabet) - len(printable))
    return alphabet


BYTE_ALPHABET = _byte_alphabet()
_TO_LATIN1 = {ord(char): byte for byte, char in BYTE_ALPHABET.items()}
# Latin-1 characters that spell no byte must not pass through the table unchanged.
_TO_LATIN1.update({code: 0xFFFF for code in range(256) if chr(code) not in BYTE_ALPHABET.values()})


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by id. `texts` spells them as the file does, `data` is what each adds to a text.

    `data` of control, unknown and unused tokens is empty: they never show. `literals` maps the
    text of control and user-defined tokens to their ids: these are matched whole in a text.
    """

    kind: str
    texts: tuple[str, ...]
    types: tuple[int, ...]
    scores: tuple[float, ...]
    data: tuple[bytes, ...]
    control: frozenset[int]
    user_defined: frozenset[int]

    @classmethod
    def from_metadata(cls, metadata: TypedMetadata) -> Vocabulary:
        kind = metadata.expect_str("tokenizer.ggml.model", ("gpt2", "llama"))
        texts = metadata.strings("tokenizer.ggml.tokens")
        if not 0 < len(texts) <= MAX_TOKENS:
            raise ModelFileError(
                metadata.path, "tokenizer.ggml.tokens", f"{len(texts)} tokens, not 1..{MAX_TOKENS}"
            )
        types = metadata.ints("tokenizer.ggml.token_type", default=(1,) * len(texts))
        scores = metadata.floats("tokenizer.ggml.scores", default=()) if kind == "llama" else ()
        for key, values in (("token_type", types), ("scores", scores)):
            if len(values) != len(texts) and (values or key == "token_type"):
                raise ModelFileError(
                    metadata.path, f"tokenizer.ggml.{key}", f"{len(values)} for {len(texts)} tokens"
                )
        if kind == "llama" and not scores:
            raise metadata.wrong("tokenizer.ggml.scores", "one score per token")
        spell = _byte_level_bytes if kind == "gpt2" else _sentencepiece_bytes
        try:
            data = tuple(map(spell, texts, types))
        except ValueError as error:
            raise ModelFileError(metadata.path, "tokenizer.ggml.tokens", str(error)) from error
        return cls(
            kind=kind,
            texts=texts,
            types=types,
            scores=scores,
            data=data,
            control=_ids_of(texts, types, TokenType.CONTROL),
            user_defined=_ids_of(texts, types, TokenType.USER_DEFINED),
        )

    def literal(self, token_id: int) -> str:
        """The text that a control or user-defined token is matched by."""
        text = self.texts[token_id]
        return text.replace(SPACE_MARK, " ") if self._marks_spaces(token_id) else text

    def _marks_spaces(self, token_id: int) -> bool:
        return self.kind == "llama" and self.types[token_id] == TokenType.USER_DEFINED


def _ids_of(texts: tuple[str, ...], types: tuple[int, ...], wanted: TokenType) -> frozenset[int]:
    return frozenset(i for i, kind in enumerate(types) if kind == wanted and texts[i])


def _byte_level_bytes(text: str, kind: int) -> bytes:
    if kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED):
        return b""
    if kind == TokenType.USER_DEFINED:
        return text.encode()
    try:
        return text.translate(_TO_LATIN1).encode("latin-1")
    except UnicodeEncodeError:
        # A few files spell normal tokens literally instead of in the byte alphabet.
        return text.encode()


def _sentencepiece_bytes(text: str, kind: int) -> bytes:
    if kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED):
        return b""
    if kind == TokenType.BYTE:
        if len(text) != 6 or not (text.startswith("<0x") and text.endswith(">")):
            raise ValueError(f"a byte token must read <0xHH>, got {text!r}")
        return bytes([int(text[3:5], 16)])
    return text.replace(SPACE_MARK, " ").encode()
