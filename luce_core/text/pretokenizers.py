"""How a byte-level vocabulary's text is split before merging: `tokenizer.ggml.pre`.

The expressions are those of the models' own tokenizer files.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Splits applied one after the other, and what else the model's tokenizer does.

    `whole_words`: a split that is a token as it stands is not merged up from bytes. `add_bos` is
    the rule when the file does not say.
    """

    splits: tuple[str, ...]
    nfc: bool = False
    whole_words: bool = False
    add_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        steps = [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in self.splits]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*steps, byte_level])


_LLAMA_BPE = PreTokenizer((_LLAMA3,), whole_words=True, add_bos=True)
_SMOLLM = PreTokenizer((r"\p{N}", _GPT2))
_QWEN = PreTokenizer((_QWEN2,), nfc=True)
_DEEPSEEK = PreTokenizer(_DEEPSEEK_V3)

ASSUMED_PRE = "default"

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer(_DEFAULT),
    "gpt-2": PreTokenizer((_GPT2,)),
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "smollm": _SMOLLM,
    "starcoder": _SMOLLM,
    "refact": _SMOLLM,
    "codeshell": _SMOLLM,
    "qwen2": _QWEN,
    "deepseek-r1-qwen": _QWEN,
    "qwen35": PreTokenizer((_QWEN35,), nfc=True),
    "deepseek-v3": _DEEPSEEK,
    "joyai-llm": _DEEPSEEK,
}
