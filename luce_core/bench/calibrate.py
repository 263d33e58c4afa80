"""How many filler words bring a prompt to a wanted number of tokens, whatever the tokenizer."""

from __future__ import annotations

from luce_core.bench.client import Client
from luce_core.bench.prompts import Prompts
from luce_core.errors import ConfigError

_TRIES = 6
_FIRST_WORDS = 64


async def filler_for(client: Client, wanted: int, *, seed: int) -> int:
    """Words that make `wanted` prompt tokens, or as few more or less as whole words allow.

    The server counts: it gets prompts for one token each. ConfigError if it does not count, or if
    the prompt is longer without any.
    """
    base = await _length(client, Prompts(seed, filler=1))
    if base > wanted:
        raise ConfigError(
            f"a prompt of {wanted} tokens is too short: the shortest one has {base} here"
        )
    best = (wanted - base, 1)
    more = min(_FIRST_WORDS, wanted - base)  # a word may be many tokens
    tried = {0}
    for _ in range(_TRIES):
        if more in tried:
            break
        tried.add(more)
        length = await _length(client, Prompts(seed, filler=1 + more))
        best = min(best, (abs(wanted - length), 1 + more))
        if length <= base:
            break
        more = round((wanted - base) * more / (length - base))
    return best[1]


async def _length(client: Client, prompts: Prompts) -> int:
    answer = await client.ask(prompts.take(1)[0], 1)
    if answer.error is not None:
        raise ConfigError(f"{client.base}: {answer.error}")
    if answer.prompt_tokens is None:
        raise ConfigError(f"{client.base} does not report prompt_tokens, so prompts stay unpadded")
    return answer.prompt_tokens
