"""Chats as DeepSeek V4 wants them. The model ships no template: this writes them directly."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from luce_core.errors import RequestError
from luce_core.text.messages import normalise_messages
from luce_core.text.prompt import ControlGuard, Prompt, pick_marks
from luce_core.text.tokenizer import Tokenizer
from luce_deepseek_v4.text import markup as m


class DeepSeekChat:
    """A ChatFormat.

    Template arguments: `thinking` or `enable_thinking` (true unless set; false for the effort
    `none`), `reasoning_effort` (only `max` adds words) and `drop_thinking` (true: what was thought
    before the last user message is left out, unless tools are in play).
    """

    source = "builtin deepseek_v4"
    warnings: tuple[str, ...] = ()
    takes_tools = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._bos = tokenizer.bos_token
        self._guard = ControlGuard(tokenizer.control_words)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
        **template_kwargs: Any,
    ) -> Prompt:
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other",
                param="continue_final_message",
            )
        thinks = _switch(template_kwargs, ("thinking", "enable_thinking"))
        drops = _switch(template_kwargs, ("drop_thinking",))
        normal = normalise_messages(messages)
        functions = [dict(tool).get("function", {}) for tool in tools]
        (guard,) = pick_marks([normal, functions], m.TOOLS_HEAD, 1)
        guarded = self._guard.protect(normal, guard)
        schemas = self._guard.protect(functions, guard)
        turns = [message for message in guarded if message["role"] != "system"]
        uses_tools = bool(schemas) or any(message["role"] == "tool" for message in turns)
        keeps_from = 0 if uses_tools or not drops else _last_question(turns)
        text = [self._bos]
        if thinks and template_kwargs.get("reasoning_effort") == "max":
            text.append(m.MAX_EFFORT)
        text.append(_system(guarded, schemas))
        in_user = False
        for place, message in enumerate(turns):
            is_open = continue_final_message and place == len(turns) - 1
            if message["role"] == "assistant":
                keeps = thinks and place >= keeps_from
                text.append(_answer(message, keeps_thoughts=keeps, is_open=is_open))
                in_user = False
                continue
            text.append("\n\n" if in_user else m.USER)
            text.append(_question(message, is_open=is_open))
            in_user = True
        if add_generation_prompt:
            text += (m.ASSISTANT, m.THINK if thinks else m.END_THINK)
        marked = "".join(text)
        if not continue_final_message:
            return Prompt(marked, guard)
        return Prompt(marked, guard, self._guard.tail(marked).replace(guard, ""))


def _switch(options: Mapping[str, Any], names: tuple[str, ...]) -> bool:
    """The first of the names that is given; true without any."""
    for name in names:
        value = options.get(name)
        if value is None:
            continue
        if not isinstance(value, bool):
            raise RequestError(
                f"chat_template_kwargs.{name} must be true or false",
                param="chat_template_kwargs",
            )
        return value
    return True


def _last_question(turns: Sequence[Mapping[str, Any]]) -> int:
    """The place of the last turn that is no answer."""
    places = (place for place, turn in enumerate(turns) if turn["role"] != "assistant")
    return max(places, default=-1)


def _system(messages: Sequence[Mapping[str, Any]], schemas: Sequence[Any]) -> str:
    parts = [message["content"] for message in messages if message["role"] == "system"]
    if schemas:
        listed = "".join(_json(schema) + "\n" for schema in schemas)
        parts.append(m.TOOLS_HEAD + listed + m.TOOLS_TAIL)
    return "\n\n".join(part for part in parts if part)


def _question(message: Mapping[str, Any], *, is_open: bool) -> str:
    if message["role"] != "tool":
        return str(message["content"])
    return f"{m.RESULT}{message['content']}{'' if is_open else m.END_RESULT}"


def _answer(message: Mapping[str, Any], *, keeps_thoughts: bool, is_open: bool) -> str:
    text = [m.ASSISTANT]
    if keeps_thoughts:
        text += (m.THINK, message.get("reasoning_content", ""))
    text += (m.END_THINK, message["content"])
    if is_open:
        return "".join(text)
    calls = message.get("tool_calls")
    if calls:
        text += ("\n\n", m.CALLS, "\n", *map(_call, calls), m.END_CALLS)
    text.append(m.END)
    return "".join(text)


def _call(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(
            "a tool call must be a function with a name", param="messages", code="chat_template"
        )
    arguments = function["arguments"]
    if not isinstance(arguments, Mapping):
        # No JSON object: the model sees what it once wrote.
        arguments = {"arguments": arguments}
    written = "".join(_parameter(name, value) for name, value in arguments.items()) or "\n"
    return f'{m.INVOKE} name="{function["name"]}">\n{written}{m.END_INVOKE}\n'


def _parameter(name: str, value: Any) -> str:
    is_string = isinstance(value, str)
    text = value if is_string else _json(value)
    kind = "true" if is_string else "false"
    return f'{m.PARAMETER} name="{name}" string="{kind}">{text}{m.END_PARAMETER}\n'


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
