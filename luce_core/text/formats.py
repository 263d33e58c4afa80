"""Which chat format and output parser a model gets, and everything textual of one loaded model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from luce_core.errors import ConfigError, PluginError
from luce_core.readable import readable
from luce_core.text.chat_format import (
    TEMPLATES,
    ChatFormat,
    JinjaChatFormat,
    load_template_file,
)
from luce_core.text.detokenizer import Detokenizer
from luce_core.text.output_parser import ParserFactory, plain_parser, think_parser
from luce_core.text.pipeline import TextPipeline
from luce_core.text.prompt import Prompt
from luce_core.text.stop_strings import StopSet, StopStrings
from luce_core.text.tokenizer import Tokenizer
from luce_core.text.tools import CallingParser, Tool, ToolParserFactory

if TYPE_CHECKING:
    from pathlib import Path

    from luce_core.weights.typed_metadata import TypedMetadata

TEMPLATE_KEY = "tokenizer.chat_template"
AUTO = "auto"
NO_STOPS = StopSet()
_T = TypeVar("_T")

# Chat formats need the model's tokenizer (its control words, BOS, EOS), so plugins offer a maker.
ChatFormatFactory = Callable[[Tokenizer], ChatFormat]


@dataclass(frozen=True, slots=True)
class ModelText:
    """The text side of one loaded model: the server renders, encodes and opens pipelines here."""

    tokenizer: Tokenizer
    chat_format: ChatFormat
    make_parser: ParserFactory
    make_tool_parser: ToolParserFactory | None = None

    @property
    def takes_tools(self) -> bool:
        """Whether tools reach the prompt and calls of them are found in the answer."""
        return self.make_tool_parser is not None and self.chat_format.takes_tools

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.tokenizer.warnings + self.chat_format.warnings

    def chat_pipeline(
        self,
        prompt: Prompt,
        stops: StopSet = NO_STOPS,
        *,
        min_tokens: int = 0,
        tools: Sequence[Tool] = (),
        most_calls: int | None = None,
    ) -> TextPipeline:
        """The pipeline for one choice that answers a rendered chat. `tools` need `takes_tools`."""
        parser = self.make_parser(prompt)
        if tools:
            assert self.make_tool_parser is not None
            parser = CallingParser(parser, self.make_tool_parser(tools))
        shown = map(self.tokenizer.token_id, parser.tags)
        detokenizer = Detokenizer(self.tokenizer, shown=[i for i in shown if i is not None])
        return TextPipeline(
            detokenizer,
            StopStrings(stops),
            parser,
            min_tokens=min_tokens,
            most_calls=most_calls,
        )

    def plain_pipeline(
        self, stops: StopSet = NO_STOPS, *, min_tokens: int = 0, starts_text: bool = False
    ) -> TextPipeline:
        """The pipeline for a raw completion; `starts_text` if its prompt holds no text."""
        detokenizer = Detokenizer(self.tokenizer, starts_text=starts_text)
        parser = plain_parser(Prompt(""))
        return TextPipeline(detokenizer, StopStrings(stops), parser, min_tokens=min_tokens)


class TextFormats:
    """Chat formats and parsers by name and by architecture; plugins add theirs at load."""

    def __init__(self) -> None:
        self._chat_formats: dict[str, ChatFormatFactory] = {}
        self._parsers: dict[str, ParserFactory] = {"none": plain_parser, "think": think_parser}
        self._chat_format_of: dict[str, str] = {}
        self._parser_of: dict[str, str] = {}
        self._tool_parsers: dict[str, ToolParserFactory] = {}
        self._tool_parser_of: dict[str, str] = {}

    def register(
        self,
        *,
        name: str,
        chat_format: ChatFormatFactory | None = None,
        output_parser: ParserFactory | None = None,
        tool_parser: ToolParserFactory | None = None,
        architectures: Iterable[str] = (),
    ) -> None:
        """The callable that `luce_register_text_formats` hands to plugins.

        PluginError if a name or an architecture is taken, or there is nothing to register.
        """
        if chat_format is None and output_parser is None and tool_parser is None:
            raise PluginError(
                f"text format {name!r}: neither chat_format, output_parser nor tool_parser given"
            )
        architectures = tuple(architectures)
        if chat_format is not None:
            _add("chat format", self._chat_formats, name, chat_format)
            _claim("chat format", self._chat_format_of, architectures, name)
        if output_parser is not None:
            _add("output parser", self._parsers, name, output_parser)
            _claim("output parser", self._parser_of, architectures, name)
        if tool_parser is not None:
            _add("tool parser", self._tool_parsers, name, tool_parser)
            _claim("tool parser", self._tool_parser_of, architectures, name)

    def for_model(
        self,
        metadata: TypedMetadata,
        tokenizer: Tokenizer,
        *,
        template_file: str | Path | None = None,
        chat_format: str = AUTO,
        output_parser: str = AUTO,
        system_anywhere: bool = False,
    ) -> ModelText:
        """Everything textual of one model.

        The chat format is, in this order: the template file, the named format, the file's own
        template, what a plugin offers for the architecture, ChatML with a warning. The parser
        `auto` is the architecture's, else `think` if the template writes `</think>`, else `none`.
        The tool parser is the architecture's; without one, or with a chat format that writes no
        tools, the model takes none.
        """
        architecture = metadata.str("general.architecture", default="")

        def jinja(template: str, source: str, *warnings: str) -> ChatFormat:
            return JinjaChatFormat(
                template,
                bos_token=tokenizer.bos_token,
                eos_token=tokenizer.eos_token,
                source=source,
                control_words=tokenizer.control_words,
                system_anywhere=system_anywhere,
                warnings=warnings,
            )

        own = metadata.str(TEMPLATE_KEY, default="")
        plugin_name = self._chat_format_of.get(architecture)
        if template_file is not None:
            chat = jinja(load_template_file(template_file), f"file {readable(template_file)}")
        elif chat_format != AUTO:
            chat = _named("chat format", self._chat_formats, chat_format)(tokenizer)
        elif own:
            chat = jinja(own.replace("\r\n", "\n"), f"model file, {TEMPLATE_KEY}")
        elif plugin_name is not None:
            chat = self._chat_formats[plugin_name](tokenizer)
        else:
            chatml = load_template_file(TEMPLATES / "chatml.jinja")
            warning = f"{metadata.path}: {TEMPLATE_KEY} is missing: chats are written as ChatML"
            chat = jinja(chatml, "builtin chatml", warning)
        calls = self._tool_parser_of.get(architecture)
        return ModelText(
            tokenizer,
            chat,
            self._parser(output_parser, architecture, chat),
            None if calls is None else self._tool_parsers[calls],
        )

    def _parser(self, name: str, architecture: str, chat: ChatFormat) -> ParserFactory:
        if name == AUTO:
            thinks = isinstance(chat, JinjaChatFormat) and "</think>" in chat.template
            name = self._parser_of.get(architecture, "think" if thinks else "none")
        return _named("output parser", self._parsers, name)


def _add(what: str, known: dict[str, _T], name: str, value: _T) -> None:
    if name == AUTO or name in known:
        raise PluginError(f"{what} {name!r} is registered already")
    known[name] = value


def _claim(what: str, owners: dict[str, str], architectures: tuple[str, ...], name: str) -> None:
    for architecture in architectures:
        owner = owners.setdefault(architecture, name)
        if owner != name:
            raise PluginError(
                f"{what}s {owner!r} and {name!r} both claim architecture {architecture!r}"
            )


def _named(what: str, known: dict[str, _T], name: str) -> _T:
    if name not in known:
        accepted = ", ".join([AUTO, *sorted(known)])
        raise ConfigError(f"{what} {name!r} is unknown: accepted are {accepted}")
    return known[name]
