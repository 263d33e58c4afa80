"""Text to token ids and back, built from a model file's vocabulary on the `tokenizers` package.

Byte-level vocabularies are lossless (`decode(encode(s)) == s`) up to two stated exceptions: NFC
where the model's own tokenizer applies it, and `lost_bytes`. Sentencepiece vocabularies put one
space before a text when they encode it and take at most one away when they decode it.

How many BOS ids an input gets, never more than one from us:

| input                              | add_bos true | add_bos false |
|------------------------------------|--------------|---------------|
| chat, the template writes BOS      | 1            | 1             |
| chat, the template writes none     | 0            | 0             |
| raw text                           | 1            | 0             |
| raw text that begins with BOS text | 1            | 1             |
| token ids                          | as given     | as given      |

Without `tokenizer.ggml.add_bos_token` the rule is true for sentencepiece and llama-bpe vocabularies
and false for all others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from luce_core.errors import ConfigError, ModelFileError
from luce_core.text.bpe import byte_level_backend, lost_bytes, sentencepiece_backend
from luce_core.text.literals import literal_pattern
from luce_core.text.pretokenizers import ASSUMED_PRE, PRE_TOKENIZERS
from luce_core.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

    from luce_core.text.prompt import Prompt
    from luce_core.weights.typed_metadata import TypedMetadata

PRE_KEY = "tokenizer.ggml.pre"
# Marks that end a turn or a text; models generate them whether or not the file names them as EOS.
END_MARKS = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "</s>",
        "<EOT>",
    }
)


class Tokenizer:
    """One model's tokenizer. Immutable after construction, safe to call from several threads.

    `warnings` is to be shown at start and in /props. `eos_ids` end a generation. `control_words`
    are the texts of control tokens, which `Prompt` keeps apart from what users write. No token
    stands for more than `longest_token_chars` characters.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        backend: Backend,
        *,
        bos_id: int | None,
        eos_id: int | None,
        end_ids: Iterable[int] = (),
        add_bos: bool,
        add_space_prefix: bool,
        warnings: tuple[str, ...] = (),
    ) -> None:
        self._vocabulary = vocabulary
        self._backend = backend
        self._data = vocabulary.data
        self._add_space_prefix = add_space_prefix
        self.vocab_size = len(vocabulary.texts)
        self.longest_token_chars = max(map(len, vocabulary.texts))
        self.special_ids = vocabulary.control
        self.bos_id = bos_id
        self.eos_id = eos_id
        marks = frozenset(i for i in vocabulary.control if vocabulary.texts[i] in END_MARKS)
        self.eos_ids = marks.union(end_ids, () if eos_id is None else (eos_id,))
        self.add_bos = add_bos and bos_id is not None
        self.warnings = warnings
        # A control token of one character cannot be kept apart from text: it is never matched.
        control = {vocabulary.literal(i): i for i in sorted(vocabulary.control, reverse=True)}
        self._control_ids = {word: i for word, i in control.items() if len(word) > 1}
        visible = sorted(vocabulary.user_defined, reverse=True)
        self._visible_ids = {vocabulary.literal(i): i for i in visible}
        self._literal_ids = self._visible_ids | self._control_ids
        self._visible = literal_pattern(self._visible_ids)
        self._literals = literal_pattern(self._literal_ids)

    @classmethod
    def from_metadata(
        cls, metadata: TypedMetadata, *, pre: str | None = None, nfc: bool | None = None
    ) -> Tokenizer:
        """The tokenizer that a model file describes; ModelFileError names what is wrong in it.

        `pre` overrides how text is split before merging (ConfigError if unknown), `nfc` whether
        text is normalised; None means as the file's `tokenizer.ggml.pre` implies.
        """
        vocabulary = Vocabulary.from_metadata(metadata)

        def token_id(name: str) -> int | None:
            key = f"tokenizer.ggml.{name}_token_id"
            value = metadata.int(key, default=None)
            if value is not None and not 0 <= value < len(vocabulary.texts):
                raise ModelFileError(
                    metadata.path, key, f"{value} is outside 0..{len(vocabulary.texts) - 1}"
                )
            return value

        warnings: tuple[str, ...] = ()
        if vocabulary.kind == "llama":
            if pre is not None:
                raise ConfigError(f"pre {pre!r}: this model's sentencepiece tokenizer has no pre")
            backend = sentencepiece_backend(vocabulary, token_id("unknown"))
            bos_default = True
        else:
            name, warnings = _choose_pre(metadata, pre)
            rules = PRE_TOKENIZERS[name]
            merges = metadata.strings("tokenizer.ggml.merges")
            use_nfc = rules.nfc if nfc is None else nfc
            backend = byte_level_backend(metadata.path, vocabulary, merges, rules, nfc=use_nfc)
            bos_default = rules.add_bos
        is_sentencepiece = vocabulary.kind == "llama"
        ends = (token_id("eot"), token_id("eom"))
        return cls(
            vocabulary,
            backend,
            bos_id=token_id("bos"),
            eos_id=token_id("eos"),
            end_ids=[i for i in ends if i is not None],
            add_bos=metadata.bool("tokenizer.ggml.add_bos_token", default=bos_default),
            add_space_prefix=is_sentencepiece
            and metadata.bool("tokenizer.ggml.add_space_prefix", default=True),
            warnings=warnings,
        )

    @property
    def control_words(self) -> tuple[str, ...]:
        return tuple(self._control_ids)

    @property
    def bos_token(self) -> str:
        return "" if self.bos_id is None else self._vocabulary.texts[self.bos_id]

    @property
    def eos_token(self) -> str:
        return "" if self.eos_id is None else self._vocabulary.texts[self.eos_id]

    @property
    def strips_leading_space(self) -> bool:
        """Whether a text begins with a space that belongs to the vocabulary, not to the text."""
        return self._add_space_prefix

    @property
    def lost_bytes(self) -> frozenset[int]:
        """Bytes that this byte-level vocabulary cannot express; encoding drops them."""
        return frozenset() if self._vocabulary.kind == "llama" else lost_bytes(self._vocabulary)

    def encode(self, text: str, *, parse_special: bool, add_special: bool = False) -> list[int]:
        """Ids of a text. User-defined tokens are matched whole, control tokens if `parse_special`.

        `add_special` puts BOS in front where the model wants one and the text has none. Lone
        surrogates become U+FFFD.
        """
        pattern = self._literals if parse_special else self._visible
        ids = self._encode_split(_valid(text), pattern, at_start=True)
        if add_special and self.add_bos and ids[:1] != [self.bos_id]:
            assert self.bos_id is not None
            ids.insert(0, self.bos_id)
        return ids

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Ids of a rendered chat; nothing is added. Guarded words are plain text."""
        marked, guard = _valid(prompt.marked), prompt.guard
        if not guard or guard not in marked:
            return self._encode_split(marked, self._literals, at_start=True)
        ids: list[int] = []
        start = 0
        matches = () if self._literals is None else self._literals.finditer(marked)
        for match in matches:
            self._encode_unguarded(ids, marked[start : match.start()], guard, at_start=start == 0)
            ids.append(self._literal_ids[match[0]])
            start = match.end()
        self._encode_unguarded(ids, marked[start:], guard, at_start=start == 0)
        return ids

    def token_id(self, word: str) -> int | None:
        """The id of a control or user-defined token by its text."""
        return self._literal_ids.get(word)

    def token_bytes(self, token_id: int, *, control: bool = False) -> bytes:
        """What a token adds to a text: nothing for ids beyond the vocabulary and unused ones.

        Control tokens add nothing either, unless `control` asks for their text.
        """
        if not 0 <= token_id < self.vocab_size:
            return b""
        if control and token_id in self.special_ids:
            return self._vocabulary.texts[token_id].encode()
        return self._data[token_id]

    def token_text(self, token_id: int) -> str:
        """A token as people read it (log-probabilities), control tokens by their text."""
        return self.token_bytes(token_id, control=True).decode(errors="replace")

    def decode(self, ids: Iterable[int]) -> str:
        """The text of a whole id list; invalid bytes become U+FFFD."""
        text = b"".join(map(self.token_bytes, ids)).decode(errors="replace")
        return text.removeprefix(" ") if self._add_space_prefix else text

    def _encode_unguarded(self, ids: list[int], text: str, guard: str, *, at_start: bool) -> None:
        ids += self._encode_split(text.replace(guard, ""), self._visible, at_start=at_start)

    def _encode_split(
        self, text: str, pattern: re.Pattern[str] | None, *, at_start: bool
    ) -> list[int]:
        if pattern is None:
            return self._encode_plain(text, at_start=at_start)
        ids: list[int] = []
        start = 0
        for match in pattern.finditer(text):
            if match.start() > start:
                first = at_start and start == 0
                ids += self._encode_plain(text[start : match.start()], at_start=first)
            ids.append(self._literal_ids[match[0]])
            start = match.end()
        ids += self._encode_plain(text[start:], at_start=at_start and start == 0)
        return ids

    def _encode_plain(self, text: str, *, at_start: bool) -> list[int]:
        if not text:
            return []
        if at_start and self._add_space_prefix:
            text = " " + text
        # A batch is encoded without the interpreter's lock, so that steps go on meanwhile.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids


def _valid(text: str) -> str:
    """The text as valid Unicode: surrogate pairs are joined, lone surrogates become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _choose_pre(metadata: TypedMetadata, pre: str | None) -> tuple[str, tuple[str, ...]]:
    """The pre-tokenizer's name, and what to tell the user if it is an assumption."""
    accepted = ", ".join(sorted(PRE_TOKENIZERS))
    if pre is not None:
        if pre not in PRE_TOKENIZERS:
            raise ConfigError(f"pre {pre!r} is unknown: accepted are {accepted}")
        return pre, ()
    stated = metadata.str(PRE_KEY, default=None)
    if stated in PRE_TOKENIZERS:
        return stated, ()
    found = "is missing" if stated is None else f"is {stated!r}, which is unknown"
    return ASSUMED_PRE, (
        f"{metadata.path}: {PRE_KEY} {found}: text is split by the rule {ASSUMED_PRE!r}, which may "
        f"differ from how the model was trained; set pre to one of {accepted}",
    )
