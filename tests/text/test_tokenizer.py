"""What the tokenizer promises about special tokens, BOS, bytes, odd input and wrong files."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce_core.errors import ConfigError, ModelFileError
from luce_core.text.prompt import Prompt
from luce_core.text.tokenizer import Tokenizer
from luce_core.weights.typed_metadata import TypedMetadata

from .corpus import TEXTS, space_texts
from .vocabularies import BYTES, CONTROL, byte_level, byte_tokenizer

FIRST_CONTROL = len(BYTES)
IM_START, IM_END = FIRST_CONTROL + 1, FIRST_CONTROL + 2
THINK = FIRST_CONTROL + len(CONTROL)
PAD = THINK + 4


def plain(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, parse_special=False)


def test_control_and_user_defined_tokens_are_whole() -> None:
    tokenizer = byte_tokenizer()
    assert tokenizer.encode("<|im_start|><think>", parse_special=True) == [IM_START, THINK]
    assert tokenizer.encode("a<think>b", parse_special=True)[1] == THINK


def test_control_text_is_plain_text_without_special_parsing() -> None:
    tokenizer = byte_tokenizer()
    assert len(plain(tokenizer, "<|im_start|>")) == len("<|im_start|>")
    assert plain(tokenizer, "<think>") == [THINK]


def test_control_tokens_are_hidden_and_user_defined_tokens_visible() -> None:
    tokenizer = byte_tokenizer()
    assert tokenizer.decode([THINK, IM_END]) == "<think>"
    assert tokenizer.token_bytes(IM_END) == b""
    assert tokenizer.token_bytes(IM_END, control=True) == b"<|im_end|>"
    assert tokenizer.token_text(IM_END) == "<|im_end|>"


def test_unused_and_unknown_ids_have_no_text() -> None:
    tokenizer = byte_tokenizer()
    for token_id in (PAD, PAD + 1, tokenizer.vocab_size, 10**9, -1):
        assert tokenizer.token_bytes(token_id) == b""
        assert tokenizer.token_text(token_id) == ""
    assert PAD not in tokenizer.encode("[PAD0]", parse_special=True)


def test_the_longest_special_token_wins() -> None:
    tokenizer = byte_tokenizer(control=("<|a|>", "<|a|><|b|>", "<|b|>"), eos_token_id=0)
    assert tokenizer.encode("<|a|><|b|><|a|>", parse_special=True) == [257, 256]


def test_plain_text_never_merges_into_a_control_token() -> None:
    tokens = (*sorted(BYTES), "<|", "<|x")
    metadata = byte_level(
        "llama-bpe", tokens=tokens, merges=("< |", "<| x", "<|x >"), control=("<|x>",)
    )
    tokenizer = Tokenizer.from_metadata(metadata)
    (control,) = tokenizer.special_ids
    assert control not in plain(tokenizer, "<|x>")
    assert tokenizer.encode("<|x>", parse_special=True) == [control]


def test_byte_level_text_survives_a_round_trip() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level("qwen2"), nfc=False)
    texts = [*TEXTS, *space_texts()]
    assert len(space_texts()) == 200
    for text in texts:
        assert tokenizer.decode(plain(tokenizer, text)) == text


@given(st.text())
def test_any_text_survives_a_round_trip(text: str) -> None:
    tokenizer = Tokenizer.from_metadata(byte_level("qwen35"), nfc=False)
    assert tokenizer.decode(tokenizer.encode(text, parse_special=True)) == text.replace(
        "<|im_end|>", ""
    )


def test_lone_surrogates_become_replacement_characters_and_nul_stays() -> None:
    tokenizer = byte_tokenizer()
    assert tokenizer.decode(plain(tokenizer, "a\ud800b")) == "a\ufffdb"
    assert tokenizer.decode(plain(tokenizer, "\ud83d\ude00")) == "\U0001f600"
    assert tokenizer.decode(plain(tokenizer, "a\0b")) == "a\0b"


@pytest.mark.parametrize("text", ["a", "1", "<", " ", "\n ", "<|im_", "\u6f22"])
def test_a_long_run_is_encoded_in_linear_time(text: str) -> None:
    tokenizer = byte_tokenizer()
    count = 200_000 // len(text)
    assert len(tokenizer.encode(text * count, parse_special=True)) == count * len(text.encode())


def test_real_vocabulary_names_the_bytes_it_loses(smollm2: Tokenizer) -> None:
    assert {0xC0, 0xC1, 0xF5, 0xFF} <= smollm2.lost_bytes
    assert not smollm2.lost_bytes & set("täglich 漢字 👍".encode())
    for text in [*TEXTS, *space_texts()]:
        if not set(text.encode()) & smollm2.lost_bytes:
            assert smollm2.decode(plain(smollm2, text)) == text


def test_end_marks_end_a_generation_even_if_the_file_does_not_name_them(
    smollm2: Tokenizer,
) -> None:
    assert smollm2.eos_id == 2
    assert smollm2.eos_ids == {0, 2}
    tokenizer = byte_tokenizer(eot_token_id=5, eom_token_id=6)
    assert tokenizer.eos_ids == {FIRST_CONTROL, IM_END, 5, 6}


# add_bos of the file, text, specials parsed as in a rendered chat or raw -> number of BOS ids
BOS_TABLE = [
    (add_bos, template_writes, kind)
    for add_bos, template_writes, kind in itertools.product(
        (True, False, None), (True, False), ("chat", "raw", "raw with bos")
    )
]


@pytest.mark.parametrize(("add_bos", "template_writes", "kind"), BOS_TABLE)
def test_never_two_bos_and_chats_have_what_the_template_writes(
    add_bos: bool | None, template_writes: bool, kind: str
) -> None:
    keys: dict[str, Any] = {} if add_bos is None else {"add_bos_token": add_bos}
    metadata = byte_level("qwen2", bos_token_id=IM_START, **keys)
    tokenizer = Tokenizer.from_metadata(metadata)
    bos = "<|im_start|>"
    if kind == "chat":
        ids = tokenizer.encode_prompt(Prompt(f"{bos if template_writes else ''}hello"))
        expected = int(template_writes)
    else:
        text = f"{bos}hello" if kind == "raw with bos" else "hello"
        ids = tokenizer.encode(text, parse_special=True, add_special=True)
        expected = int(bool(add_bos) or kind == "raw with bos")
    assert ids.count(IM_START) == expected


@pytest.mark.parametrize(("pre", "expected"), [("llama-bpe", True), ("qwen2", False)])
def test_add_bos_when_the_file_does_not_say(pre: str, expected: bool) -> None:
    tokenizer = Tokenizer.from_metadata(byte_level(pre, bos_token_id=IM_START))
    assert tokenizer.add_bos is expected


@pytest.mark.parametrize(("pre", "found"), [(None, "is missing"), ("qwen99", "'qwen99'")])
def test_an_unknown_pre_is_loud(pre: str | None, found: str) -> None:
    (warning,) = Tokenizer.from_metadata(byte_level(pre)).warnings
    assert "tokenizer.ggml.pre" in warning
    assert found in warning
    assert "'default'" in warning


def test_a_pre_override_restores_the_ids(
    smollm2: Tokenizer, smollm2_values: dict[str, Any]
) -> None:
    values = {key: value for key, value in smollm2_values.items() if key != "tokenizer.ggml.pre"}
    broken = TypedMetadata("broken.gguf", values)
    assumed = Tokenizer.from_metadata(broken)
    restored = Tokenizer.from_metadata(broken, pre="smollm")
    assert assumed.warnings
    assert not restored.warnings
    texts = [*TEXTS, "in 2024: 1234567"]
    assert [plain(restored, t) for t in texts] == [plain(smollm2, t) for t in texts]
    assert [plain(assumed, t) for t in texts] != [plain(smollm2, t) for t in texts]


def test_an_unknown_override_lists_what_is_accepted() -> None:
    with pytest.raises(ConfigError, match=r"'nope' is unknown.*llama-bpe.*qwen35"):
        Tokenizer.from_metadata(byte_level("qwen2"), pre="nope")


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        ({"model": "bert"}, "tokenizer.ggml.model"),
        ({"token_type": [1, 2]}, "tokenizer.ggml.token_type"),
        ({"eos_token_id": 10**6}, "tokenizer.ggml.eos_token_id"),
        ({"bos_token_id": -1}, "tokenizer.ggml.bos_token_id"),
        ({"add_bos_token": 1}, "tokenizer.ggml.add_bos_token"),
    ],
)
def test_a_wrong_file_is_refused_by_key(keys: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        Tokenizer.from_metadata(byte_level("qwen2", **keys))
    assert caught.value.field == field


def test_an_empty_vocabulary_is_refused() -> None:
    with pytest.raises(ModelFileError, match="0 tokens"):
        Tokenizer.from_metadata(byte_level("qwen2", tokens=(), control=(), visible=(), unused=0))


@pytest.mark.parametrize("merge", ["ab", "a  b", " a", "a b c"])
def test_a_malformed_merge_is_refused(merge: str) -> None:
    with pytest.raises(ModelFileError, match="merge"):
        Tokenizer.from_metadata(byte_level("qwen2", merges=(merge,)))
