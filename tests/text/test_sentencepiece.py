"""Sentencepiece vocabularies: scores decide, bytes fill gaps, one leading space at most."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce_core.errors import ConfigError, ModelFileError
from luce_core.text.detokenizer import Detokenizer
from luce_core.text.tokenizer import Tokenizer

from .corpus import TEXTS, space_texts
from .vocabularies import sentencepiece

_WORDS = """
▁t he ▁the er in on an re ▁a en at ll ▁w or ▁l ▁le ad ing ▁lead ▁leading wo ▁wo
rld ▁world ▁▁ ▁▁▁▁ ▁x ▁
"""
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,é"
PIECES = {piece: -float(rank) for rank, piece in enumerate([*_WORDS.split(), *_LETTERS])}


def make(**keys: Any) -> Tokenizer:
    return Tokenizer.from_metadata(sentencepiece(PIECES, **keys))


def naive_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The algorithm written out: join the neighbours whose union scores best, leftmost first."""
    parts = list(text.replace(" ", "\u2581"))
    while True:
        scored = [
            (PIECES[a + b], -i)
            for i, (a, b) in enumerate(itertools.pairwise(parts))
            if a + b in PIECES
        ]
        if not scored:
            break
        at = -max(scored)[1]
        parts[at : at + 2] = ["".join(parts[at : at + 2])]
    names = list(PIECES)
    ids: list[int] = []
    for part in parts:
        if part in PIECES:
            ids.append(259 + names.index(part))
        else:
            ids += [3 + byte for byte in part.encode()]
    return ids


def test_ids_equal_the_algorithm_written_out() -> None:
    tokenizer = make()
    for text in [*TEXTS, *space_texts(), "the leading world, the there thing  x    y"]:
        if text and "</s>" not in text:
            expected = naive_ids(tokenizer, " " + text)
            assert tokenizer.encode(text, parse_special=True) == expected, text


@given(st.text(alphabet="thelading wor\u2581é漢"))
def test_any_text_equals_the_algorithm_and_survives_a_round_trip(text: str) -> None:
    tokenizer = make()
    ids = tokenizer.encode(text, parse_special=True)
    assert ids == (naive_ids(tokenizer, " " + text) if text else [])
    assert tokenizer.decode(ids) == text.replace("\u2581", " ")


def test_ids_equal_transformers_llama_tokenizer() -> None:
    from transformers import LlamaTokenizer
    from transformers.tokenization_utils_base import generate_merges

    metadata = sentencepiece(PIECES)
    tokens = metadata.strings("tokenizer.ggml.tokens")
    scores = dict(zip(tokens, metadata.floats("tokenizer.ggml.scores"), strict=True))
    vocab = {token: index for index, token in enumerate(tokens)}
    special = {"<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))}
    merges = generate_merges(vocab, scores, skip_tokens=special)
    oracle = LlamaTokenizer(vocab=vocab, merges=merges)
    tokenizer = make()
    # transformers adds no second space to a text that begins with one; sentencepiece itself does.
    texts = [t for t in [*TEXTS, *space_texts()] if t and not t.startswith((" ", "\u2581"))]
    for text in texts:
        expected = oracle.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text, parse_special=True) == expected, text


def test_only_the_start_of_the_whole_text_gets_a_space() -> None:
    tokenizer = make()
    ids = tokenizer.encode("x</s>x", parse_special=True)
    x, space_x = 259 + list(PIECES).index("x"), 259 + list(PIECES).index("\u2581x")
    assert ids == [space_x, 2, x]
    assert make(add_space_prefix=False).encode("x", parse_special=True) == [x]


def test_at_most_one_leading_space_is_taken_away() -> None:
    tokenizer = make()
    names = list(PIECES)
    ids = [259 + names.index(p) for p in ("\u2581", "\u2581leading", "\u2581x")]
    assert tokenizer.decode(ids) == " leading x"
    assert make(add_space_prefix=False).decode(ids) == "  leading x"


def test_a_completion_keeps_its_space_and_a_whole_text_does_not() -> None:
    tokenizer = make()
    world = 259 + list(PIECES).index("\u2581world")
    assert Detokenizer(tokenizer).push(world) == " world"
    fresh = Detokenizer(tokenizer, starts_text=True)
    assert [fresh.push(1), fresh.push(world), fresh.push(world)] == ["", "world", " world"]


def test_bos_is_added_by_default_and_hidden() -> None:
    tokenizer = make()
    ids = tokenizer.encode("the", parse_special=True, add_special=True)
    assert ids[0] == 1
    assert tokenizer.decode(ids) == "the"


def test_byte_tokens_join_into_one_character() -> None:
    tokenizer = make()
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push(3 + byte) for byte in "漢".encode()] == ["", "", "漢"]


def test_a_long_text_without_spaces_is_linear() -> None:
    assert len(make().encode("q" * 200_000, parse_special=True)) == 200_001


def test_wrong_files_are_refused() -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.scores"):
        make(scores=[])
    with pytest.raises(ConfigError, match="sentencepiece"):
        Tokenizer.from_metadata(sentencepiece(PIECES), pre="qwen2")
    with pytest.raises(ModelFileError, match="byte token"):
        make(token_type=[2, 3, 6] + [6] * 256 + [1] * len(PIECES))
