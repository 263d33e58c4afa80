"""`luce serve` finds the installed plugin, chooses its engine by architecture, and answers."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LUCE = shutil.which("luce", path=Path(sys.executable).parent)


@pytest.fixture(scope="module")
def environment(installed: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(installed), "LUCE_PLUGINS": "minimal"}


@pytest.fixture(scope="module")
def server(environment: dict[str, str], model_path: Path) -> Iterator[str]:
    """The URL of a server in its own process; it must end in good order."""
    assert LUCE is not None
    command = [LUCE, "serve", str(model_path), "--port", "0", "--max-concurrency", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        screen = ""
        for line in process.stdout:
            screen += line
            if found := re.search(r"http://\S+/v1", line):
                break
        else:
            pytest.fail(f"no URL on the start screen:\n{screen}")
        yield found[0]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 0


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


def test_the_plugin_is_listed_with_its_engine(environment: dict[str, str]) -> None:
    assert LUCE is not None
    listed = subprocess.run(
        [LUCE, "plugins"], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert "luce_register_engines" in listed.stdout
    assert "minimal" in listed.stdout
    assert "failed" not in listed.stdout


def test_a_chat_is_answered_with_what_followed_before(server: str) -> None:
    """The prompt ends like the one before the user's words, so the model says these words."""
    body = {
        "messages": [{"role": "user", "content": "abcdefghij"}],
        "temperature": 0,
        "max_tokens": 12,
    }
    answer = post(f"{server}/chat/completions", body)
    choice = answer["choices"][0]
    assert choice["message"]["content"] == "abcdefghij"
    assert choice["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 11


def test_the_cache_survives_a_long_prompt(server: str) -> None:
    body = {"prompt": "0123456789" * 9, "temperature": 0, "max_tokens": 25}
    answer = post(f"{server}/completions", body)
    assert answer["choices"][0]["text"] == "0123456789012345678901234"
