"""Texts are UTF-8 whatever the platform says, and output never raises."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from luce_core.load import open_model
from luce_core.plugin_manager import build_plugin_manager
from luce_core.settings import parse_settings

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0"}
TEMPLATE = """\
{%- for message in messages %}
  {{- '« ' + message['role'] + ' »\\n' + message['content'] + '…\\n' }}
{%- endfor %}
{#- Ein Kommentar: ünï #}

{{ '→ ' }}"""
MESSAGES = [
    {"role": "system", "content": "Sei höflich."},
    {"role": "user", "content": "Was ist 🦙 auf 日本語?"},
]


def test_an_ascii_locale_serves_a_path_and_a_template_that_are_not_ascii(
    serve, tiny_model, tmp_path
):
    folder = tmp_path / "modèle é"
    folder.mkdir()
    model = folder / "a b\\c ü.gguf"
    shutil.copy(tiny_model, model)
    template = folder / "vorläge.jinja"
    template.write_bytes(b"\xef\xbb\xbf" + TEMPLATE.replace("\n", "\r\n").encode())
    server = serve(
        model,
        *("--threads", "1", "--kv-pool-tokens", "65536", "--log-level", "debug"),
        *("--chat-template-file", template),
        env=ASCII,
    )
    assert "a b\\" in server.screen
    shown = server.post("/tokenize", {"messages": MESSAGES})["tokens"]
    assert shown == ids_with(tiny_model, tmp_path / "plain.jinja")
    reply = server.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 3})
    assert reply["usage"]["prompt_tokens"] == len(shown)
    assert json.loads(server.get("/v1/models")[1])["data"][0]["id"] == "a b\\c ü"
    body = {"messages": [{"role": "🦙", "content": "é"}], "temperature": "🦙"}
    connection = server.connect()
    raw = json.dumps(body, ensure_ascii=False).encode()
    connection.request("POST", "/v1/chat/completions", raw)
    refusal = connection.getresponse()
    assert refusal.status == 400
    assert "🦙" in json.loads(refusal.read())["error"]["message"]
    connection.close()
    props = json.loads(server.get("/props")[1])
    assert props["chat_template_source"] == f"file {template}"
    assert props["chat_template"] == TEMPLATE
    assert "Traceback" not in server.log
    assert "UnicodeEncodeError" not in server.log


def ids_with(model: Path, template: Path) -> list[int]:
    """The ids of the same chat when the template is a plain file, read in this process."""
    template.write_text(TEMPLATE, encoding="utf-8", newline="\n")
    settings = parse_settings([str(model), "--chat-template-file", str(template)])
    opened = open_model(settings, build_plugin_manager())
    prompt = opened.text.chat_format.render(MESSAGES)
    return list(opened.text.tokenizer.encode_prompt(prompt))


def test_an_error_with_a_path_that_is_not_ascii_is_printed(serve, tmp_path):
    path = tmp_path / "modèle 🦙.gguf"
    path.write_text("{}")
    server = serve(path, env=ASCII, ready=False)
    assert server.wait_ended() == 1
    assert server.log.startswith("luce serve: ")
    assert "JSON" in server.log
    assert "Traceback" not in server.log


def test_a_model_name_that_is_not_ascii_is_served(serve, tiny_model):
    name = "café 🦙"
    words = ("--threads", "1", "--kv-pool-tokens", "65536")
    server = serve(tiny_model, *words, "--model-name", name, env=ASCII)
    assert json.loads(server.get("/v1/models")[1])["data"][0]["id"] == name
    assert name in server.get("/metrics")[1]
