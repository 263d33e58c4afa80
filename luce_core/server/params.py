"""What both generation routes take: sampling, stopping, choices, streaming.

Defaults are OpenAI's where it has one (temperature 1, top_p 1, penalties 0), else off. Counts
without a limit of their own are bounded by int32.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from luce_core.errors import RequestError
from luce_core.request import SamplingParams
from luce_core.server.fields import Fields, as_number, shown
from luce_core.settings import Settings

MAX_LOGPROBS = 20
MAX_TEMPERATURE = 1e6
# Below this, scores divided by the temperature leave the range of float32: greedy says the same.
_GREEDY_BELOW = 1e-5
_MAX_TOKENS = (1 << 31) - 1
_MAX_SEED = (1 << 64) - 1
_MAX_STOP_IDS = 1024
# All stop strings of a request together, in multiples of what one may have.
_ALL_STOPS = 4
_TOKEN_KEY = re.compile(r"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationParams:
    """A checked request without its prompt. `max_tokens` None is the rest of the context."""

    model: str | None
    n: int
    max_tokens: int | None
    sampling: SamplingParams
    stops: tuple[str, ...]
    stop_token_ids: frozenset[int]
    stream: bool
    include_usage: bool
    continuous_usage: bool


def parse_generation(
    fields: Fields,
    settings: Settings,
    *,
    vocab_size: int,
    logprobs: int | None,
    least_max_tokens: int = 1,
) -> GenerationParams:
    """RequestError (400) names the first field that is wrong. `vocab_size` is the logits'."""
    n = fields.integer("n", 1, least=1, most=settings.max_n)
    max_tokens = _max_tokens(fields, least_max_tokens)
    stream = fields.boolean("stream", False)
    options = Fields(fields.object("stream_options"), within="stream_options")
    if not stream and fields.get("stream_options") is not None:
        raise RequestError(
            "stream_options is only allowed when stream is true", param="stream_options"
        )
    continuous = options.boolean("continuous_usage_stats", False)
    return GenerationParams(
        model=fields.text("model"),
        n=n,
        max_tokens=max_tokens,
        sampling=_sampling(fields, settings, vocab_size, logprobs, max_tokens),
        stops=_stops(fields, settings),
        stop_token_ids=_stop_token_ids(fields, vocab_size),
        stream=stream,
        include_usage=options.boolean("include_usage", False),
        continuous_usage=continuous,
    )


def _max_tokens(fields: Fields, least: int) -> int | None:
    newer = fields.optional_integer("max_completion_tokens", least=least, most=_MAX_TOKENS)
    older = fields.optional_integer("max_tokens", least=least, most=_MAX_TOKENS)
    return older if newer is None else newer


def _sampling(
    fields: Fields,
    settings: Settings,
    vocab_size: int,
    logprobs: int | None,
    max_tokens: int | None,
) -> SamplingParams:
    temperature = fields.number("temperature", 1.0, least=0.0, most=MAX_TEMPERATURE)
    min_tokens = fields.integer("min_tokens", 0, least=0, most=_MAX_TOKENS)
    if max_tokens is not None and min_tokens > max_tokens:
        raise fields.refuse("min_tokens", f"at most max_tokens, which is {max_tokens}")
    # llama.cpp's clients call it repeat_penalty.
    repeat = fields.number("repeat_penalty", 1.0, least=0.01, most=100.0)
    seed = fields.optional_integer(
        "seed", least=0, most=_MAX_SEED, accepted="an integer from 0 to 2^64 - 1"
    )
    return SamplingParams(
        temperature=temperature if temperature >= _GREEDY_BELOW else 0.0,
        top_k=max(0, fields.integer("top_k", 0, least=-1, most=_MAX_TOKENS)),
        top_p=fields.number("top_p", 1.0, least=0.0, most=1.0),
        min_p=fields.number("min_p", 0.0, least=0.0, most=1.0),
        repetition_penalty=fields.number("repetition_penalty", repeat, least=0.01, most=100.0),
        presence_penalty=fields.number("presence_penalty", 0.0, least=-2.0, most=2.0),
        frequency_penalty=fields.number("frequency_penalty", 0.0, least=-2.0, most=2.0),
        logit_bias=_logit_bias(fields, settings, vocab_size),
        seed=secrets.randbits(64) if seed is None else seed,
        logprobs=logprobs,
        min_tokens=max(min_tokens, settings.min_tokens),
        ignore_eos=fields.boolean("ignore_eos", False),
    )


def _logit_bias(
    fields: Fields, settings: Settings, vocab_size: int
) -> tuple[tuple[int, float], ...]:
    bias = fields.object("logit_bias")
    if len(bias) > settings.max_logit_bias:
        raise fields.refuse("logit_bias", f"an object of at most {settings.max_logit_bias} entries")
    pairs = []
    for key, value in bias.items():
        if not _TOKEN_KEY.fullmatch(key) or int(key) >= vocab_size:
            raise RequestError(
                f"logit_bias keys must be token ids from 0 to {vocab_size - 1} written as "
                f"decimal strings, got {shown(key)}",
                param="logit_bias",
            )
        number = as_number(value)
        if number is None or not -100.0 <= number <= 100.0:
            raise RequestError(
                f"logit_bias values must be numbers from -100 to 100, got {shown(value)} "
                f"for token {key}",
                param="logit_bias",
            )
        pairs.append((int(key), number))
    return tuple(pairs)


def _stops(fields: Fields, settings: Settings) -> tuple[str, ...]:
    value = fields.get("stop")
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise fields.refuse("stop", "a string or a list of strings")
    if len(stops) > settings.max_stops:
        raise fields.refuse("stop", f"a list of at most {settings.max_stops} strings")
    for stop in stops:
        if len(stop.encode()) > settings.max_stop_bytes:
            raise RequestError(
                f"a stop string must have at most {settings.max_stop_bytes} bytes, "
                f"got one of {len(stop.encode())}",
                param="stop",
            )
    unique = tuple(dict.fromkeys(stop for stop in stops if stop))
    total = sum(len(stop.encode()) for stop in unique)
    if total > _ALL_STOPS * settings.max_stop_bytes:
        raise RequestError(
            f"stop strings must have at most {_ALL_STOPS * settings.max_stop_bytes} bytes in all, "
            f"got {total}",
            param="stop",
        )
    return unique


def _stop_token_ids(fields: Fields, vocab_size: int) -> frozenset[int]:
    value = fields.get("stop_token_ids")
    if value is None:
        return frozenset()
    if not isinstance(value, list) or len(value) > _MAX_STOP_IDS:
        raise fields.refuse("stop_token_ids", f"a list of at most {_MAX_STOP_IDS} token ids")
    return frozenset(token_ids(value, "stop_token_ids", vocab_size))


def token_ids(values: list[object], param: str, vocab_size: int) -> tuple[int, ...]:
    """Checked token ids; RequestError names the first that is none."""
    ids = []
    for value in values:
        if type(value) is not int or not 0 <= value < vocab_size:
            raise RequestError(
                f"{param} must hold token ids from 0 to {vocab_size - 1}, got {shown(value)}",
                param=param,
            )
        ids.append(value)
    return tuple(ids)
