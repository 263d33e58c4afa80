"""Which tools a chat request may bring; what a call becomes in a reply is tested with a parser."""

from __future__ import annotations

from typing import Any

import pytest

from luce_core.errors import RequestError
from luce_core.server.fields import Fields
from luce_core.server.tools import MAX_TOOLS, parse_tools
from luce_core.testing.byte_vocab import CHATML
from luce_core.testing.fake_engine import FakeEngine, ScriptMind
from luce_core.testing.fake_server import FakeServer, byte_text
from luce_core.text.formats import ModelText, TextFormats
from luce_core.text.output_parser import Piece, PieceKind
from luce_core.text.tools import Tool


def function(name: str = "f", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


class LineCalls:
    """Content lines that begin with `!` call the tool of that name, with no arguments."""

    tags: tuple[str, ...] = ()
    in_reasoning = False
    held = 0

    def __init__(self, tools: list[Tool]) -> None:
        self._line = ""

    def push(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        for char in text:
            self._line += char
            if char == "\n":
                pieces += self.flush()
        return pieces

    def flush(self) -> list[Piece]:
        line, self._line = self._line, ""
        if line.startswith("!"):
            name = Piece(PieceKind.CALL, line[1:].strip())
            return [name, Piece(PieceKind.ARGUMENTS, "{}")]
        return [Piece(PieceKind.CONTENT, line)] if line else []


def calling_text() -> ModelText:
    formats = TextFormats()
    formats.register(name="lines", tool_parser=LineCalls, architectures=["fake"])
    return byte_text(formats=formats, template=CHATML + "{{ tools }}")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, None),
        ({"tools": "f"}, "tools"),
        ({"tools": [function()] * (MAX_TOOLS + 1)}, "tools"),
        ({"tools": [1]}, "tools.0"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"type": "function", "function": "f"}]}, "tools.0.function"),
        ({"tools": [function(""), function()]}, "tools.0.function.name"),
        ({"tools": [function("a b")]}, "tools.0.function.name"),
        ({"tools": [function("a>")]}, "tools.0.function.name"),
        ({"tools": [function("a" * 129)]}, "tools.0.function.name"),
        ({"tools": [function(), function("g"), function()]}, "tools.2.function.name"),
        ({"tools": [function(description=1)]}, "tools.0.function.description"),
        ({"tools": [function(parameters=[])]}, "tools.0.function.parameters"),
        ({"tools": [function(strict=True)]}, "tools.0.function.strict"),
        ({"tools": [function(strict=False, parameters=None, description=None)]}, None),
        ({"tools": [function("mcp.server-1/get_2")]}, None),
        ({"tools": [function()], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [function()], "tool_choice": function()}, "tool_choice"),
        ({"tools": [function()], "tool_choice": True}, "tool_choice"),
        ({"tools": [function()], "tool_choice": None}, None),
        ({"tools": [function()], "parallel_tool_calls": 1}, "parallel_tool_calls"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str | None) -> None:
    if param is None:
        parse_tools(Fields(fields), takes_tools=True)
        return
    with pytest.raises(RequestError) as caught:
        parse_tools(Fields(fields), takes_tools=True)
    assert caught.value.param == param


async def test_calls_come_in_both_kinds_of_reply(client: Any) -> None:
    engine = FakeEngine(ScriptMind.text("well\n!f\n!g\nso\n"))
    body = {"tools": [function("f"), function("g")]}
    async with FakeServer(engine, text=calling_text()) as server:
        whole = (await client.chat(server, **body)).json["choices"][0]
        calls = whole["message"]["tool_calls"]
        assert whole["message"]["content"] == "well\nso\n"
        assert [call["function"] for call in calls] == [
            {"name": "f", "arguments": "{}"},
            {"name": "g", "arguments": "{}"},
        ]
        assert whole["finish_reason"] == "tool_calls"
        events = await client.stream_chat(server, **body)
        deltas = [c for choice in events.choices() for c in choice["delta"].get("tool_calls", [])]
        assert [delta.pop("id")[:5] for delta in deltas if "id" in delta] == ["call_"] * 2
        assert deltas == [
            {"index": 0, "type": "function", "function": {"name": "f", "arguments": ""}},
            {"index": 0, "function": {"arguments": "{}"}},
            {"index": 1, "type": "function", "function": {"name": "g", "arguments": ""}},
            {"index": 1, "function": {"arguments": "{}"}},
        ]
        assert events.content() == "well\nso\n"
        assert events.finish() == "tool_calls"
        one = await client.chat(server, **body, parallel_tool_calls=False)
        assert len(one.json["choices"][0]["message"]["tool_calls"]) == 1
        await server.check_leaks()


async def test_log_probabilities_of_calls_are_delivered_once(
    client: Any, logprob_engine: Any
) -> None:
    engine = logprob_engine(ScriptMind.text("well\n!f\nso\n"))
    body = {"tools": [function("f")], "logprobs": True}
    async with FakeServer(engine, text=calling_text()) as server:
        whole = (await client.chat(server, **body)).json["choices"][0]
        events = await client.stream_chat(server, **body)
        entries = [
            entry
            for choice in events.choices()
            if choice["logprobs"]
            for entry in choice["logprobs"]["content"]
        ]
        assert entries == whole["logprobs"]["content"]
        assert len(entries) == 12


async def test_tools_count_in_tokenize_as_in_a_chat(client: Any) -> None:
    async with FakeServer(FakeEngine(ScriptMind.text("x")), text=calling_text()) as server:
        messages = [{"role": "user", "content": "hi"}]
        body = {"messages": messages, "tools": [function("f")]}
        counted = await client.post(server, "/tokenize", body)
        chat = await client.post(server, "/v1/chat/completions", body)
        assert counted.json["count"] == chat.json["usage"]["prompt_tokens"]
        assert (
            counted.json["count"]
            > (await client.post(server, "/tokenize", {"messages": messages})).json["count"]
        )
        reply = await client.post(
            server, "/tokenize", {**body, "chat_template_kwargs": {"tools": []}}
        )
        assert reply.error["param"] == "chat_template_kwargs"


async def test_pings_fill_the_silence_while_a_call_is_withheld(raw: Any, body_of: Any) -> None:
    engine = FakeEngine(ScriptMind.text("!withheld name\n"), step_ms=30)
    settings = {"ping_interval": 0.05}
    async with FakeServer(engine, text=calling_text(), settings=settings) as server:
        connection = await raw(server)
        connection.send(
            "/v1/chat/completions", body_of("x", stream=True, tools=[function("f")]), close=True
        )
        text = (await connection.rest()).decode()
        before, _, after = text.partition('"tool_calls"')
        assert before.count(": ping") >= 3
        assert "data: [DONE]" in after
        assert ": ping" not in after
