"""Fields that clients know and this server does not honour: refused by name, never dropped.

Each field is listed with the values that ask for nothing (null always does). Fields that are
neither read nor listed are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from luce_core.errors import RequestError
from luce_core.server.fields import shown

_OFF: tuple[Any, ...] = (False,)
_EMPTY: tuple[Any, ...] = ([], {}, "")
_NOTHING: tuple[Any, ...] = ()
_ZERO: tuple[Any, ...] = (0,)

SHARED_FIELDS: Mapping[str, tuple[Any, ...]] = {
    # structured output
    "response_format": ({"type": "text"},),
    "json_schema": _EMPTY,
    "grammar": _EMPTY,
    "structured_outputs": _EMPTY,
    "guided_json": _NOTHING,
    "guided_regex": _NOTHING,
    "guided_choice": _NOTHING,
    "guided_grammar": _NOTHING,
    "regex": _NOTHING,
    "ebnf": _NOTHING,
    # sampling that this sampler does not have
    "best_of": (1,),
    "use_beam_search": _OFF,
    "length_penalty": (1,),
    "bad_words": _EMPTY,
    "allowed_token_ids": _NOTHING,
    "logits_processors": _EMPTY,
    "prompt_logprobs": _NOTHING,
    "n_probs": _ZERO,
    "typical_p": (1,),
    "tfs_z": (1,),
    "top_a": _ZERO,
    "mirostat": _ZERO,
    "mirostat_mode": _ZERO,
    "dry_multiplier": _ZERO,
    "xtc_probability": _ZERO,
    "dynatemp_range": _ZERO,
    "top_n_sigma": (-1, 0),
    "stop_regex": _EMPTY,
    # text and prompt
    "include_stop_str_in_output": _OFF,
    "skip_special_tokens": (True,),
    "truncate_prompt_tokens": _NOTHING,
    "return_token_ids": _OFF,
    "return_progress": _OFF,
    # placement
    "priority": _ZERO,
    "id_slot": (-1,),
    "lora": _EMPTY,
    "kv_transfer_params": _EMPTY,
    "n_predict": (-1,),
}

CHAT_ONLY: Mapping[str, tuple[Any, ...]] = {
    "functions": _EMPTY,
    "function_call": ("none", "auto"),
    "audio": _NOTHING,
    "modalities": (["text"],),
    "prediction": _NOTHING,
    "web_search_options": _NOTHING,
    "verbosity": ("medium",),
    "chat_template": _NOTHING,
    "documents": _EMPTY,
    "mm_processor_kwargs": _EMPTY,
    "echo": _OFF,
    "include_reasoning": (True,),
    "separate_reasoning": (True,),
    "reasoning_format": ("auto", "deepseek"),
    "reasoning_budget": (-1,),
    "thinking_token_budget": _NOTHING,
    "thinking": _NOTHING,
}

COMPLETION_ONLY: Mapping[str, tuple[Any, ...]] = {
    "suffix": _EMPTY,
    "prompt_embeds": _NOTHING,
}


def refuse_unsupported(
    body: Mapping[str, Any], route_fields: Mapping[str, tuple[Any, ...]]
) -> None:
    """RequestError (400) for the first field whose value asks for what this server lacks."""
    for fields in (SHARED_FIELDS, route_fields):
        for field in fields.keys() & body.keys():
            value = body[field]
            if value is None or any(_same(value, harmless) for harmless in fields[field]):
                continue
            raise RequestError(
                f"{field} is not supported by this server, got {shown(value)}",
                param=field,
                code="unsupported_parameter",
            )


def _same(value: object, harmless: object) -> bool:
    # True == 1 in Python, but not in JSON.
    return isinstance(value, bool) == isinstance(harmless, bool) and value == harmless
