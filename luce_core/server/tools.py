"""The tools of a chat request. What would need constrained decoding is refused by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from luce_core.errors import RequestError
from luce_core.server.fields import Fields, shown
from luce_core.text.tools import Tool

MAX_TOOLS = 512
_NAME = re.compile(r"[^\s<>\"'`]{1,128}")


@dataclass(frozen=True, slots=True)
class ToolInput:
    """`tools` is empty if the model may call none; `most_calls` None is any number."""

    tools: tuple[Tool, ...] = ()
    most_calls: int | None = None


def parse_tools(fields: Fields, *, takes_tools: bool) -> ToolInput:
    """`tools`, `tool_choice` and `parallel_tool_calls`; RequestError names the one that is wrong.

    `takes_tools` is whether the model's text format can write tools and find calls.
    """
    given = fields.get("tools")
    if given and not takes_tools:
        raise RequestError(
            f"tools is not supported for this model: its chat template or its text format knows "
            f"none, got {shown(given)}",
            param="tools",
            code="unsupported_parameter",
        )
    choice = fields.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise RequestError(
            f"tool_choice must be 'auto' or 'none', got {shown(choice)}: calls that are required "
            "need constrained decoding, which this server does not have",
            param="tool_choice",
            code="unsupported_parameter",
        )
    parallel = fields.boolean("parallel_tool_calls", True)
    if not given:
        given = []
    if not isinstance(given, list) or len(given) > MAX_TOOLS:
        raise fields.refuse("tools", f"a list of at most {MAX_TOOLS} tools")
    tools = tuple(_tool(tool, f"tools.{index}") for index, tool in enumerate(given))
    names = [tool.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            param = f"tools.{index}.function.name"
            raise RequestError(f"{param}: {name!r} is the name of two tools", param=param)
    if choice == "none":
        return ToolInput()
    return ToolInput(tools, None if parallel else 1)


def _tool(value: Any, where: str) -> Tool:
    if not isinstance(value, Mapping):
        raise RequestError(f"{where} must be an object, got {shown(value)}", param=where)
    fields = Fields(value, within=where)
    if fields.get("type") != "function":
        raise fields.refuse("type", "'function'")
    if fields.get("function") is None:
        raise fields.refuse("function", "an object")
    function = Fields(fields.object("function"), within=f"{where}.function")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise function.refuse(
            "name", "a name of 1 to 128 characters without spaces, quotes and angle brackets"
        )
    function.text("description")
    parameters = function.object("parameters")
    if function.boolean("strict", False):
        raise RequestError(
            f"{where}.function.strict is not supported: arguments that must fit their schema "
            "need constrained decoding, which this server does not have",
            param=f"{where}.function.strict",
            code="unsupported_parameter",
        )
    return Tool(name=name, parameters=parameters, spec=value)
