"""From the first line to the exit code: loading, the start screen, signals, also as process 1."""

from __future__ import annotations

import http.client
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LUCE = shutil.which("luce", path=Path(sys.executable).parent)
INT, TERM = signal.SIGINT, signal.SIGTERM
OPTIONS = ("--threads", "1", "--max-concurrency", "2", "--kv-pool-tokens", "65536")
AS_PROCESS_1 = ("unshare", "-rfp", "--mount-proc", "--kill-child")


def why_no_namespaces() -> str | None:
    """Why `unshare` cannot make a process 1 here, None if it can."""
    if shutil.which("unshare") is None:
        return "no unshare command"
    done = subprocess.run([*AS_PROCESS_1, "true"], capture_output=True, text=True, timeout=10)
    return done.stderr.strip() or "unshare failed" if done.returncode else None


@pytest.fixture(params=["INT", pytest.param("TERM", marks=pytest.mark.slow), "TERM as process 1"])
def ways(request: pytest.FixtureRequest) -> tuple[signal.Signals, tuple[str, ...]]:
    """A signal, and the command that runs the server."""
    word, *as_process_1 = request.param.split(" ", 1)
    if as_process_1 and (reason := why_no_namespaces()):
        pytest.skip(reason)
    return signal.Signals[f"SIG{word}"], AS_PROCESS_1 if as_process_1 else ()


def endless(server: Any, max_tokens: int = 60_000) -> Iterator[dict[str, Any] | None]:
    """A stream that is under way."""
    body = {"prompt": "a", "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
    events = server.stream("/v1/completions", body)
    next(events)
    return events


def test_a_signal_drains_a_running_stream_finishes_and_the_exit_code_is_0(serve, tiny_model, ways):
    number, prefix = ways
    server = serve(tiny_model, *OPTIONS, prefix=prefix)
    events = endless(server, max_tokens=4000)
    server.signal(number)
    server.wait_for(lambda: "draining: 1 requests" in server.screen, "word of draining")
    status, text = server.get("/health")
    assert (status, json.loads(text)["error"]["code"]) == (503, "draining")
    connection = server.connect()
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "b"}))
    refusal = connection.getresponse()
    assert refusal.status == 503
    assert refusal.getheader("Retry-After")
    assert json.loads(refusal.read())["error"]["code"] == "draining"
    connection.close()
    *_, last, end = events
    assert end is None
    assert last["choices"][0]["finish_reason"] == "length"
    assert server.wait_ended() == 0
    assert server.log == ""


def test_a_second_signal_stops_at_once_with_an_event_at_the_end_of_the_stream(
    serve, tiny_model, ways
):
    number, prefix = ways
    server = serve(tiny_model, *OPTIONS, prefix=prefix)
    events = endless(server)
    server.signal(number)
    server.wait_for(lambda: "once more to stop now" in server.screen, "word of draining")
    started = time.monotonic()
    server.signal(number)
    *_, last = events
    assert last["error"]["code"] == "shutting_down"
    assert server.wait_ended() == 0
    assert time.monotonic() - started < 3
    assert "Traceback" not in server.log


def test_a_drain_that_takes_too_long_ends_with_an_event_within_its_time(serve, tiny_model):
    server = serve(tiny_model, *OPTIONS, "--drain-timeout", "0.5")
    events = endless(server)
    started = time.monotonic()
    server.signal(TERM)
    *_, last = events
    assert last["error"]["code"] == "shutting_down"
    assert server.wait_ended() == 0
    assert 0.5 <= time.monotonic() - started < 4
    assert "not all requests finished in time" in server.log


def test_a_server_whose_output_nobody_reads_any_more_drains_all_the_same(tiny_model):
    """As after `luce serve ... | grep -m1 http`."""
    command = [str(LUCE), "serve", str(tiny_model), *OPTIONS, "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert any("http://" in line for line in process.stdout)
            process.stdout.close()
            process.send_signal(TERM)
            assert process.wait(20) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_a_terminal_shows_what_is_being_loaded(tiny_model, slow_engine):
    ours, theirs = pty.openpty()
    command = [str(LUCE), "serve", str(tiny_model), "--engine", "slow", "--port", "0"]
    environment = {**os.environ, **slow_engine, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        command, stdout=theirs, stderr=theirs, stdin=theirs, env=environment
    ) as process:
        try:
            os.close(theirs)
            shown = b""
            while b"waiting [/for] the test" not in shown:
                assert len(shown) < 100_000
                shown += os.read(ours, 4096)
            assert b"loading" in shown
        finally:
            process.kill()
            os.close(ours)


SLOW_TO_LOAD = """
import os, time
from luce_core.engine import EngineSpec, hookimpl

def build(context):
    from luce_llama.engine import LlamaEngine

    context.progress(1, 2, "waiting [/for] the test")
    while not os.path.exists(os.environ["MAY_LOAD"]):
        time.sleep(0.02)
    return LlamaEngine.load(context)

@hookimpl
def luce_register_engines(register):
    register(EngineSpec(name="slow", architectures=("llama",), build=build))
"""


BROKEN_KERNELS = """
from luce_core.engine import hookimpl
from luce_core.errors import LuceError

@hookimpl
def luce_register_kernels(register):
    raise LuceError("the native kernels were not built; reinstall them\\na compiler's complaint")
"""


def plugin_environment(tmp_path: Path, name: str, code: str) -> dict[str, str]:
    """The environment of a server that finds one more plugin."""
    folder = tmp_path / "plugins"
    info = folder / f"luce_{name}-1.dist-info"
    info.mkdir(parents=True)
    (folder / f"luce_{name}.py").write_text(code)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: luce_{name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[luce]\n{name} = luce_{name}\n")
    before = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), before)))}


