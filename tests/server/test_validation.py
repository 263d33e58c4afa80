"""A bad request is a 400 that names the field; a known field is honoured or refused by name."""

from __future__ import annotations

import asyncio

import pytest

from luce_core.testing.byte_vocab import VOCAB_SIZE
from luce_core.testing.fake_engine import FakeEngine, HashMind
from luce_core.testing.fake_server import FakeServer, byte_text

BAD_ANYWHERE = [
    *[("logit_bias", {key: 1}) for key in ("999999999", "-1", "abc", " 5", "+5", "5 ", "05")],
    ("logit_bias", {str(VOCAB_SIZE): 1}),
    *[("logit_bias", {"5": value}) for value in (1e9, -101, "1", None, True, [])],
    ("logit_bias", {str(i): 1 for i in range(2000)}),
    ("logit_bias", [[5, 1]]),
    *[("temperature", value) for value in (-0.1, 1e9, "1", True, [])],
    *[("top_k", value) for value in (-2, 1.5, "5", 2**40, True)],
    *[("top_p", value) for value in (-0.1, 1.1, "1")],
    *[("min_p", value) for value in (-0.1, 1.1, "x")],
    *[("seed", value) for value in (2**64, -1, 1.5, "7", True)],
    *[("n", value) for value in (0, -1, 9, 10**9, 1.5, "2")],
    *[("max_tokens", value) for value in (0, -1, 2**40, 1.5, "5")],
    *[("max_completion_tokens", value) for value in (0, -5)],
    *[("presence_penalty", value) for value in (-2.1, 2.1)],
    *[("frequency_penalty", value) for value in (-2.1, 2.1)],
    *[("repetition_penalty", value) for value in (0, -1, 1e9)],
    ("min_tokens", -1),
    ("stop", ["x"] * 10_000),
    ("stop", "x" * 5000),
    ("stop", [f"{i:02}" + "x" * 500 for i in range(30)]),
    ("stop", [1, 2]),
    ("stop", {"a": 1}),
    ("stop_token_ids", [VOCAB_SIZE]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", "x"),
    ("stop_token_ids", [1] * 5000),
    ("stream", "yes"),
    ("stream", 1),
    ("stream_options", {"include_usage": True}),  # without stream
    ("ignore_eos", 1),
    ("model", 5),
]
REFUSED_ANYWHERE = [
    ("response_format", {"type": "json_object"}),
    ("best_of", 2),
    ("grammar", "root ::= x"),
    ("guided_json", {}),
    ("structured_outputs", {"choice": ["a"]}),
    ("typical_p", 0.5),
    ("dry_multiplier", 0.8),
    ("bad_words", ["x"]),
    ("skip_special_tokens", False),
    ("priority", 3),
    ("use_beam_search", True),
    ("prompt_logprobs", 1),
]
BAD_CHAT = [
    ("messages", []),
    ("messages", "hi"),
    ("messages", None),
    ("messages.0", ["hi"]),
    ("messages.0.role", [{"role": "wizard", "content": "x"}]),
    ("messages.0.content", [{"role": "user", "content": 5}]),
    ("messages.0.content.0", [{"role": "user", "content": [{"type": "image_url"}]}]),
]
BAD_CHAT_FIELDS = [
    ("top_logprobs", {"top_logprobs": 21, "logprobs": True}),
    ("top_logprobs", {"top_logprobs": 3}),
    ("logprobs", {"logprobs": 5}),
    ("chat_template_kwargs", {"chat_template_kwargs": {"messages": []}}),
    ("chat_template_kwargs", {"chat_template_kwargs": {"self": 1}}),
    ("chat_template_kwargs", {"chat_template_kwargs": {"bos_token": "x"}}),
    ("chat_template_kwargs", {"chat_template_kwargs": {"x": "y" * 20_000}}),
    ("chat_template_kwargs", {"chat_template_kwargs": [1]}),
    ("reasoning_effort", {"reasoning_effort": "very"}),
    ("tools", {"tools": [{"type": "function"}]}),
    ("tool_choice", {"tool_choice": "required"}),
    ("functions", {"functions": [{}]}),
    ("chat_template", {"chat_template": "{{ x }}"}),
    ("audio", {"audio": {}}),
    ("modalities", {"modalities": ["text", "audio"]}),
    ("prediction", {"prediction": {}}),
    ("echo", {"echo": True}),
]
BAD_COMPLETION = [
    *[("prompt", {"prompt": value}) for value in (None, [], {}, 5, [1, "a"], ["a", 1], [[]], "")],
    ("prompt", {"prompt": [VOCAB_SIZE]}),
    ("prompt", {"prompt": [-1]}),
    ("prompt", {"prompt": [1.5]}),
    ("prompt", {"prompt": [True]}),
    ("prompt", {"prompt": ["a"] * 65}),
    ("logprobs", {"logprobs": 21}),
    ("logprobs", {"logprobs": True}),
    ("echo", {"echo": True, "logprobs": 1}),
    ("suffix", {"suffix": "x"}),
]


async def test_a_wrong_field_is_a_400_naming_it_and_running_requests_go_on(client, solo):
    engine = FakeEngine(HashMind(), step_ms=1)
    async with FakeServer(engine) as server:
        running = asyncio.create_task(client.stream_completion(server, "steady", max_tokens=900))
        for field, value in [*BAD_ANYWHERE, *REFUSED_ANYWHERE]:
            for route in (client.chat, client.complete):
                reply = await route(server, **{field: value})
                assert reply.status == 400, (field, value, reply.text)
                assert reply.error["param"] == field, (field, value)
                assert reply.error["type"] == "invalid_request_error"
        for param, messages in BAD_CHAT:
            body = {"messages": messages}
            reply = await client.post(server, "/v1/chat/completions", body)
            assert (reply.status, reply.error["param"]) == (400, param), messages
        for param, fields in BAD_CHAT_FIELDS:
            reply = await client.chat(server, **fields)
            assert (reply.status, reply.error["param"]) == (400, param), fields
        for param, fields in BAD_COMPLETION:
            body = {"prompt": "x", **fields}
            reply = await client.post(server, "/v1/completions", body)
            assert (reply.status, reply.error["param"]) == (400, param), fields
        events = await running
        assert events.done
        assert events.content() == solo("steady", max_tokens=900, raw=True)
        await server.check_leaks()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b'"x"',
        b'{"temperature": NaN, "prompt": "x"}',
        b'{"temperature": Infinity, "prompt": "x"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\xff"}',
        b'{"x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b'{"messages": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}",
    ],
)
async def test_a_body_that_is_not_a_json_object_is_a_400(client, body):
    async with FakeServer() as server:
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
            async with client.session.post(server.url + path, data=body) as response:
                assert response.status == 400
                error = (await response.json())["error"]
                assert error["code"] == "invalid_json"
                assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1e308},
        {"temperature": -1e308},
        {"chat_template_kwargs": {"deep": None}},
    ],
)
async def test_extreme_values_are_answered_in_the_error_shape(client, fields):
    async with FakeServer() as server:
        if "chat_template_kwargs" in fields:
            nested: object = 1
            for _ in range(500):
                nested = [nested]
            fields = {"chat_template_kwargs": {"deep": nested}}
        reply = await client.chat(server, **fields)
        assert reply.status == 400
        assert reply.error["param"] in fields


