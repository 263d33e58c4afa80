"""A client that never reads costs only itself."""

from __future__ import annotations

import json
import socket

from luce_core.settings import Settings

# On loopback the kernel takes up to about 4 MiB before a write waits. A run of one sign is much
# text in few tokens, and an echoed prompt is sent before anything is generated.
LONG_PROMPT = "=" * 80_000
OTHER = {"prompt": "One, two, three,", "temperature": 0, "max_tokens": 20, "ignore_eos": True}


def test_a_client_that_never_reads_is_cut_off_and_the_other_streams_on(serve, smollm2_path):
    words = ("--threads", "1", "--kv-pool-tokens", "32768", "--reader-timeout", "0.5")
    short_steps = ("--long-prefill-tokens", "64", "--idle-prefill-tokens", "64")
    server = serve(smollm2_path, *words, *short_steps)
    alone = server.complete(**OTHER)
    events = server.stream("/v1/completions", OTHER)
    text = next(events)["choices"][0]["text"]
    prompts = [LONG_PROMPT] * Settings.model_fields["max_prompts"].default
    body = {"prompt": prompts, "echo": True, "max_tokens": 1000, "stream": True}
    data = json.dumps(body).encode()
    lines = ("POST /v1/completions HTTP/1.1", f"Host: 127.0.0.1:{server.port}")
    head = "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""])
    with socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect(("127.0.0.1", server.port))
        stuck.sendall(head.encode() + data)
        for event in events:
            text += "" if event is None else event["choices"][0]["text"]
        assert text == alone["text"]
        server.wait_for(
            lambda: server.metric("luce:readers_aborted", cause="stalled_reader") >= 1,
            "word of a cut off reader",
            timeout_s=60.0,  # a guest on busy cores takes in megabytes of text before
        )
        server.wait_idle()
    assert "reads too slowly (stalled_reader)" in server.log
    assert "Traceback" not in server.log
    assert server.complete("Hi", max_tokens=1)["finish_reason"] == "length"
