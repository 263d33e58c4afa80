"""POST /tokenize and /detokenize, in llama-server's (`content`) and vLLM's (`prompt`) forms."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from luce_core.errors import RequestError
from luce_core.server.background import in_background
from luce_core.server.body import read_object
from luce_core.server.chat import render
from luce_core.server.errors import json_response
from luce_core.server.fields import Fields
from luce_core.server.params import token_ids
from luce_core.server.schema import parse_chat_input
from luce_core.server.served_model import ServedModel
from luce_core.server.state import serving_of
from luce_core.server.text_limit import refuse_hopeless
from luce_core.text.tokenizer import Tokenizer


async def tokenize(request: web.Request) -> web.Response:
    """Ids of `content`, `prompt` or `messages`; control tokens in a text are taken as tokens.

    `content` gets no BOS unless `add_special`, `prompt` gets what /v1/completions would give it
    unless `add_special_tokens` is false, `messages` are rendered as for a chat.
    """
    model = serving_of(request).model
    values = await read_object(request)
    size = request.content_length
    return json_response(await in_background(size, lambda: _tokenize(model, Fields(values))))


def _tokenize(model: ServedModel, fields: Fields) -> dict[str, Any]:
    tokenizer = model.text.tokenizer
    given = [name for name in ("content", "prompt", "messages") if fields.get(name) is not None]
    if len(given) != 1:
        param = given[-1] if given else "content"
        raise RequestError("give one of content, prompt or messages", param=param)
    if given == ["messages"]:
        prompt = render(model, parse_chat_input(fields, takes_tools=model.text.takes_tools))
        ids = tokenizer.encode_prompt(prompt)
    else:
        text = fields.text(given[0]) or ""
        refuse_hopeless(model, text, given[0])
        if given == ["prompt"]:
            special = fields.boolean("add_special_tokens", True)
        else:
            special = fields.boolean("add_special", False)
        parse = fields.boolean("parse_special", True)
        ids = tokenizer.encode(text, parse_special=parse, add_special=special)
    tokens: list[Any] = list(ids)
    if fields.boolean("with_pieces", False):
        tokens = [{"id": token, "piece": _piece(tokenizer, token)} for token in ids]
    reply = {"tokens": tokens, "count": len(ids), "max_model_len": model.max_context}
    if fields.boolean("return_token_strs", False):
        reply["token_strs"] = [tokenizer.token_text(token) for token in ids]
    return reply


def _piece(tokenizer: Tokenizer, token: int) -> str | list[int]:
    """The token's text, or its bytes where they are no text by themselves."""
    data = tokenizer.token_bytes(token, control=True)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


async def detokenize(request: web.Request) -> web.Response:
    """The text of `tokens`, under the names of both forms."""
    model = serving_of(request).model
    values = await read_object(request)
    fields = Fields(values)
    found = fields.get("tokens")
    if not isinstance(found, list):
        raise fields.refuse("tokens", "a list of token ids")
    text = await in_background(
        request.content_length,
        lambda: model.text.tokenizer.decode(token_ids(found, "tokens", model.vocab_size)),
    )
    return json_response({"content": text, "prompt": text})
