"""Each model gets the chat format and parser that its file, its plugin or the user names."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from luce_core.errors import ConfigError, PluginError
from luce_core.text.chat_format import ChatFormat, JinjaChatFormat
from luce_core.text.formats import ModelText, TextFormats
from luce_core.text.output_parser import PlainParser, ThinkParser, plain_parser
from luce_core.text.pipeline import TextDelta
from luce_core.text.prompt import Prompt
from luce_core.text.tokenizer import Tokenizer
from luce_core.text.tools import Tool
from luce_core.weights.typed_metadata import TypedMetadata

from .vocabularies import BYTES, byte_level

USER = {"role": "user", "content": "hi"}
OWN = "own:{{ messages[0].content }}"
THINKS = "{{ messages[0].content }}<think>\n{# </think> #}"


def describe(template: str | None = None, architecture: str = "qwen2") -> TypedMetadata:
    values: dict[str, Any] = {**byte_level("qwen2").values, "general.architecture": architecture}
    if template is not None:
        values["tokenizer.chat_template"] = template
    return TypedMetadata("tiny.gguf", values)


def model_text(
    formats: TextFormats | None = None, metadata: TypedMetadata | None = None, **options: Any
) -> ModelText:
    metadata = metadata or describe()
    tokenizer = Tokenizer.from_metadata(metadata)
    return (formats or TextFormats()).for_model(metadata, tokenizer, **options)


def builtin(tokenizer: Tokenizer) -> ChatFormat:
    return JinjaChatFormat("plugin", bos_token="", eos_token="", source="builtin test")


def rendered(text: ModelText) -> str:
    return text.chat_format.render([USER]).text


def test_a_missing_template_is_chatml_and_loud() -> None:
    text = model_text()
    assert rendered(text) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    (warning,) = text.warnings
    assert "tokenizer.chat_template" in warning
    assert "ChatML" in warning
    assert text.chat_format.source == "builtin chatml"


def test_the_files_template_wins_over_the_plugins_and_a_named_one_over_both(
    tmp_path: Path,
) -> None:
    formats = TextFormats()
    formats.register(name="test", chat_format=builtin, architectures=["arch"])
    assert rendered(model_text(formats, describe(architecture="arch"))) == "plugin"
    assert rendered(model_text(formats, describe(OWN, "arch"))) == "own:hi"
    assert rendered(model_text(formats, describe(OWN, "arch"), chat_format="test")) == "plugin"
    path = tmp_path / "t.jinja"
    path.write_bytes(b"\xef\xbb\xbffile\r\n{{ messages[0].content }}")
    text = model_text(formats, describe(OWN, "arch"), template_file=path, chat_format="test")
    assert rendered(text) == "file\nhi"
    assert not text.warnings


def test_a_shipped_template_is_found_by_its_name() -> None:
    assert rendered(model_text(template_file="raw_prompt_identity.jinja")) == "hi"


def test_a_template_that_writes_thinking_tags_gets_the_think_parser() -> None:
    assert isinstance(model_text().make_parser(Prompt("")), PlainParser)
    text = model_text(metadata=describe(THINKS))
    prompt = text.chat_format.render([USER])
    assert isinstance(text.make_parser(prompt), ThinkParser)
    pipe = text.chat_pipeline(prompt)
    ids = text.tokenizer.encode("plan</think>\nyes", parse_special=True)
    assert pipe.push(ids) == TextDelta("yes", "plan")
    off = model_text(metadata=describe(THINKS), output_parser="none")
    assert isinstance(off.make_parser(prompt), PlainParser)


def test_thinking_tags_that_are_control_tokens_reach_the_parser_only() -> None:
    values = dict(describe(THINKS).values)
    first = len(BYTES) + 3
    types = list(values["tokenizer.ggml.token_type"])  # type: ignore[call-overload]
    types[first] = types[first + 1] = 3
    metadata = TypedMetadata("tiny.gguf", {**values, "tokenizer.ggml.token_type": types})
    ids = [first, *range(2), first + 1, *range(2)]
    text = model_text(metadata=metadata)
    delta = text.chat_pipeline(Prompt("")).push(ids)
    assert delta.content == delta.reasoning != ""
    plain = model_text(metadata=metadata, output_parser="none").chat_pipeline(Prompt(""))
    assert plain.push(ids).content == delta.content * 2


def test_names_and_architectures_are_taken_once() -> None:
    formats = TextFormats()
    formats.register(name="a", chat_format=builtin, architectures=["x"])
    with pytest.raises(PluginError, match="'a' is registered already"):
        formats.register(name="a", chat_format=builtin)
    with pytest.raises(PluginError, match="both claim architecture 'x'"):
        formats.register(name="b", chat_format=builtin, architectures=["x"])
    with pytest.raises(PluginError, match="'think'"):
        formats.register(name="think", output_parser=plain_parser)
    with pytest.raises(PluginError, match="neither"):
        formats.register(name="c")


def test_tools_need_a_parser_for_the_architecture_and_a_template_that_writes_them() -> None:
    class NoCalls(PlainParser):
        def __init__(self, tools: Sequence[Tool]) -> None:
            self.tools = tools

    formats = TextFormats()
    formats.register(name="calls", tool_parser=NoCalls, architectures=["arch"])
    writes = "{{ tools | tojson }}" + OWN
    optional = "{% if not tools is defined %}{% set tools = [] %}{% endif %}" + OWN
    assert model_text(formats, describe(writes, "arch")).takes_tools
    assert model_text(formats, describe(optional, "arch")).takes_tools
    assert not model_text(formats, describe(writes, "other")).takes_tools
    assert not model_text(formats, describe(OWN, "arch")).takes_tools
    assert not model_text(formats, describe(writes + "{% bad", "arch")).takes_tools
    with pytest.raises(PluginError, match="tool parser 'calls' is registered already"):
        formats.register(name="calls", tool_parser=NoCalls)


@pytest.mark.parametrize("option", ["chat_format", "output_parser"])
def test_an_unknown_name_lists_the_known_ones(option: str) -> None:
    with pytest.raises(ConfigError, match=r"'nope' is unknown: accepted are auto"):
        model_text(**{option: "nope"})


def test_text_modules_do_not_import_torch() -> None:
    code = "import sys, luce_core.text.formats; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0
