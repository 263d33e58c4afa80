"""Streamed text has no half characters, and is the same however it is cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from luce_core.text.detokenizer import Detokenizer
from luce_core.text.tokenizer import Tokenizer

from .corpus import TEXTS
from .vocabularies import BYTES, byte_tokenizer

TOKENIZER = byte_tokenizer()
_IDS = {TOKENIZER.token_bytes(i): i for i in range(len(BYTES))}
THINK, IM_END = len(BYTES) + 3, len(BYTES) + 2


def ids_of(data: bytes) -> list[int]:
    return [_IDS[bytes([byte])] for byte in data]


def deltas(ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(TOKENIZER)
    return [detokenizer.push(token) for token in ids] + [detokenizer.flush()]


def test_each_character_comes_out_whole_with_its_last_byte() -> None:
    text = "né→漢👩‍💻"
    pieces = deltas(ids_of(text.encode()))
    assert [piece for piece in pieces if piece] == list(text)


def test_a_byte_is_replaced_only_once_it_cannot_become_valid() -> None:
    assert deltas(ids_of(b"\xe6\xbc")) == ["", "", "\ufffd"]
    assert deltas(ids_of(b"\xe6a")) == ["", "\ufffda", ""]
    assert deltas(ids_of(b"\xff\x80b")) == ["\ufffd", "\ufffd", "b", ""]


def test_control_tokens_are_hidden_unless_shown() -> None:
    assert deltas([THINK, IM_END]) == ["<think>", "", ""]
    shown = Detokenizer(TOKENIZER, shown=[IM_END])
    assert shown.push(IM_END) == "<|im_end|>"


def test_ids_beyond_the_vocabulary_are_silent() -> None:
    assert deltas([10**6, -1, len(BYTES) + 7]) == ["", "", "", ""]


def test_a_leading_space_of_a_byte_level_vocabulary_is_text() -> None:
    assert Detokenizer(TOKENIZER, starts_text=True).push(_IDS[b" "]) == " "


@given(st.binary(max_size=40))
def test_streamed_text_is_the_decoded_text(data: bytes) -> None:
    ids = ids_of(data)
    assert "".join(deltas(ids)) == data.decode(errors="replace") == TOKENIZER.decode(ids)


def test_real_vocabulary_streams_the_corpus(smollm2: Tokenizer) -> None:
    for text in TEXTS:
        ids = smollm2.encode(text, parse_special=False)
        detokenizer = Detokenizer(smollm2)
        pieces = [detokenizer.push(token) for token in ids]
        assert "".join(pieces) + detokenizer.flush() == smollm2.decode(ids)
        if not set(text.encode()) & smollm2.lost_bytes:
            assert "\ufffd" not in "".join(pieces)
