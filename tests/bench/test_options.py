"""The command line of `luce bench`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from luce_core.bench.options import parse_options
from luce_core.errors import ConfigError


@pytest.mark.parametrize(
    "url",
    ["http://10.0.0.1:8080", "example.org", "http://127.0.0.1.example.org", "http://[2001:db8::1]"],
)
def test_another_machine_is_refused_unless_meant(url: str) -> None:
    for words in ([url], ["127.0.0.1:8080", "--vs", url]):
        with pytest.raises(ConfigError, match="give --remote if that is meant"):
            parse_options(words)
        assert parse_options([*words, "--remote"]).servers


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://localhost:1/v1", "http://localhost:1"),
        ("http://localhost:1/v1/", "http://localhost:1"),
        ("https://[::1]:2/proxy/", "https://[::1]:2/proxy"),
    ],
)
def test_a_server_is_named_with_or_without_its_version_path(url: str, base: str) -> None:
    assert parse_options([url]).url == base


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no server given"),
        (["ftp://localhost"], "url: name a server"),
        (["http://user:pass@localhost"], "host, port and path only"),
        (["localhost", "--levels", "0,1"], "--levels: give numbers from 1 to 1024, got '0,1'"),
        (["localhost", "--levels", "many"], "--levels: "),
        (["localhost", "--tokens", "0"], "--tokens: Input should be greater"),
        (["localhost", "--api", "grpc"], "--api"),
    ],
)
def test_a_bad_value_is_named_with_its_flag(words, message, capsys) -> None:
    with pytest.raises((ConfigError, SystemExit)) as refusal:  # SystemExit: argparse itself
        parse_options(words)
    assert message in str(refusal.value) + capsys.readouterr().err


def test_variables_of_the_server_do_not_steer_the_client(monkeypatch) -> None:
    monkeypatch.setenv("LUCE_MODEL", "x")
    monkeypatch.setenv("TOKENS", "3")
    options = parse_options(["localhost"])
    assert (options.model, options.tokens) == (None, 128)


def test_help_needs_no_torch_and_no_http_client() -> None:
    code = (
        "import sys\n"
        "from luce_core.cli import main\n"
        "try: main(['bench', '--help'])\n"
        "except SystemExit as done: assert done.code == 0\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("usage: luce bench URL [--vs URL2] [options]\n")
    assert not {"torch", "aiohttp"} & set(done.stderr.split())
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "tuple" not in done.stdout
    assert "None" not in done.stdout
