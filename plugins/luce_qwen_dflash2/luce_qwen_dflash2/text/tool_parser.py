"""Qwen's tool calls, in both of their forms."""

from __future__ import annotations

from collections.abc import Sequence

from luce_core.text.call_finder import CallFinder
from luce_core.text.call_reader import CallReader
from luce_core.text.tools import Tool
from luce_qwen_dflash2.text.argument_types import ArgumentTypes
from luce_qwen_dflash2.text.json_call import JsonCall
from luce_qwen_dflash2.text.xml_call import END_CALL, XmlCall, opening_tag

OPEN_CALL = "<tool_call>"


class _QwenMarkup:
    """Calls stand inside `<tool_call>`. One in function form also counts without it, which models
    forget at times, if its name is a tool's."""

    opening = OPEN_CALL
    closing = END_CALL

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._types = ArgumentTypes(tools)
        self.direct = tuple(filter(None, (opening_tag(tool.name) for tool in tools)))

    def reader(self, start: str) -> CallReader | None:
        if start == "{":
            return JsonCall()
        return XmlCall(self._types) if start == "<" else None


def qwen_tool_parser(tools: Sequence[Tool]) -> CallFinder:
    """A ToolParserFactory."""
    return CallFinder(_QwenMarkup(tools), tags=(OPEN_CALL, END_CALL))
