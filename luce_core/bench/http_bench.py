"""`luce bench`: load on one or two servers in turns, and what came of it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

import aiohttp
from rich.console import Console

from luce_core.bench.calibrate import filler_for
from luce_core.bench.client import Client
from luce_core.bench.json_file import refuse_unwritable, write_json
from luce_core.bench.load import join, loop, waves
from luce_core.bench.options import BenchOptions
from luce_core.bench.prompts import Prompts
from luce_core.bench.report import Results, notes, results_json, results_table
from luce_core.bench.stats import Measurement, measure, measure_join
from luce_core.errors import ConfigError

_WARMUP_TOKENS = 32
_SEEDS = 1 << 31


def bench(options: BenchOptions, console: Console) -> int:
    """Measure, print, write; 0 if every answer came with exactly the tokens asked for, else 1."""
    refuse_unwritable(options.json_file)
    results = asyncio.run(run(options, lambda text: console.print(text)))
    for line in notes(results):
        console.print(line)
    console.print(results_table(results))
    if options.json_file is not None:
        write_json(options.json_file, results_json(results))
    return 0 if all(m.tally.is_clean for m in results.all) else 1


async def run(options: BenchOptions, say: Callable[[str], None]) -> Results:
    """All levels and repeats. ConfigError if a server does not answer the warm-up.

    Servers take turns inside a repeat, and repeats go over all levels, so that a noisy minute
    hits both servers and one repeat of some levels only.
    """
    seed = secrets.randbelow(_SEEDS) if options.seed is None else options.seed
    # What is asked aside must not leave a measured prompt in a cache.
    aside, late = seed + 1, seed + 2
    # A fresh connection each: some servers close theirs after a streamed answer.
    connector = aiohttp.TCPConnector(limit=0, force_close=not options.keepalive)
    timeout = aiohttp.ClientTimeout(total=options.timeout)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        clients = [Client(session, base, options, seed=seed) for base in options.servers]
        for client in clients:
            if not client.model:
                await client.find_model()
            await _greet(client, Prompts(aside).take(1)[0])
        filler = late_filler = 0
        if options.prompt_tokens:
            filler = await filler_for(clients[0], options.prompt_tokens, seed=aside)
        if options.join:
            late_filler = await filler_for(clients[0], options.join, seed=aside)
        results = Results(options, seed, [client.model for client in clients])
        level = _Level(options, Prompts(seed, filler=filler), Prompts(late, filler=late_filler))
        for _ in range(options.warmup):
            for client in clients:
                await level.warm_up(client)
        for repeat in range(options.repeats):
            say(f"repeat {repeat + 1} of {options.repeats}")
            for number in options.levels:
                prompts, newcomer = level.take(number)
                for place, client in enumerate(clients):
                    results.add(place, await level.measure(client, number, prompts, newcomer))
    return results


async def _greet(client: Client, prompt: str) -> None:
    answer = await client.ask(prompt, 1)
    if answer.error is not None:
        raise ConfigError(f"{client.base} does not answer: {answer.error}")


class _Level:
    """Measures one level; both servers of a pair get the same prompts."""

    def __init__(self, options: BenchOptions, prompts: Prompts, late: Prompts) -> None:
        self._options = options
        self._prompts = prompts
        self._late = late

    def take(self, clients: int) -> tuple[list[str], str]:
        """Prompts of a measurement and the newcomer's."""
        if self._options.join:
            return self._prompts.take(clients), self._late.take(1)[0]
        return self._prompts.take(clients * self._options.rounds), ""

    async def measure(
        self, client: Client, clients: int, prompts: list[str], newcomer: str
    ) -> Measurement:
        options = self._options
        if options.join:
            span, late = await join(client, prompts, newcomer, tokens=options.tokens)
            return measure_join(span, late, clients=clients, tokens=options.tokens)
        load = waves if options.mode == "waves" else loop
        spans = await load(client, prompts, clients=clients, tokens=options.tokens)
        return measure(spans, clients=clients, tokens=options.tokens)

    async def warm_up(self, client: Client) -> None:
        """One wave of the widest level, whose answers nobody looks at."""
        most = max(self._options.levels)
        tokens = min(self._options.tokens, _WARMUP_TOKENS)
        await waves(client, self._prompts.take(most), clients=most, tokens=tokens)
