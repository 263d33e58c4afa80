"""DeepSeek V4's text format: its own markup, without a template."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from luce_core.text.call_finder import CallFinder
from luce_core.text.call_reader import CallReader
from luce_core.text.output_parser import think_parser
from luce_core.text.tools import Tool
from luce_deepseek_v4.text.chat import DeepSeekChat
from luce_deepseek_v4.text.dsml_call import DsmlCall
from luce_deepseek_v4.text.markup import CALLS, DSML, END_CALLS, INVOKE

ARCHITECTURES = ("deepseek4",)


class _Dsml:
    """No word that holds the model's own token stands in plain text, so a call counts outside the
    block too, whatever its name."""

    opening = CALLS
    closing = END_CALLS
    direct: tuple[str, ...] = (INVOKE,)

    def reader(self, start: str) -> CallReader | None:
        return DsmlCall() if start == "<" else None


def dsml_tool_parser(tools: Sequence[Tool]) -> CallFinder:
    """A ToolParserFactory. The calls say themselves which values are strings."""
    return CallFinder(_Dsml(), tags=(DSML,))


def register_text_formats(register: Callable[..., None]) -> None:
    """Called from the plugin's hook `luce_register_text_formats`."""
    register(
        name="deepseek_v4",
        chat_format=DeepSeekChat,
        output_parser=think_parser,
        tool_parser=dsml_tool_parser,
        architectures=ARCHITECTURES,
    )
