"""What a 20 MB request body does to the steps of those who are being answered.

    python benchmarks/big_bodies.py [URL]

Without a URL a server without a model, whose steps sleep 2 ms, runs in a process of its own. One
client streams; bodies of several shapes are sent meanwhile, three of each in turns. Prints the
median step (time between two tokens) while a body is handled, in parts of the median alone just
before; the same of the tokens per second; the longest step, and how long the body took.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import statistics
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from luce_core.testing.fake_engine import FakeEngine, HashMind
from luce_core.testing.fake_server import FakeServer

SIZE, ROUNDS, ALONE_S = 20 << 20, 3, 1.0


def filled(unit: bytes, separator: bytes = b"") -> bytes:
    return separator.join([unit] * (SIZE // len(unit + separator)))


def chat(content: bytes) -> bytes:
    return b'{"messages":[{"role":"user","content":"' + content + b'"}]}'


SHAPES = {
    "no body at all": b"",
    "one text": chat(filled(b"word ")),
    "one text, escaped": chat(filled(b"\\u00e9\\n")),
    "messages": b'{"messages":[' + filled(b'{"role":"user","content":"hi"}', b",") + b"]}",
    "numbers": b'{"messages":[' + filled(b"1234", b",") + b"]}",
    "empty lists": b'{"messages":[' + filled(b"[]", b",") + b"]}",
    "deep nesting": b'{"messages":' + b"[" * (SIZE // 2) + b"]" * (SIZE // 2) + b"}",
}


class Stream:
    """Reads one long answer after the other and notes when chunks come."""

    def __init__(self, netloc: str) -> None:
        self._netloc = netloc
        self.times: list[float] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        body = {
            "prompt": "Once upon a time",
            "max_tokens": 256,
            "stream": True,
            "ignore_eos": True,
        }
        while True:
            link = http.client.HTTPConnection(self._netloc, timeout=60)
            link.request("POST", "/v1/completions", json.dumps(body))
            reply = link.getresponse()
            while line := reply.readline():
                if line.startswith(b"data: {"):
                    self.times.append(time.perf_counter())

    def gaps(self, start: float, stop: float) -> list[float]:
        times = [at for at in self.times if start <= at <= stop]
        edges = [start, *times, stop]
        return [after - before for before, after in itertools.pairwise(edges)]


def post(netloc: str, body: bytes) -> str:
    if not body:
        time.sleep(1.0)
        return "-"
    link = http.client.HTTPConnection(netloc, timeout=120)
    link.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    reply = link.getresponse()
    text = reply.read()
    link.close()
    return f"{reply.status} {json.loads(text)['error']['code']}"


def measure(netloc: str) -> Table:
    stream = Stream(netloc)
    time.sleep(2.0)
    rows: dict[str, list[tuple[float, float, float, float, str]]] = {name: [] for name in SHAPES}
    for _ in range(ROUNDS):
        for name, body in SHAPES.items():
            before = time.perf_counter()
            time.sleep(ALONE_S)
            started = time.perf_counter()
            answer = post(netloc, body)
            ended = time.perf_counter()
            alone, gaps = stream.gaps(before, started), stream.gaps(started, ended)
            step = statistics.median(gaps) / statistics.median(alone)
            pace = len(gaps) / (ended - started) / (len(alone) / (started - before))
            rows[name].append((step, pace, max(gaps), ended - started, answer))
            time.sleep(0.3)
    table = Table("body", "step", "pace", "longest ms", "took ms", "answer")
    table.title = f"a stream while {SIZE >> 20} MB come in, medians of {ROUNDS}"
    for name, runs in rows.items():
        step, pace, gap, took = (statistics.median(run[i] for run in runs) for i in range(4))
        figures = f"{step:.2f}", f"{pace:.2f}", f"{1e3 * gap:.1f}", f"{1e3 * took:.0f}"
        table.add_row(name, *figures, runs[-1][4])
    return table


async def serve() -> None:
    engine = FakeEngine(HashMind(), step_ms=2, max_context=1 << 13)
    async with FakeServer(engine, pool_blocks=1 << 11) as server:
        print(server.url, flush=True)
        await asyncio.sleep(3600)


def main() -> None:
    if sys.argv[1:] == ["--serve"]:
        asyncio.run(serve())
        return
    child = None
    if len(sys.argv) > 1:
        url = sys.argv[1]
    else:
        command = [sys.executable, __file__, "--serve"]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        url = child.stdout.readline().strip()
    try:
        Console(highlight=False).print(measure(urlsplit(url).netloc))
    finally:
        if child is not None:
            child.kill()


if __name__ == "__main__":
    main()
