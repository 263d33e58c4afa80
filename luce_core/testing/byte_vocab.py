"""A vocabulary of 256 byte tokens and a few specials, as GGUF metadata would hold it."""

from __future__ import annotations

BOS, EOS = 256, 257
THINK, END_THINK = 258, 259
TOOL_CALL, END_TOOL_CALL = 260, 261
IM_START, IM_END = 262, 263

_CONTROL = ("<bos>", "<eos>", "<|im_start|>", "<|im_end|>")
_SPECIALS = (
    "<bos>",
    "<eos>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|im_start|>",
    "<|im_end|>",
)
VOCAB_SIZE = 256 + len(_SPECIALS)

CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_symbols() -> list[str]:
    """The printable character that stands for each byte in byte-level BPE vocabularies (GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    symbols = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in symbols]
    symbols.update({byte: chr(256 + index) for index, byte in enumerate(others)})
    return [symbols[byte] for byte in range(256)]


def byte_metadata() -> dict[str, object]:
    """`tokenizer.*` keys of a model whose token n < 256 is byte n."""
    return {
        "general.architecture": "fake",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*byte_symbols(), *_SPECIALS],
        "tokenizer.ggml.token_type": [
            *[1] * 256,
            *[3 if special in _CONTROL else 4 for special in _SPECIALS],
        ],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": BOS,
        "tokenizer.ggml.eos_token_id": EOS,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }
