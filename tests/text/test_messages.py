"""What clients send becomes what templates expect, or a 400 that names the field."""

from __future__ import annotations

from typing import Any

import pytest

from luce_core.errors import RequestError
from luce_core.text.messages import normalise_messages

USER = {"role": "user", "content": "hi"}


def one(**message: Any) -> dict[str, Any]:
    (normal,) = normalise_messages([message])
    return normal


def test_developer_is_system_and_leading_ones_are_merged() -> None:
    messages = [
        {"role": "developer", "content": "a"},
        {"role": "system", "content": [{"type": "text", "text": "b"}]},
        {"role": "system", "content": None},
        USER,
    ]
    assert normalise_messages(messages) == [{"role": "system", "content": "a\n\nb"}, USER]


def test_a_later_system_message_stays_unless_the_option_makes_it_a_users() -> None:
    messages = [{"role": "system", "content": "a"}, USER, {"role": "system", "content": "b"}]
    assert [m["role"] for m in normalise_messages(messages)] == ["system", "user", "system"]
    roles = [m["role"] for m in normalise_messages(messages, system_anywhere=True)]
    assert roles == ["system", "user", "user"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("", ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
    ],
)
def test_content_becomes_one_string(content: Any, text: str) -> None:
    assert one(role="assistant", content=content)["content"] == text
    assert one(role="assistant")["content"] == ""


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_both_reasoning_fields_are_read(field: str) -> None:
    normal = one(role="assistant", content="x", **{field: "why"})
    assert normal == {"role": "assistant", "content": "x", "reasoning_content": "why"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [('{"a": 1}', {"a": 1}), ("", {}), (None, {}), ("{bad", "{bad"), ({"b": 2}, {"b": 2})],
)
def test_tool_arguments_become_objects(arguments: Any, expected: Any) -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": arguments}}
    (got,) = one(role="assistant", tool_calls=[call])["tool_calls"]
    assert got == {"id": "1", "function": {"name": "f", "arguments": expected}}


def test_results_stand_in_the_order_of_their_calls() -> None:
    def result(call_id: str | None, text: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": call_id, "content": text}

    def contents(*messages: Any) -> list[str]:
        return [message["content"] for message in normalise_messages(messages)]

    calls = {"role": "assistant", "tool_calls": [{"id": "a"}, {"id": "b"}, {"id": "c"}]}
    swapped = (result("c", "3"), result("a", "1"))
    assert contents(USER, calls, *swapped, USER) == ["hi", "", "1", "3", "hi"]
    assert contents(calls, *swapped, calls, *swapped) == ["", "1", "3", "", "1", "3"]
    assert contents(calls, *swapped, result("x", "?")) == ["", "3", "1", "?"]
    assert contents(calls, *swapped, result(None, "?")) == ["", "3", "1", "?"]
    assert contents(USER, *swapped) == ["hi", "3", "1"]


@pytest.mark.parametrize(
    ("message", "param", "said"),
    [
        ({"role": "robot", "content": "x"}, "messages.0.role", "'robot'"),
        ({"content": "x"}, "messages.0.role", "developer"),
        ({"role": ["user"], "content": "x"}, "messages.0.role", "user"),
        ({"role": "user", "content": 5}, "messages.0.content", "string"),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]},
            "messages.0.content.1",
            "'image_url'",
        ),
        ({"role": "user", "content": ["x"]}, "messages.0.content.0", "object"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages.0.content.0.text", "string"),
        ({"role": "assistant", "reasoning": 1}, "messages.0.reasoning", "string"),
        ({"role": "assistant", "tool_calls": {}}, "messages.0.tool_calls", "list"),
        ("hi", "messages.0", "object"),
    ],
)
def test_a_wrong_message_is_refused_by_field(message: Any, param: str, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        normalise_messages([message])
    assert caught.value.param == param
    assert caught.value.status == 400


def test_no_messages_are_refused_and_the_input_is_left_alone() -> None:
    with pytest.raises(RequestError, match="empty"):
        normalise_messages([])
    message = {"role": "developer", "content": [{"type": "text", "text": "a"}], "reasoning": "r"}
    copy = dict(message)
    normalise_messages([message])
    assert message == copy
