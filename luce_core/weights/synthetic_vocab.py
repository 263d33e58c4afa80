"""Byte-level BPE vocabularies with ChatML tokens, for synthetic models."""

from __future__ import annotations

from itertools import islice, product
from string import ascii_lowercase

from luce_core.errors import ConfigError

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5

# Enough merges to see that merging happens; U+0120 is the byte-level alphabet's space.
_MERGES = ("t h", "i n", "th e", "e r", "a n", "an d", "Ġ the", "Ġ and")
_SPECIALS = (
    ("<|endoftext|>", CONTROL),
    ("<|im_start|>", CONTROL),
    ("<|im_end|>", CONTROL),
    ("<think>", USER_DEFINED),
    ("</think>", USER_DEFINED),
    ("<tool_call>", USER_DEFINED),
    ("</tool_call>", USER_DEFINED),
    ("<tool_response>", USER_DEFINED),
    ("</tool_response>", USER_DEFINED),
)
MIN_VOCAB = 256 + len(_MERGES) + len(_SPECIALS)
_SPACE = "Ġ"
# What a vocabulary of words spells other text with: printable ASCII and the line feed.
_SPELLED = (0x0A, *range(0x20, 0x7F))

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def tokenizer_metadata(vocab: int, pre: str, *, words: bool = False) -> dict[str, object]:
    """`tokenizer.*` keys for `vocab` tokens: 256 bytes, merges, specials, then `[PADn]` unused.

    With `words` whatever a model picks shows as text of its own: tokens are the characters of
    ASCII text, the specials, and for all other ids a space and one to four letters, each a token
    that `encode` gives for its text under every pre-tokenizer. Other characters are lost then.
    """
    if vocab < MIN_VOCAB:
        raise ConfigError(f"a synthetic vocabulary needs at least {MIN_VOCAB} tokens, got {vocab}")
    alphabet = _byte_alphabet()
    merges: list[str] = [] if words else list(_MERGES)
    base = [alphabet[byte] for byte in _SPELLED] if words else alphabet
    tokens = [*base, *(merge.replace(" ", "") for merge in merges)]
    types = [NORMAL] * len(tokens)
    ids = {}
    for text, kind in _SPECIALS:
        ids[text] = len(tokens)
        tokens.append(text)
        types.append(kind)
    left = range(len(tokens), vocab)
    if words:
        spelled = _words(len(left))
        merges = [f"{word[:-1]} {word[-1]}" for word in spelled]
        tokens.extend(spelled)
        types.extend(NORMAL for _ in left)
    else:
        tokens.extend(f"[PAD{index}]" for index in left)
        types.extend(UNUSED for _ in left)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": ids["<|endoftext|>"],
        "tokenizer.ggml.eos_token_id": ids["<|im_end|>"],
        "tokenizer.ggml.padding_token_id": ids["<|endoftext|>"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }


def _words(count: int) -> list[str]:
    """The first `count` words, shorter ones first, so that each is an earlier one and a letter."""
    lengths = (product(ascii_lowercase, repeat=letters) for letters in range(1, 5))
    every = (_SPACE + "".join(letters) for length in lengths for letters in length)
    return list(islice(every, count))


def _byte_alphabet() -> list[str]:
    """GPT-2's printable character for each byte 0 to 255; id = byte value.

    Printable Latin-1 characters stand for themselves, the others for U+0100 and up, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
