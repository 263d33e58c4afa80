"""Where the server listens is what it prints."""

from __future__ import annotations

import re
import socket
import time

import pytest

OPTIONS = ("--threads", "1", "--max-concurrency", "2", "--kv-pool-tokens", "65536")


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_localhost_answers_quickly_on_both_families_at_the_printed_port(serve, tiny_model):
    server = serve(tiny_model, *OPTIONS, "--host", "localhost", "--port", "0")
    assert server.port != 0
    families = ["127.0.0.1", "::1"] if has_ipv6() else ["127.0.0.1"]
    printed = [f"http://{f'[{host}]' if ':' in host else host}:{server.port}" for host in families]
    assert server.urls == printed
    for host in [*families, "localhost"]:
        started = time.monotonic()
        with socket.create_connection((host, server.port), timeout=5):
            pass
        assert time.monotonic() - started < 0.05, host


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 loopback here")
def test_an_ipv6_address_is_printed_in_brackets_and_answers(serve, tiny_model):
    server = serve(tiny_model, *OPTIONS, "--host", "::1")
    assert re.fullmatch(r"http://\[::1\]:[1-9]\d*", server.url)
    assert server.get("/health") == (200, '{"status":"ok"}')


def test_a_taken_port_is_named_and_the_start_ends(serve, tiny_model):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = serve(tiny_model, *OPTIONS, "--port", port, ready=False)
        assert server.wait_ended() == 1
    assert server.screen == ""
    assert str(port) in server.log
    assert len(server.log.splitlines()) == 1
