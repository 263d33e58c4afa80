"""A byte vocabulary with DeepSeek's words, and tools to call."""

from __future__ import annotations

from typing import Any

from luce_deepseek_v4.text import markup, register_text_formats

from luce_core.testing.byte_vocab import EOS, VOCAB_SIZE, byte_metadata
from luce_core.text.formats import ModelText, TextFormats
from luce_core.text.tokenizer import Tokenizer
from luce_core.text.tools import Tool
from luce_core.weights.typed_metadata import TypedMetadata

WORDS = (markup.DSML, markup.USER, markup.ASSISTANT)
WORD_IDS = dict(zip(WORDS, range(VOCAB_SIZE, VOCAB_SIZE + len(WORDS)), strict=True))
SIZE = VOCAB_SIZE + len(WORDS)
BOS = "<bos>"


def function(name: str, **properties: Any) -> dict[str, Any]:
    """A tool as a client sends it."""
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


WEATHER = function("weather", city={"type": "string"}, days={"type": "integer"})
SEARCH = function("search", query={"type": "string"}, filters={"type": "object"})
TOOLS = [WEATHER, SEARCH]


def tool(spec: dict[str, Any]) -> Tool:
    inner = spec["function"]
    return Tool(name=inner["name"], parameters=inner["parameters"], spec=spec)


def deepseek_text(**metadata: Any) -> ModelText:
    """The plugin's text format for a `deepseek4` file; `metadata` replaces keys, None drops one."""
    values = {**byte_metadata(), "general.architecture": "deepseek4"}
    values["tokenizer.ggml.tokens"] = [*values["tokenizer.ggml.tokens"], *WORDS]
    values["tokenizer.ggml.token_type"] = [*values["tokenizer.ggml.token_type"], *[3] * len(WORDS)]
    del values["tokenizer.chat_template"]
    values.update(metadata)
    formats = TextFormats()
    register_text_formats(formats.register)
    typed = TypedMetadata("tiny.gguf", values)
    return formats.for_model(typed, Tokenizer.from_metadata(typed))


def with_words(text: str) -> tuple[int, ...]:
    """Byte tokens, DeepSeek's words as single tokens."""
    ids: list[int] = []
    while text:
        word = next((word for word in WORDS if text.startswith(word)), None)
        if word is None:
            ids += text[0].encode()
            text = text[1:]
        else:
            ids.append(WORD_IDS[word])
            text = text.removeprefix(word)
    return (*ids, EOS)


def invoke(name: str, *parameters: tuple[str, str, bool]) -> str:
    """A call as the model writes it: (argument, value, whether it is a string) each."""
    d = markup.DSML
    lines = ""
    for argument, value, is_string in parameters:
        kind = "true" if is_string else "false"
        lines += f'<{d}parameter name="{argument}" string="{kind}">{value}</{d}parameter>\n'
    return f'<{d}invoke name="{name}">\n{lines}</{d}invoke>\n'


def calls(*invokes: str) -> str:
    d = markup.DSML
    return f"\n\n<{d}tool_calls>\n{''.join(invokes)}</{d}tool_calls>"
