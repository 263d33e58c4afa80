"""docs/http_api.md against the application: routes, ranges, refusals, codes, metrics."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from prometheus_client.parser import text_string_to_metric_families

from luce_core.errors import RequestError
from luce_core.server.app import build_app
from luce_core.server.schema import parse_chat, parse_completion
from luce_core.server.state import ServerState
from luce_core.settings import Settings
from luce_core.testing.fake_engine import FakeEngine, ScriptMind
from luce_core.testing.fake_server import FakeServer

SETTINGS = Settings.model_validate({"model": "model.gguf"})
CHAT = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def page(pages: dict[str, Any]) -> Any:
    return pages["docs/http_api.md"]


def test_the_routes_are_those_of_the_application(page: Any) -> None:
    routes = build_app(ServerState(SETTINGS)).router.routes()
    served = {
        f"{route.method} {route.resource.canonical}"
        for route in routes
        if route.resource is not None and route.method != "HEAD"
    }
    assert {cell.spans[0] for cell, _ in page.table("route")} == served


def refusal(body: dict[str, Any]) -> str | None:
    """The field that a chat and a completion with these fields are refused for."""
    found = set()
    for parse, prompt in ((parse_chat, CHAT), (parse_completion, {"prompt": "hello"})):
        try:
            parse({**prompt, **body}, SETTINGS, vocab_size=100)
            found.add(None)
        except RequestError as error:
            found.add(error.param)
    assert len(found) == 1, f"the two routes differ on {body}: {found}"
    return found.pop()


def test_the_ranges_are_exact(page: Any) -> None:
    """Both ends are accepted, and what lies beyond them is refused by name."""
    rows = page.table("field", "from", "to")
    assert len(rows) >= 13
    for cell, least, most, *_ in rows:
        field, low, high = cell.spans[0], json.loads(least), json.loads(most)
        step = 1 if isinstance(low, int) and isinstance(high, int) else 0.001
        assert refusal({field: low}) is None, field
        assert refusal({field: high}) is None, field
        assert refusal({field: low - step}) == field
        assert refusal({field: high + max(step, high * 1e-6)}) == field
        assert refusal({field: "1"}) == field
        assert refusal({field: None}) is None


def test_logprobs_end_at_20() -> None:
    for count, expected in ((20, None), (21, "top_logprobs")):
        body = {**CHAT, "logprobs": True, "top_logprobs": count}
        if expected is None:
            parse_chat(body, SETTINGS, vocab_size=100)
        else:
            with pytest.raises(RequestError) as caught:
                parse_chat(body, SETTINGS, vocab_size=100)
            assert caught.value.param == expected


def test_refused_fields_are_refused_by_name(page: Any) -> None:
    rows = page.table("field", "route", "accepted all the same")
    assert len(rows) > 50
    for cell, route, _ in rows:
        (field,) = cell.spans
        body = {field: {"asks": "for it"}}
        for parse, prompt, name in (
            (parse_chat, CHAT, "chat"),
            (parse_completion, {"prompt": "hello"}, "completions"),
        ):
            if route in ("both", name):
                with pytest.raises(RequestError) as caught:
                    parse({**prompt, **body}, SETTINGS, vocab_size=100)
                assert caught.value.param == field
                assert caught.value.code == "unsupported_parameter"


def test_every_flag_on_the_page_is_a_setting(page: Any) -> None:
    flags = {"--" + name.replace("_", "-") for name in Settings.model_fields}
    assert set(re.findall(r"--[a-z][\w-]+", page.text)) <= flags


def test_error_codes_are_those_of_the_code(page: Any, root: Path) -> None:
    """In both directions: `code="..."` of refusals, `"code: message"` of failed requests."""
    listed = {code for _, codes, _ in page.table("status", "code") for code in codes.spans}
    core = root / "luce_core"
    text = "\n".join(path.read_text() for path in core.rglob("*.py"))
    assert not [code for code in listed if f'"{code}' not in text]
    stated = set(re.findall(r'code="(\w+)"', text)) - {"http_error", "invalid_http"}
    coded = [*core.glob("runtime/*.py"), *core.glob("scheduler/*.py"), core / "sampling/accept.py"]
    for path in coded:
        stated |= set(re.findall(r'"([a-z]+_[a-z_]+): ', path.read_text()))
    assert stated <= listed, stated - listed


async def test_metrics_are_those_of_the_page(page: Any) -> None:
    async with FakeServer() as server, ClientSession() as client:
        async with client.post(f"{server.url}/v1/chat/completions", json=CHAT | {"max_tokens": 3}):
            pass
        async with client.get(f"{server.url}/metrics") as reply:
            families = list(text_string_to_metric_families(await reply.text()))
    served = {family.name: family.type for family in families}
    assert {name.spans[0]: kind for name, kind, _ in page.table("name", "kind")} == served


async def test_a_stream_has_the_form_of_the_page(page: Any) -> None:
    """Role chunk, text, end with finish reason, end mark: the page shows these keys in order."""
    (shown,) = [fence.text for fence in page.fences if "data: [DONE]" in fence.text]
    body = {**CHAT, "stream": True}
    engine = FakeEngine(ScriptMind.text("Paris"))
    async with FakeServer(engine) as server, ClientSession(server.url) as client:
        reply = await client.post("/v1/chat/completions", json=body)
        sent = (await reply.text()).split("\n\n")
    first, *_, last, end, rest = sent
    assert (end, rest) == ("data: [DONE]", "")
    for event, fragment in (
        (first, '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'),
        (last, '"delta":{},"logprobs":null,"finish_reason":"stop"}],"timings":{'),
    ):
        assert fragment in event
        assert fragment in shown


async def test_the_error_on_the_page_is_what_is_sent(page: Any) -> None:
    (shown,) = [json.loads(f.text) for f in page.fences if f.language == "json"]
    async with (
        FakeServer() as server,
        ClientSession() as client,
        client.post(f"{server.url}/v1/chat/completions", json={**CHAT, "temperature": -1}) as reply,
    ):
        assert reply.status == 400
        assert await reply.json() == shown
