"""Ways to put load on a server: waves, closed loops, and a newcomer among those that decode."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from luce_core.bench.client import Answer, Client

# A client decodes once this many pieces of text have come.
_DECODING_PIECES = 4
NEWCOMER_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Span:
    """Answers that were asked for together; other spans began before or after all of it."""

    answers: tuple[Answer, ...]


async def waves(
    client: Client, prompts: Sequence[str], *, clients: int, tokens: int
) -> tuple[Span, ...]:
    """All clients send at once; the next wave starts when every answer of this one is complete."""
    spans = []
    for start in range(0, len(prompts), clients):
        wave = prompts[start : start + clients]
        spans.append(Span(tuple(await asyncio.gather(*(client.ask(p, tokens) for p in wave)))))
    return tuple(spans)


async def loop(
    client: Client, prompts: Sequence[str], *, clients: int, tokens: int
) -> tuple[Span, ...]:
    """Each client sends its next request as soon as its last answer is complete."""
    waiting = iter(prompts)
    answers: list[Answer] = []

    async def run() -> None:
        for prompt in waiting:
            answers.append(await client.ask(prompt, tokens))

    await asyncio.gather(*(run() for _ in range(clients)))
    return (Span(tuple(answers)),)


async def join(
    client: Client, prompts: Sequence[str], newcomer: str, *, tokens: int
) -> tuple[Span, Answer]:
    """One client for each prompt decodes, then `newcomer` is sent: (their answers, its answer)."""
    decoding = [asyncio.Event() for _ in prompts]

    def hear(place: int, pieces: int) -> None:
        if pieces >= _DECODING_PIECES:
            decoding[place].set()

    async def run(place: int, prompt: str) -> Answer:
        try:
            return await client.ask(prompt, tokens, lambda pieces: hear(place, pieces))
        finally:
            decoding[place].set()  # one that fails or is short must not keep the newcomer waiting

    running = [asyncio.create_task(run(place, p)) for place, p in enumerate(prompts)]
    for event in decoding:
        await event.wait()
    late = await client.ask(newcomer, NEWCOMER_TOKENS)
    return Span(tuple(await asyncio.gather(*running))), late
