"""Bodies of the generation routes, checked and frozen. Everything here is pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from luce_core.errors import RequestError
from luce_core.server.fields import Fields
from luce_core.server.params import MAX_LOGPROBS, GenerationParams, parse_generation, token_ids
from luce_core.server.tools import ToolInput, parse_tools
from luce_core.server.unsupported import CHAT_ONLY, COMPLETION_ONLY, refuse_unsupported
from luce_core.settings import Settings

_MAX_TEMPLATE_KWARGS_BYTES = 16 << 10
# Arguments of `render` itself; a format checks what its own template reserves.
_RENDER_NAMES = frozenset(
    {"self", "messages", "tools", "add_generation_prompt", "continue_final_message"}
)
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatInput:
    """What a chat template gets."""

    messages: list[dict[str, Any]]
    calls: ToolInput
    template_kwargs: Mapping[str, Any]
    add_generation_prompt: bool
    continue_final_message: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatBody:
    chat: ChatInput
    params: GenerationParams


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionBody:
    """Each prompt is a text or token ids."""

    prompts: tuple[str | tuple[int, ...], ...]
    echo: bool
    params: GenerationParams


def parse_chat(
    body: Mapping[str, Any], settings: Settings, *, vocab_size: int, takes_tools: bool = False
) -> ChatBody:
    refuse_unsupported(body, CHAT_ONLY)
    fields = Fields(body)
    wants = fields.boolean("logprobs", False)
    top = fields.optional_integer("top_logprobs", least=0, most=MAX_LOGPROBS)
    if top and not wants:
        raise RequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
    params = parse_generation(
        fields, settings, vocab_size=vocab_size, logprobs=(top or 0) if wants else None
    )
    return ChatBody(chat=parse_chat_input(fields, takes_tools=takes_tools), params=params)


def parse_chat_input(fields: Fields, *, takes_tools: bool) -> ChatInput:
    """The part that /tokenize shares."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise fields.refuse("messages", "a list with at least one message")
    continues = fields.boolean("continue_final_message", False)
    return ChatInput(
        messages=messages,
        calls=parse_tools(fields, takes_tools=takes_tools),
        template_kwargs=_template_kwargs(fields),
        add_generation_prompt=fields.boolean("add_generation_prompt", not continues),
        continue_final_message=continues,
    )


def _template_kwargs(fields: Fields) -> dict[str, Any]:
    kwargs = dict(fields.object("chat_template_kwargs"))
    reserved = sorted(_RENDER_NAMES & kwargs.keys())
    if reserved:
        raise RequestError(
            f"chat_template_kwargs cannot set {reserved[0]!r}", param="chat_template_kwargs"
        )
    try:
        size = len(orjson.dumps(kwargs))
    except orjson.JSONEncodeError:
        raise RequestError(
            "chat_template_kwargs is nested too deeply", param="chat_template_kwargs"
        ) from None
    if size > _MAX_TEMPLATE_KWARGS_BYTES:
        raise RequestError(
            f"chat_template_kwargs must have at most {_MAX_TEMPLATE_KWARGS_BYTES} bytes of JSON, "
            f"got {size}",
            param="chat_template_kwargs",
        )
    effort = fields.text("reasoning_effort")
    if effort is not None:
        if effort not in _EFFORTS:
            raise fields.refuse("reasoning_effort", f"one of {', '.join(_EFFORTS)}")
        kwargs.setdefault("reasoning_effort", effort)
        if effort == "none":
            kwargs.setdefault("enable_thinking", False)
    return kwargs


def parse_completion(
    body: Mapping[str, Any], settings: Settings, *, vocab_size: int
) -> CompletionBody:
    refuse_unsupported(body, COMPLETION_ONLY)
    fields = Fields(body)
    echo = fields.boolean("echo", False)
    logprobs = fields.optional_integer("logprobs", least=0, most=MAX_LOGPROBS)
    if echo and logprobs is not None:
        raise RequestError(
            "echo with logprobs is not supported: prompts have no logprobs here", param="echo"
        )
    params = parse_generation(
        fields,
        settings,
        vocab_size=vocab_size,
        logprobs=logprobs,
        least_max_tokens=0 if echo else 1,
    )
    prompts = _prompts(fields, settings, vocab_size)
    return CompletionBody(prompts=prompts, echo=echo, params=params)


def _prompts(
    fields: Fields, settings: Settings, vocab_size: int
) -> tuple[str | tuple[int, ...], ...]:
    value = fields.get("prompt")
    if isinstance(value, str):
        return (value,)
    accepted = "a string, a list of strings, a list of token ids or a list of such lists"
    if not isinstance(value, list) or not value:
        raise fields.refuse("prompt", accepted)
    if type(value[0]) is int:
        return (token_ids(value, "prompt", vocab_size),)
    if len(value) > settings.max_prompts:
        raise fields.refuse("prompt", f"a list of at most {settings.max_prompts} prompts")
    if all(isinstance(prompt, str) for prompt in value):
        return tuple(value)
    if all(isinstance(prompt, list) for prompt in value):
        return tuple(token_ids(prompt, "prompt", vocab_size) for prompt in value)
    raise fields.refuse("prompt", accepted)
