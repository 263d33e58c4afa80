"""Qwen's text format: the template is the model file's, the tool calls are read here."""

from __future__ import annotations

from collections.abc import Callable

from luce_qwen_dflash2.text.tool_parser import qwen_tool_parser

ARCHITECTURES = ("qwen35", "qwen35moe")


def register_text_formats(register: Callable[..., None]) -> None:
    """Called from the plugin's hook `luce_register_text_formats`.

    Chats are written by the model file's own template, and thinking is found by the core: both
    follow from the template. Only the form of tool calls is Qwen's own.
    """
    register(name="qwen", tool_parser=qwen_tool_parser, architectures=ARCHITECTURES)
