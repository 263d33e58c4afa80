"""Clients and scripts of examples/ and of README.md run against a real socket."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from luce_core.testing.fake_engine import FakeEngine, ScriptMind
from luce_core.testing.fake_server import FakeServer
from luce_core.weights.synthetic import SyntheticModel, write_synthetic

DEFAULT_URL = "http://127.0.0.1:8080/v1"


async def output_of(*command: str | Path, env: dict[str, str] | None = None) -> str:
    """What a command prints; it must end well."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(env or {})},
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), 100)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err.decode()
    return out.decode()


def paris() -> FakeServer:
    return FakeServer(FakeEngine(ScriptMind.text("Paris.")))


async def test_the_python_of_the_readme_prints_the_answer(pages: dict[str, Any]) -> None:
    (code,) = pages["README.md"].python()
    assert DEFAULT_URL in code
    async with paris() as server:
        code = code.replace(DEFAULT_URL, f"{server.url}/v1")
        assert await output_of(sys.executable, "-c", code) == "Paris."
        await server.check_leaks()


async def test_the_curl_line_of_the_readme_is_answered(pages: dict[str, Any]) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    (line,) = [f.text for f in pages["README.md"].fences if f.text.startswith("curl")]
    base = DEFAULT_URL.removesuffix("/v1")
    assert base in line
    async with paris() as server:
        answer = await output_of("sh", "-c", line.replace(base, server.url))
    assert '"content":"Paris."' in answer


async def test_ask_prints_the_answer(root: Path) -> None:
    async with paris() as server:
        url = f"{server.url}/v1"
        script = root / "examples/clients/ask.py"
        answer = await output_of(sys.executable, script, "--url", url, "Where?")
    assert answer == "Paris.\n"


@pytest.mark.parametrize("name", ["openai_chat.py", "openai_stream.py"])
async def test_openai_clients_print_the_answer(name: str, root: Path) -> None:
    async with paris() as server:
        url = f"{server.url}/v1"
        answer = await output_of(sys.executable, root / "examples/clients" / name, url)
        await server.check_leaks()
    assert "Paris." in answer


async def test_the_curl_script_prints_a_whole_and_a_streamed_reply(root: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    async with paris() as server:
        answer = await output_of(root / "examples/clients/curl.sh", f"{server.url}/v1")
    assert '"content":"Paris."' in answer
    assert answer.endswith("data: [DONE]\n\n")


async def test_offline_generation_answers_every_prompt(root: Path, tmp_path: Path) -> None:
    model = write_synthetic(tmp_path / "tiny.gguf", SyntheticModel(arch="llama"))
    script = root / "examples/offline_generate.py"
    env = {"LUCE_KV_POOL_TOKENS": "512", "LUCE_MAX_CONCURRENCY": "2"}
    answer = await output_of(sys.executable, script, model, "one", "two", "three", env=env)
    assert [line for line in answer.splitlines() if line in ("one", "two", "three")] == [
        "one",
        "two",
        "three",
    ]
    assert answer.count("tokens]") == 3