async def test_null_counts_as_absent_and_unknown_fields_are_ignored(client):
    nulls = dict.fromkeys(
        [field for field, _ in [*BAD_ANYWHERE, *REFUSED_ANYWHERE]] + ["tools", "audio"]
    )
    extra = {
        "store": True,
        "metadata": {"a": "b"},
        "user": "me",
        "cache_salt": "s",
        "service_tier": "auto",
        "parallel_tool_calls": True,
        "prompt_cache_key": "k",
        "brand_new_field": [1, {"x": 2}],
    }
    async with FakeServer() as server:
        reply = await client.chat(server, **{**nulls, **extra, "max_tokens": 3})
        assert reply.status == 200, reply.text
        assert reply.json["usage"]["completion_tokens"] == 3


async def test_harmless_values_of_unsupported_fields_are_accepted(client):
    harmless = {
        "response_format": {"type": "text"},
        "tools": [],
        "tool_choice": "auto",
        "best_of": 1,
        "suffix": "",
        "modalities": ["text"],
        "mirostat": 0,
        "typical_p": 1.0,
        "stop": [],
        "top_k": -1,
        "stream_options": None,
    }
    async with FakeServer() as server:
        assert (await client.chat(server, max_tokens=2, **harmless)).status == 200
        for stop in ("", [""], []):
            assert (await client.chat(server, max_tokens=2, stop=stop)).status == 200


