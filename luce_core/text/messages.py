"""Chat messages as clients send them, brought into the form that chat templates expect.

* `developer` is `system`; system messages at the start become one, joined by an empty line.
* A list of text parts becomes one string, joined by newlines; null or missing content is "".
* `reasoning` and `reasoning_content` are both read, and handed on as `reasoning_content`.
* Tool call arguments that are a JSON string become the object; other strings stay as they are.
* Results of one assistant message's calls stand in the order of the calls, if their ids say so:
  templates write results without ids.
* With `system_anywhere`, a system message after the start becomes a user message where it stands,
  so the ids of earlier turns do not change. Without it the template decides; many refuse it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from luce_core.errors import RequestError

ROLES = ("system", "developer", "user", "assistant", "tool")


def normalise_messages(
    messages: Sequence[Mapping[str, Any]], *, system_anywhere: bool = False
) -> list[dict[str, Any]]:
    """New message dictionaries; RequestError names the message and field that is wrong."""
    if not messages:
        raise RequestError("messages must not be empty", param="messages")
    normal = [_normalise(message, f"messages.{i}") for i, message in enumerate(messages)]
    _order_results(normal)
    leading = 0
    while leading < len(normal) and normal[leading]["role"] == "system":
        leading += 1
    if leading > 1:
        text = "\n\n".join(m["content"] for m in normal[:leading] if m["content"])
        normal[:leading] = [{**normal[0], "content": text}]
    if system_anywhere:
        for message in normal[1:]:
            if message["role"] == "system":
                message["role"] = "user"
    return normal


def _normalise(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} must be an object", param=where)
    role = message.get("role")
    if role not in ROLES:
        raise RequestError(
            f"{where}.role must be one of {', '.join(ROLES)}, got {_shown(role)}",
            param=f"{where}.role",
        )
    normal = {key: value for key, value in message.items() if value is not None}
    normal["role"] = "system" if role == "developer" else role
    normal["content"] = _text_of(message.get("content"), f"{where}.content")
    normal.pop("reasoning", None)
    for field in ("reasoning_content", "reasoning"):
        value = message.get(field)
        if value is not None and not isinstance(value, str):
            raise RequestError(f"{where}.{field} must be a string", param=f"{where}.{field}")
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if reasoning:
        normal["reasoning_content"] = reasoning
    if "tool_calls" in normal:
        normal["tool_calls"] = _tool_calls(normal["tool_calls"], f"{where}.tool_calls")
    return normal


def _text_of(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where} must be a string or a list of text parts", param=where)
    return "\n".join(_part_text(part, f"{where}.{i}") for i, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    if not isinstance(part, Mapping):
        raise RequestError(f"{where} must be an object with a type", param=where)
    kind = part.get("type")
    if kind not in ("text", "input_text", "output_text"):
        raise RequestError(
            f"{where}: this server takes text parts only, got {_shown(kind)}", param=where
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(f"{where}.text must be a string", param=f"{where}.text")
    return text


def _tool_calls(calls: Any, where: str) -> list[Any]:
    if not isinstance(calls, list):
        raise RequestError(f"{where} must be a list", param=where)
    return [_tool_call(call) for call in calls]


def _tool_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    if arguments is None:
        arguments = {}
    elif isinstance(arguments, str):
        try:
            parsed = orjson.loads(arguments or "{}")
        except orjson.JSONDecodeError:
            parsed = arguments
        arguments = parsed if isinstance(parsed, dict) else arguments
    return {**call, "function": {**function, "arguments": arguments}}


def _order_results(messages: list[dict[str, Any]]) -> None:
    """Sort each run of tool messages by the ids of the calls that it answers, if all are known."""
    place = 0
    while place < len(messages):
        start = place + 1
        place = start
        while place < len(messages) and messages[place]["role"] == "tool":
            place += 1
        calls = messages[start - 1].get("tool_calls", ())
        ids = [call.get("id") for call in calls if isinstance(call, Mapping)]
        results = messages[start:place]
        answered = [result.get("tool_call_id") for result in results]
        if all(isinstance(call_id, str) and call_id in ids for call_id in answered):
            messages[start:place] = sorted(results, key=lambda r: ids.index(r["tool_call_id"]))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."
