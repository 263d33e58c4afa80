"""Keys, Host, Origin, request ids: who may call, and what browsers may do."""

from __future__ import annotations

import pytest

from luce_core.errors import ConfigError
from luce_core.server.auth import ApiKeys
from luce_core.testing.fake_server import FakeServer

ROUTES = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/fake"),
    ("GET", "/props"),
    ("GET", "/slots"),
    ("GET", "/metrics"),
    ("GET", "/no/such/route"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/health"),
    ("DELETE", "/v1/models"),
    ("OPTIONS", "/v1/chat/completions"),
]


async def status(client, server, method, path, **headers) -> tuple[int, str | None]:
    async with client.session.request(method, server.url + path, headers=headers) as response:
        error = (await response.json()).get("error") if response.status >= 400 else None
        return response.status, error and error["code"]


async def test_every_route_but_health_needs_the_key(client):
    async with FakeServer(settings={"api_key": ("one", "two")}) as server:
        listed = {tuple(r.split()) for r in (await props(client, server))["routes"]}
        covered = {(m, p.replace("/fake", "/{name}")) for m, p in ROUTES}
        assert listed - covered == {("GET", "/health")}
        assert await status(client, server, "GET", "/health") == (200, None)
        for method, path in ROUTES:
            if path == "/health":
                continue
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "one"}):
                found = await status(client, server, method, path, **headers)
                assert found == (401, "invalid_api_key"), (method, path, headers)
        for headers in (
            {"Authorization": "Bearer two"},
            {"Authorization": "bearer one"},
            {"X-Api-Key": "one"},
        ):
            assert await status(client, server, "GET", "/v1/models", **headers) == (200, None)


async def props(client, server) -> dict:
    return (await client.get(server, "/props", Authorization="Bearer one")).json


async def test_empty_and_dummy_keys_are_harmless_without_a_key(client):
    async with FakeServer() as server:
        for value in ("", "Bearer ", "Bearer sk-dummy", "Basic x"):
            found = await status(client, server, "GET", "/v1/models", Authorization=value)
            assert found == (200, None)


def test_keys_come_from_a_file_as_well(tmp_path):
    path = tmp_path / "keys"
    path.write_text("\n alpha \n\nbeta\n")
    keys = ApiKeys.from_settings(FakeServer(settings={"api_key_file": path}).settings)
    keys.check({"Authorization": "Bearer beta"})
    keys.check({"X-Api-Key": "alpha"})
    path.write_text("\n")
    with pytest.raises(ConfigError, match="no key"):
        ApiKeys.from_settings(FakeServer(settings={"api_key_file": path}).settings)


@pytest.mark.parametrize(
    ("host", "served"),
    [
        ("localhost", True),
        ("LOCALHOST:8080", True),
        ("127.0.0.1:1", True),
        ("[::1]:8080", True),
        ("luce.lan:8080", True),  # named in the settings
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("10.0.0.5", False),
        ("localhost.evil.example:80", False),
        ("[", False),
    ],
)
async def test_a_loopback_server_answers_loopback_hosts_only(client, host, served):
    async with FakeServer(settings={"allowed_host": ("luce.lan",)}) as server:
        found = await status(client, server, "GET", "/v1/models", Host=host)
        assert found == ((200, None) if served else (403, "host_not_allowed"))


async def test_browsers_get_no_cors_headers_by_default(client):
    async with FakeServer() as server:
        reply = await client.get(server, "/v1/models", Origin="https://evil.example")
        assert not [name for name in reply.headers if name.startswith("Access-Control")]
        preflight = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
        path = "/v1/chat/completions"
        assert await status(client, server, "OPTIONS", path, **preflight) == (
            405,
            "method_not_allowed",
        )


async def test_listed_origins_get_cors_headers_and_others_none(client):
    settings = {"cors_origin": ("https://app.example",), "api_key": ("k",)}
    async with FakeServer(settings=settings) as server:
        url = server.url + "/v1/chat/completions"
        wanted = {"Access-Control-Request-Method": "POST"}
        good = {"Origin": "https://app.example", **wanted}
        async with client.session.options(url, headers=good) as response:
            assert response.status == 204
            assert response.headers["Access-Control-Allow-Origin"] == "https://app.example"
        key = {"Authorization": "Bearer k"}
        reply = await client.chat(server, max_tokens=1)
        assert reply.status == 401
        body = {"prompt": "x", "max_tokens": 1, "stream": True}
        reply = await client.post(
            server, "/v1/completions", body, Origin="https://app.example", **key
        )
        assert reply.headers["Access-Control-Allow-Origin"] == "https://app.example"
        reply = await client.post(
            server, "/v1/completions", body, Origin="https://evil.example", **key
        )
        assert "Access-Control-Allow-Origin" not in reply.headers


async def test_a_foreign_page_cannot_start_a_generation_without_a_preflight(client):
    async with FakeServer() as server:
        url = server.url + "/v1/completions"
        data = b'{"prompt": "x", "max_tokens": 1}'
        own = {"Origin": server.url}
        for origin, kind, wanted in (
            ({"Origin": "https://evil.example"}, "text/plain", 415),
            ({"Origin": "null"}, "application/x-www-form-urlencoded", 415),
            ({"Origin": "https://evil.example"}, "application/json", 200),  # needs a preflight
            (own, "text/plain", 200),
            ({}, "application/x-www-form-urlencoded", 200),  # curl -d
        ):
            headers = {**origin, "Content-Type": kind}
            async with client.session.post(url, data=data, headers=headers) as response:
                assert response.status == wanted, (origin, kind)


async def test_request_ids_are_echoed_if_fit_and_made_otherwise(client):
    async with FakeServer() as server:
        for path in ("/health", "/nope"):
            reply = await client.get(server, path, **{"X-Request-Id": "abc-123"})
            assert reply.headers["X-Request-Id"] == "abc-123"
        reply = await client.post(
            server,
            "/v1/completions",
            {"prompt": "x", "max_tokens": 1, "stream": True},
            **{"X-Request-Id": "stream-1"},
        )
        assert reply.headers["X-Request-Id"] == "stream-1"
        for unfit in ("", "a b", "x" * 500, "a;b"):
            reply = await client.get(server, "/health", **{"X-Request-Id": unfit})
            assert reply.headers["X-Request-Id"].startswith("req-")
