"""Plain text to ids, without special tokens: the `tokenizers` models behind a vocabulary."""

from __future__ import annotations

from collections.abc import Mapping

from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers

from luce_core.errors import ModelFileError
from luce_core.text.pretokenizers import PreTokenizer
from luce_core.text.vocabulary import BYTE_ALPHABET, SPACE_MARK, TokenType, Vocabulary

# What the parts of a merge, and its outcome, may be: plain text never becomes a control token.
_MERGED_TYPES = frozenset({TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED})


def byte_level_backend(
    path: str, vocabulary: Vocabulary, merges: tuple[str, ...], pre: PreTokenizer, *, nfc: bool
) -> Backend:
    """Byte-level BPE over the merges of the file, in their order."""
    ids = _byte_level_ids(vocabulary)
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        left, space, right = merge.partition(" ")
        if not (space and left and right) or " " in right:
            raise ModelFileError(
                path, "tokenizer.ggml.merges", f"a merge must read 'left right', got {merge!r}"
            )
        if left in ids and right in ids and left + right in ids:
            pairs.append((left, right))
    backend = Backend(models.BPE(vocab=ids, merges=pairs, ignore_merges=pre.whole_words))
    if nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre.build()
    return backend


def lost_bytes(vocabulary: Vocabulary) -> frozenset[int]:
    """Bytes without a token in a byte-level vocabulary: they are missing from encoded text."""
    ids = _byte_level_ids(vocabulary)
    return frozenset(byte for byte, char in BYTE_ALPHABET.items() if char not in ids)


def sentencepiece_backend(vocabulary: Vocabulary, unknown_id: int | None) -> Backend:
    """Merges implied by the vocabulary: the neighbours whose union scores best go first.

    Characters without a token become their UTF-8 byte tokens, or the unknown token. The caller
    adds the leading space.
    """
    merged: dict[str, int] = {}
    kept: dict[str, int] = {}
    for token_id, (text, kind) in enumerate(zip(vocabulary.texts, vocabulary.types, strict=True)):
        if kind in (TokenType.NORMAL, TokenType.USER_DEFINED):
            merged.setdefault(text, token_id)
        if kind not in (TokenType.CONTROL, TokenType.UNUSED):
            kept.setdefault(text, token_id)
    unknown = None if unknown_id is None else vocabulary.texts[unknown_id]
    if unknown is not None and unknown_id is not None:
        kept.setdefault(unknown, unknown_id)
    backend = Backend(
        models.BPE(
            vocab=kept,
            merges=_implied_merges(merged, vocabulary.scores),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.normalizer = normalizers.Replace(" ", SPACE_MARK)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=SPACE_MARK, prepend_scheme="never", split=False
    )
    return backend


def _byte_level_ids(vocabulary: Vocabulary) -> dict[str, int]:
    ids: dict[str, int] = {}
    for token_id, (text, kind) in enumerate(zip(vocabulary.texts, vocabulary.types, strict=True)):
        if kind in _MERGED_TYPES:
            ids.setdefault(text, token_id)
    return ids


def _implied_merges(ids: Mapping[str, int], scores: tuple[float, ...]) -> list[tuple[str, str]]:
    ranked: list[tuple[float, int, int, int, str, str]] = []
    for text, token_id in ids.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in ids and right in ids:
                ranked.append((-scores[token_id], token_id, ids[left], ids[right], left, right))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]
