"""Ids equal those of transformers' own tokenizers on a corpus of languages, code and emoji."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import regex
from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers

from luce_core.text.tokenizer import Tokenizer
from luce_core.text.vocabulary import BYTE_ALPHABET

from .corpus import TEXTS, space_texts
from .vocabularies import byte_level, trained

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DEEPSEEK_V3_SPLITS = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
)


@pytest.fixture(scope="module")
def smollm2_oracle(smollm2_path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)


SMOLLM2_TEXTS = [*TEXTS, "\n".join(TEXTS), *space_texts()]


def test_smollm2_ids_equal_transformers_where_all_digits_are_ascii(
    smollm2: Tokenizer, smollm2_oracle: Any
) -> None:
    # transformers splits `smollm` files by GPT-2's rule, which differs for other numerals only.
    texts = [t for t in SMOLLM2_TEXTS if not regex.search(r"(?![0-9])\p{N}", t)]
    assert len(texts) > 240
    for text in texts:
        expected = smollm2_oracle.encode(text, add_special_tokens=False)
        assert smollm2.encode(text, parse_special=True) == expected, text


def test_smollm2_ids_equal_transformers_with_the_models_own_split(
    smollm2: Tokenizer, smollm2_oracle: Any
) -> None:
    backend = Backend.from_str(smollm2_oracle.backend_tokenizer.to_str())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    for text in SMOLLM2_TEXTS:
        expected = backend.encode(text, add_special_tokens=False).ids
        assert smollm2.encode(text, parse_special=True) == expected, text


def _transformers_class(name: str, tokens: tuple[str, ...], merges: tuple[str, ...]) -> Any:
    import transformers

    vocab = {token: index for index, token in enumerate([*tokens, "<|endoftext|>"])}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    return getattr(transformers, name)(vocab=vocab, merges=pairs)


@pytest.mark.parametrize(
    ("pre", "class_name"),
    [
        ("qwen2", "Qwen2Tokenizer"),
        ("deepseek-r1-qwen", "Qwen2Tokenizer"),
        ("qwen35", "Qwen3_5Tokenizer"),
        ("gpt-2", "GPT2Tokenizer"),
    ],
)
def test_trained_vocabulary_ids_equal_the_models_own_class(pre: str, class_name: str) -> None:
    tokens, merges = trained(GPT2_SPLIT if pre == "gpt-2" else r"\p{N}|\s?[\p{L}\p{M}]+|\s+|[^\s]")
    oracle = _transformers_class(class_name, tokens, merges)
    ours = Tokenizer.from_metadata(byte_level(pre, tokens=tokens, merges=merges, visible=()))
    for text in [*TEXTS, *space_texts()]:
        if "<|" in text:
            continue
        assert ours.encode(text, parse_special=False) == oracle.encode(text), text


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen35"])
def test_split_rules_equal_transformers_reading_of_the_same_pre(pre: str) -> None:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

    tokens, merges = trained(r"\p{N}{1,3}|\s?[\p{L}\p{M}]+|\s+|[^\s]")
    description = {
        "tokenizer_type": "gpt2",
        "pre_tokenizer_type": pre,
        "tokens": list(tokens),
        "merges": list(merges),
        "token_type": [1] * len(tokens),
    }
    oracle, _ = convert_gguf_tokenizer("llama", description)
    metadata = byte_level(pre, tokens=tokens, merges=merges, visible=())
    ours = Tokenizer.from_metadata(metadata, nfc=False)
    for text in [*TEXTS, *space_texts()]:
        assert ours.encode(text, parse_special=False) == oracle.encode(text).ids, text


def _naive_ids(
    text: str, splits: tuple[str, ...], tokens: tuple[str, ...], merges: tuple[str, ...]
) -> list[int]:
    """Byte-level BPE written out: split one rule after the other, merge the best pair first."""
    ids = {token: index for index, token in enumerate(tokens)}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
    words = [text]
    for split in splits:
        words = [part for word in words for part in regex.split(f"({split})", word) if part]
    found: list[int] = []
    for word in words:
        parts = [BYTE_ALPHABET[byte] for byte in word.encode()]
        while True:
            pairs = list(itertools.pairwise(parts))
            best = min(pairs, key=lambda pair: ranks.get(pair, 1 << 30), default=None)
            if best is None or best not in ranks:
                break
            at = pairs.index(best)
            parts[at : at + 2] = ["".join(best)]
        found += [ids[part] for part in parts]
    return found


@pytest.mark.parametrize(
    ("pre", "splits"),
    [
        ("deepseek-v3", DEEPSEEK_V3_SPLITS),
        ("joyai-llm", DEEPSEEK_V3_SPLITS),
        ("smollm", (r"\p{N}", GPT2_SPLIT)),
        ("llama-bpe", (LLAMA3_SPLIT,)),
    ],
)
def test_ids_equal_published_rules_written_out(pre: str, splits: tuple[str, ...]) -> None:
    tokens, merges = trained(r"\p{N}{1,3}|\s?[\p{L}\p{M}]+|\s+|[!-/]?[a-z]+|[^\s]+")
    ours = Tokenizer.from_metadata(byte_level(pre, tokens=tokens, merges=merges, visible=()))
    for text in [*TEXTS, *space_texts()]:
        expected = _naive_ids(text, splits, tokens, merges)
        assert ours.encode(text, parse_special=False) == expected, text


def test_combining_marks_stay_with_letters_in_qwen35_only() -> None:
    word = "\u0e01\u0e33\u0e25\u0e31\u0e07"
    tokens, merges = trained(r"[\p{L}\p{M}]+", 1200)
    both = [
        Tokenizer.from_metadata(byte_level(pre, tokens=tokens, merges=merges))
        for pre in ("qwen35", "qwen2")
    ]
    new, old = (tokenizer.encode(word, parse_special=False) for tokenizer in both)
    assert len(new) < len(old)
    assert both[0].decode(new) == both[1].decode(old) == word


def test_a_word_that_is_a_token_is_not_merged_up_in_llama_bpe() -> None:
    tokens = (*sorted(BYTE_ALPHABET.values()), "abc")
    whole = Tokenizer.from_metadata(byte_level("llama-bpe", tokens=tokens))
    assert whole.encode("abc", parse_special=False) == [256]
    merged = Tokenizer.from_metadata(byte_level("qwen2", tokens=tokens))
    assert len(merged.encode("abc", parse_special=False)) == 3


def test_nfc_follows_the_family_and_can_be_switched_off() -> None:
    decomposed = "e\u0301"
    metadata = byte_level("qwen2")
    assert _round_trip(Tokenizer.from_metadata(metadata), decomposed) == "\u00e9"
    assert _round_trip(Tokenizer.from_metadata(metadata, nfc=False), decomposed) == decomposed
    assert _round_trip(Tokenizer.from_metadata(byte_level("smollm")), decomposed) == decomposed


def _round_trip(tokenizer: Tokenizer, text: str) -> str:
    return tokenizer.decode(tokenizer.encode(text, parse_special=False))