@pytest.fixture
def slow_engine(tmp_path: Path) -> dict[str, str]:
    """The environment of a server whose engine loads once the file MAY_LOAD exists."""
    may_load = {"MAY_LOAD": str(tmp_path / "may_load")}
    return plugin_environment(tmp_path, "slow", SLOW_TO_LOAD) | may_load


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def health(port: int) -> tuple[int, str] | None:
    """Status and code, None while nobody listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/health")
        reply = connection.getresponse()
        found = json.loads(reply.read())
        return reply.status, found["error"]["code"] if "error" in found else found["status"]
    except ConnectionRefusedError:
        return None
    finally:
        connection.close()


def test_health_is_503_while_loading_and_200_once_the_start_screen_is_there(
    serve, tiny_model, slow_engine
):
    port = free_port()
    words = (tiny_model, *OPTIONS, "--engine", "slow", "--port", port)
    server = serve(*words, env=slow_engine, ready=False)
    server.wait_for(lambda: health(port), "open port", 30)
    assert health(port) == (503, "loading")
    assert server.urls == []
    Path(slow_engine["MAY_LOAD"]).touch()
    server.wait_ready()
    assert health(port) == (200, "ok")
    assert server.url == f"http://127.0.0.1:{port}"


def test_a_signal_while_loading_ends_the_start(serve, tiny_model, slow_engine):
    port = free_port()
    words = (tiny_model, "--engine", "slow", "--port", port)
    server = serve(*words, env=slow_engine, ready=False)
    server.wait_for(lambda: health(port), "open port", 30)
    server.signal(INT)
    assert server.wait_ended(5) == 130
    assert "interrupted while loading" in server.screen
    assert server.log == ""


def test_the_start_screen_tells_model_engine_device_kernels_pool_slots_and_url(smollm2):
    rows = dict(re.findall(r"^(\S.*?)  +(\S.*?) *$", smollm2.screen, re.MULTILINE))
    assert rows["model"] == "SmolLM2-135M-Instruct.Q4_1 (97 MB, llama)"
    assert rows["engine"] == "llama on cpu"
    for op in ("quant_matmul", "paged_attention", "rope"):
        kernels = rf"kernels +luce_kernels_cpu \((?:avx|amx)[\w-]*\): .*\b{op}\b"
        assert re.search(kernels, smollm2.screen, re.DOTALL)
    assert "warning" not in smollm2.screen
    assert rows["slots"] == "8, context 8192 tokens each"
    assert rows["template"] == "model file, tokenizer.chat_template"
    assert rows["URL"] == f"{smollm2.url}/v1"
    assert rows["KV pool (f16/f16)"].startswith("free memory")
    assert re.search(r"16384 tokens in 1024 blocks", smollm2.screen)
    for part in ("weights still to load", "scratch of a step", "reserve", "1024 blocks + 1 null"):
        assert re.search(rf"{re.escape(part)} +[\d.]+ GiB", smollm2.screen), part
    assert smollm2.log == ""


def test_the_start_screen_names_a_kernel_provider_that_failed_and_what_does_its_work(
    serve, tiny_model, tmp_path
):
    env = plugin_environment(tmp_path, "broken", BROKEN_KERNELS)
    server = serve(tiny_model, *OPTIONS, env={**env, "LUCE_PLUGINS": "llama,broken"})
    (row,) = re.findall(r"^warning .*(?:\n .*)*", server.screen, re.MULTILINE)
    said = "plugin broken did not load: the native kernels were not built; reinstall them (luce"
    assert said in " ".join(row.split())
    assert "a compiler's complaint" not in server.screen
    assert re.search(r"kernels +reference: ", server.screen)


def test_names_with_brackets_and_colons_appear_as_they_are(serve, tiny_model):
    name = "a[/b] [bold]c[/] :smile:"
    server = serve(tiny_model, *OPTIONS, "--model-name", name)
    assert f"{name} (" in server.screen
    assert json.loads(server.get("/v1/models")[1])["data"][0]["id"] == name


def test_the_real_model_is_ready_in_seconds(serve, smollm2_path):
    """From the command to the start screen; about three seconds alone on a machine."""
    started = time.monotonic()
    serve(smollm2_path, "--threads", "1", "--kv-pool-tokens", "8192")
    assert time.monotonic() - started < 20
