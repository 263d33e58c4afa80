"""The published launches, on one device and on two, run flag for flag on a tiny file and a CPU."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from luce_deepseek_v4.synthetic import SyntheticDeepSeek, write_deepseek

PAGE = Path(__file__).parents[3] / "docs/launch_lines.md"
LUCE = shutil.which("luce", path=Path(sys.executable).parent)


@pytest.fixture(scope="module", params=["one device", "two devices"])
def launch(request, tmp_path_factory) -> list[str]:
    """The words behind `luce serve`: the file, the devices, the port and the experts' budget, which
    holds a third of them as it does of the real ones, are this test's."""
    lines = [line for line in PAGE.read_text().splitlines() if "--ds4-prefill exact --h" in line]
    line = lines[["one device", "two devices"].index(request.param)]
    model = SyntheticDeepSeek(context=4096, experts=64)
    path = write_deepseek(tmp_path_factory.mktemp("launch") / "model.gguf", model)
    ours = {"DeepSeek-V4.gguf": str(path), "hip:0": "cpu", "18081": "0"}
    ours |= {"hip:1": "cpu", "11700": "1"}
    return [ours.get(word, word) for word in shlex.split(line)[2:]]


def test_every_flag_of_the_launch_is_in_the_table(launch: list[str]) -> None:
    table = re.findall(r"^\| `(--[\w-]+)` \|", PAGE.read_text(), re.MULTILINE)
    flags = {word for word in launch if word.startswith("--")}
    assert len(flags) == (19 if "--ds4-expert-device" in flags else 14)
    assert flags <= set(table)


@pytest.fixture
def server(launch: list[str], tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    assert LUCE is not None
    screen = tmp_path / "screen"
    with screen.open("wb") as out:
        process = subprocess.Popen([LUCE, "serve", *launch], stdout=out, stderr=out)
    yield process, screen
    if process.poll() is None:
        process.kill()
    process.wait(10)


def answer(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def test_the_launch_serves(server: tuple[subprocess.Popen[bytes], Path], launch: list[str]) -> None:
    process, screen = server
    end = time.monotonic() + 60
    while not (found := re.search(r"http://[\d.]+:\d+", screen.read_text())):
        assert process.poll() is None, screen.read_text()
        assert time.monotonic() < end, screen.read_text()
        time.sleep(0.05)
    body = {"model": "dflash", "prompt": "def", "max_tokens": 20, "temperature": 0}
    reply = answer(f"{found[0]}/v1/completions", {**body, "ignore_eos": True})
    assert reply["model"] == "dflash"
    assert reply["usage"]["completion_tokens"] == 20
    props = answer(f"{found[0]}/props")
    assert props["kv_pool"]["tokens"] == 24_576
    assert props["kv_pool"]["block_size"] == 128
    assert props["default_generation_settings"]["n_ctx"] == 4096
    assert props["engine_facts"]["cached_entries"] == "q4_0"
    assert props["chat_template_source"] == "builtin deepseek_v4"
    experts = props["engine_facts"].get("expert_devices")
    assert (experts is not None) == ("--ds4-expert-device" in launch)
    if experts is not None:
        assert (experts["near"], experts["far"]) == ("cpu", "cpu")
        assert experts["near_experts"] > 0 < experts["far_experts"]
        assert 0 < experts["copies_per_step"] <= 2 * 4
        assert 0 < experts["expert_launches_per_step"] <= 2 * 3 * 4
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0, screen.read_text()
    assert "Traceback" not in screen.read_text()
