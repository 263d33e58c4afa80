"""Calls that published Qwen templates write are read back; optional, they are not shipped here.

`QWEN_TEMPLATES` names a folder with llama.cpp's `models/templates/*.jinja`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from luce_core.errors import RequestError

from .qwen_markup import SEARCH, WEATHER, qwen_text, tool

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("QWEN_TEMPLATES" not in os.environ, reason="QWEN_TEMPLATES is not set"),
]
TOOLS = [WEATHER, SEARCH]
ARGUMENTS = [{"city": "Rome\n<b>", "days": 3}, {"query": "é", "filters": {"a": [1, None]}}]
THINKING = ("Qwen3.5-4B.jinja", "Qwen-Qwen3-0.6B.jinja")
NAMES = (*THINKING, "Qwen3-Coder.jinja")


def template(name: str) -> str:
    return (Path(os.environ["QWEN_TEMPLATES"]) / name).read_text(encoding="utf-8")


def call(name: str, arguments: Any, number: int) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": f"call_{number}", "type": "function", "function": function}


CALLS = [call("weather", ARGUMENTS[0], 0), call("search", ARGUMENTS[1], 1)]
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": "Let me look.",
        "reasoning_content": "plan",
        "tool_calls": CALLS,
    },
    {"role": "tool", "tool_call_id": "call_0", "content": "sunny"},
    {"role": "tool", "tool_call_id": "call_1", "content": "found"},
]


@pytest.mark.parametrize("name", NAMES)
def test_what_the_template_writes_is_what_the_parser_reads(name: str) -> None:
    text = qwen_text(template(name))
    assert text.takes_tools
    before = text.chat_format.render(CHAT[:2], tools=TOOLS)
    after = text.chat_format.render(CHAT, tools=TOOLS)
    assert '"weather"' in before.text or "<name>weather</name>" in before.text
    start = before.text.removesuffix("<think>\n")
    assert after.text.startswith(start.rstrip("\n"))
    written = after.text[len(start.rstrip("\n")) :].partition("<|im_end|>")[0]
    for size in (1, len(written.encode())):
        pipeline = text.chat_pipeline(before, tools=[tool(spec) for spec in TOOLS])
        ids = text.tokenizer.encode(written, parse_special=True)
        deltas = [pipeline.push(ids[i : i + size]) for i in range(0, len(ids), size)]
        deltas.append(pipeline.finish())
        assert "".join(d.content for d in deltas).strip("\n") == "Let me look."
        assert "".join(d.reasoning for d in deltas) == ("plan" if name in THINKING else "")
        calls = [c for d in deltas for c in d.calls]
        assert [c.name for c in calls if c.name] == ["weather", "search"]
        for number, expected in enumerate(ARGUMENTS):
            got = "".join(c.arguments for c in calls if c.number == number)
            assert json.loads(got) == expected


@pytest.mark.parametrize("name", NAMES)
def test_arguments_that_are_no_json_are_written_all_the_same(name: str) -> None:
    broken = {**CALLS[0], "function": {"name": "weather", "arguments": '{"city": "Ro'}}
    chat = [*CHAT[:2], {"role": "assistant", "content": "", "tool_calls": [broken]}, CHAT[3]]
    assert '{"city": "Ro' in qwen_text(template(name)).chat_format.render(chat, tools=TOOLS).text


@pytest.mark.parametrize("name", THINKING)
def test_thinking_starts_and_is_switched_off_as_the_template_has_it(name: str) -> None:
    text = qwen_text(template(name))
    off = text.chat_format.render(CHAT[:2], enable_thinking=False)
    assert not text.chat_pipeline(off)._parser.in_reasoning
    assert off.text.endswith("<think>\n\n</think>\n\n")
    on = text.chat_format.render(CHAT[:2])
    assert text.chat_pipeline(on)._parser.in_reasoning == on.text.endswith("<think>\n")


def test_what_the_template_refuses_is_refused_in_its_words() -> None:
    chat = qwen_text(template("Qwen3.5-4B.jinja")).chat_format
    with pytest.raises(RequestError, match="System message must be at the beginning") as caught:
        chat.render([*CHAT, CHAT[0]])
    assert caught.value.code == "chat_template"
    with pytest.raises(RequestError, match="No user query found"):
        chat.render(CHAT[2:])
    assert chat.render(CHAT, tools=TOOLS).text.endswith("<think>\n")
