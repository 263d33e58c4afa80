"""The published launch of Qwen3.8 with its draft runs flag for flag, on tiny files and a CPU."""

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

import pytest
from luce_qwen_dflash2.synthetic import SyntheticHybrid, write_hybrid

PAGE = Path(__file__).parents[3] / "docs/launch_lines.md"
LUCE = shutil.which("luce", path=Path(sys.executable).parent)


@pytest.fixture(scope="module")
def launch(tmp_path_factory, tiny_pair) -> list[str]:
    """The words behind `luce serve`: files, devices and the port are this test's."""
    line = next(line for line in PAGE.read_text().splitlines() if "--draft dflash2" in line)
    model = SyntheticHybrid(seed=4, context=16_384)
    target = write_hybrid(tmp_path_factory.mktemp("launch") / "target.gguf", model)
    ours = {
        "Qwen3.8-27B-IQ4_XS.gguf": str(target),
        "dflash2-q8_0.gguf": str(tiny_pair[1]),
        "hip:0": "cpu",
        "18142": "0",
    }
    return [ours.get(word, word) for word in shlex.split(line)[2:]]


def test_every_flag_of_the_launch_is_in_the_table(launch: list[str]) -> None:
    table = re.findall(r"^\| `(--[\w-]+)` \|", PAGE.read_text(), re.MULTILINE)
    variables = re.findall(r"`(--[\w-]+)`", PAGE.read_text())
    flags = {word for word in launch if word.startswith("--")}
    assert len(flags) == 22
    assert flags <= {*table, *variables}


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


def test_the_launch_serves(server: tuple[subprocess.Popen[bytes], Path]) -> None:
    process, screen = server
    end = time.monotonic() + 60
    while not (found := re.search(r"http://[\d.]+:\d+/v1", screen.read_text())):
        assert process.poll() is None, screen.read_text()
        assert time.monotonic() < end, screen.read_text()
        time.sleep(0.05)
    body = {"model": "qwen38", "prompt": "def", "max_tokens": 300, "temperature": 0}
    request = urllib.request.Request(
        f"{found[0]}/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        answer = json.load(reply)
    assert answer["model"] == "qwen38"
    assert answer["usage"]["completion_tokens"] >= 256
    assert answer["timings"]["draft_n"] > 0, answer
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0, screen.read_text()
    assert "Traceback" not in screen.read_text()