async def test_the_sampling_fields_reach_the_engine(client):
    engine = FakeEngine(HashMind())
    seen = []
    admit = engine.admit

    def spy(slot, request):
        seen.append(request)
        admit(slot, request)

    engine.admit = spy
    async with FakeServer(engine) as server:
        await client.chat(
            server,
            temperature=0.5,
            top_k=7,
            top_p=0.9,
            min_p=0.1,
            repetition_penalty=1.2,
            presence_penalty=0.3,
            frequency_penalty=-0.4,
            logit_bias={"5": -100, "6": 2.5},
            seed=2**63 + 1,
            n=2,
            max_tokens=9,
            max_completion_tokens=3,
        )
        params = seen[0].params
        assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.5, 7, 0.9, 0.1)
        assert params.repetition_penalty == 1.2
        assert (params.presence_penalty, params.frequency_penalty) == (0.3, -0.4)
        assert params.logit_bias == ((5, -100.0), (6, 2.5))
        assert params.seed == seen[1].params.seed == 2**63 + 1
        assert [request.choice_index for request in seen] == [0, 1]
        assert [request.max_tokens for request in seen] == [3, 3]
        assert params.logprobs is None


async def test_without_a_seed_each_call_draws_its_own_and_its_choices_share_it(client):
    engine = FakeEngine(HashMind())
    seeds = []
    admit = engine.admit

    def spy(slot, request):
        seeds.append(request.params.seed)
        admit(slot, request)

    engine.admit = spy
    async with FakeServer(engine) as server:
        for _ in range(3):
            await client.chat(server, n=2, max_tokens=1)
    assert len(set(seeds)) == 3
    assert seeds[0] == seeds[1]


async def test_the_server_wide_floor_of_min_tokens_applies(client):
    engine = FakeEngine(HashMind(eos_every=3))
    async with FakeServer(engine, settings={"min_tokens": 40}) as server:
        for _ in range(5):
            reply = await client.chat(server, max_tokens=200)
            assert reply.json["usage"]["completion_tokens"] >= 40


async def test_template_arguments_reach_the_template(client):
    template = "{{ reasoning_effort }}|{{ enable_thinking }}|{{ city }}|{{ messages[0].content }}"
    engine = FakeEngine()
    async with FakeServer(engine, text=byte_text(template=template)) as server:

        async def prompt_of(**fields):
            engine.plans.clear()
            await client.chat(server, "hi", max_tokens=1, **fields)
            return bytes(t for plan in engine.plans for p in plan.prefill for t in p.tokens)

        kwargs = {"city": "Oslo", "enable_thinking": True}
        sent = await prompt_of(chat_template_kwargs=kwargs, reasoning_effort="high")
        assert sent == b"high|True|Oslo|hi"
        assert await prompt_of(reasoning_effort="none") == b"none|False||hi"


async def test_a_body_above_the_cap_is_a_413_and_the_server_goes_on(client):
    async with FakeServer(settings={"max_body_bytes": 4096}) as server:
        reply = await client.complete(server, "x" * 5000)
        assert (reply.status, reply.error["code"]) == (413, "body_too_large")

        async def endless():
            for _ in range(100):
                yield b"x" * 1000

        async with client.session.post(server.url + "/v1/completions", data=endless()) as response:
            assert response.status == 413
            assert (await response.json())["error"]["code"] == "body_too_large"
        assert (await client.complete(server, "x", max_tokens=1)).status == 200
