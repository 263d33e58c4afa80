"""Discovery, tokenising, status and metrics."""

from __future__ import annotations

import subprocess
import sys

from luce_core.testing.byte_vocab import IM_START, THINK
from luce_core.testing.fake_engine import FakeEngine, HashMind
from luce_core.testing.fake_server import FakeServer


async def test_models_carry_the_context_length_and_facts_of_the_file(client):
    async with FakeServer(FakeEngine(max_context=512), names=("real", "alias/x")) as server:
        listed = (await client.get(server, "/v1/models")).json
        assert [model["id"] for model in listed["data"]] == ["real", "alias/x"]
        for model in listed["data"]:
            assert model["max_model_len"] == model["context_length"] == 512
            assert model["object"] == "model"
            assert model["meta"]["n_ctx"] == 512
        assert (await client.get(server, "/v1/models/alias/x")).json["id"] == "alias/x"
        missing = await client.get(server, "/v1/models/other")
        assert (missing.status, missing.error["code"]) == (404, "model_not_found")


async def test_any_name_is_served_unless_names_are_strict(client):
    async with FakeServer(names=("real", "alias")) as server:
        reply = await client.chat(server, model="gpt-4", max_tokens=1)
        assert (reply.status, reply.json["model"]) == (200, "real")
    async with FakeServer(names=("real", "alias"), settings={"strict_model_name": True}) as server:
        for name, status in (("real", 200), ("alias", 200), ("gpt-4", 404)):
            assert (await client.chat(server, model=name, max_tokens=1)).status == status
        assert (await client.chat(server, max_tokens=1)).status == 200
        error = (await client.complete(server, model="gpt-4")).error
        assert (error["code"], error["param"]) == ("model_not_found", "model")


async def test_unknown_routes_and_methods_are_json_errors(client):
    async with FakeServer() as server:
        reply = await client.get(server, "/v1/nothing", Accept="text/html")
        assert (reply.status, reply.error["code"]) == (404, "not_found")
        reply = await client.get(server, "/v1/completions")
        assert (reply.status, reply.error["code"]) == (405, "method_not_allowed")
        assert reply.headers["Allow"] == "POST"
        async with client.session.head(server.url + "/health") as response:
            assert response.status == 200


async def test_tokenize_takes_the_forms_of_llama_server_and_vllm(client):
    async with FakeServer() as server:

        async def tokens(**body):
            reply = await client.post(server, "/tokenize", body)
            assert reply.status == 200, reply.text
            return reply.json

        assert (await tokens(content="hé"))["tokens"] == [104, 0xC3, 0xA9]
        assert (await tokens(prompt="hi"))["count"] == 2
        assert (await tokens(prompt="hi"))["max_model_len"] == 1024
        assert (await tokens(content="<think><|im_start|>"))["tokens"] == [THINK, IM_START]
        plain = await tokens(content="<|im_start|>", parse_special=False)
        assert plain["tokens"] == list(b"<|im_start|>")
        pieces = await tokens(content="hé", with_pieces=True)
        assert pieces["tokens"] == [
            {"id": 104, "piece": "h"},
            {"id": 0xC3, "piece": [0xC3]},
            {"id": 0xA9, "piece": [0xA9]},
        ]
        chat = await tokens(messages=[{"role": "user", "content": "<|im_start|>"}])
        assert chat["tokens"].count(IM_START) == 2
        named = await tokens(prompt="hi<think>", return_token_strs=True)
        assert named["token_strs"] == ["h", "i", "<think>"]
        for body in ({}, {"content": "a", "prompt": "b"}, {"content": 5}, {"messages": []}):
            assert (await client.post(server, "/tokenize", body)).status == 400


async def test_detokenize_is_the_inverse(client):
    async with FakeServer() as server:
        text = "né→漢👩‍💻 \n\t x"
        ids = (await client.post(server, "/tokenize", {"content": text})).json["tokens"]
        reply = (await client.post(server, "/detokenize", {"tokens": ids})).json
        assert reply == {"content": text, "prompt": text}
        for tokens in ("x", [1.5], [-1], [10**9], ["1"], None):
            reply = await client.post(server, "/detokenize", {"tokens": tokens})
            assert (reply.status, reply.error["param"]) == (400, "tokens")


async def test_props_tell_limits_template_pool_and_routes(client):
    engine = FakeEngine(slots=3, max_context=512)
    async with FakeServer(engine, pool_blocks=64, settings={"max_n": 5}) as server:
        props = (await client.get(server, "/props")).json
        assert props["version"] == 1
        assert props["default_generation_settings"]["n_ctx"] == 512
        assert props["total_slots"] == 3
        assert "<|im_start|>" in props["chat_template"]
        assert props["kv_pool"]["tokens"] == 64 * 16
        assert props["limits"]["max_n"] == 5
        assert props["engine_facts"] == {}
        assert props["prefill_rows_beside_decoders"] == server.model.pacing
        assert "POST /v1/chat/completions" in props["routes"]


async def test_slots_show_who_works_and_can_fail_when_none_is_free(
    client, raw, body_of, eventually
):
    engine = FakeEngine(HashMind(), slots=2, step_ms=20)
    async with FakeServer(engine) as server:
        views = (await client.get(server, "/slots")).json
        assert views == [{"id": i, "is_processing": False} for i in range(2)]
        running = await raw(server)
        running.send("/v1/chat/completions", body_of("a", n=2, stream=True, max_tokens=500))
        await eventually(lambda: server.runtime.loop.snapshot.running == 2)
        views = (await client.get(server, "/slots")).json
        assert [view["is_processing"] for view in views] == [True, True]
        assert views[0]["prompt_tokens"] == 20
        assert (await client.get(server, "/slots")).status == 200
        full = await client.get(server, "/slots?fail_on_no_slot=1")
        assert (full.status, full.error["code"]) == (503, "no_slot")
        running.abort()
        await server.check_leaks()


async def metric(client, server, name: str) -> float:
    text = (await client.get(server, "/metrics")).text
    (line,) = [line for line in text.splitlines() if line.startswith(name)]
    return float(line.rpartition(" ")[2])


async def test_metrics_count_under_vllms_names(client):
    async with FakeServer(FakeEngine(HashMind(), max_draft=3, accept=[2])) as server:
        for _ in range(3):
            await client.complete(server, "x" * 10, max_tokens=20)
        await server.quiet()
        label = '{model_name="fake"}'
        read = {
            f"vllm:prompt_tokens_total{label}": 30,
            f"vllm:generation_tokens_total{label}": 60,
            f"vllm:num_requests_running{label}": 0,
            f"vllm:num_requests_waiting{label}": 0,
            f"vllm:kv_cache_usage_perc{label}": 0,
            f"vllm:time_to_first_token_seconds_count{label}": 3,
            f"vllm:e2e_request_latency_seconds_count{label}": 3,
            f"vllm:request_generation_tokens_sum{label}": 60,
            f"luce:leaked_blocks{label}": 0,
            f"luce:step_faults_total{label}": 0,
        }
        for name, value in read.items():
            assert await metric(client, server, name) == value, name
        done = 'vllm:request_success_total{finished_reason="length",model_name="fake"}'
        assert await metric(client, server, done) == 3
        drafts = await metric(client, server, f"vllm:spec_decode_num_draft_tokens_total{label}")
        accepted = await metric(
            client, server, f"vllm:spec_decode_num_accepted_tokens_total{label}"
        )
        assert 0 < accepted < drafts
        for part in ("plan", "engine", "deliver"):
            name = f'luce:step_seconds_total{{model_name="fake",part="{part}"}}'
            assert await metric(client, server, name) > 0


async def test_histogram_buckets_are_cumulative(client):
    async with FakeServer() as server:
        await client.complete(server, max_tokens=50)
        text = (await client.get(server, "/metrics")).text
        name = "vllm:request_generation_tokens_bucket"
        counts = [float(x.rpartition(" ")[2]) for x in text.splitlines() if x.startswith(name)]
        assert counts == sorted(counts)
        assert counts[-1] == 1
        assert any(f'{name}{{le="50.0"' in line and line.endswith(" 1.0")
                   for line in text.splitlines())  # fmt: skip


async def test_waiting_and_rejections_show_in_the_metrics(client, raw, body_of, eventually):
    engine = FakeEngine(HashMind(), slots=1)
    async with FakeServer(engine, settings={"max_queue": 1}) as server:
        engine.hold()
        for _ in range(2):
            connection = await raw(server)
            connection.send("/v1/chat/completions", body_of("a", stream=True, max_tokens=9))
        await eventually(lambda: server.runtime.hub.unfinished == 2)
        assert (await client.chat(server)).status == 429
        rejected = 'luce:requests_rejected_total{code="queue_full",model_name="fake"}'
        assert await metric(client, server, rejected) == 1
        assert await metric(client, server, "luce:head_of_line_wait_seconds") > 0
        assert await metric(client, server, "luce:unfinished_requests") == 2
        engine.release()


async def test_finished_requests_are_told_to_the_hook_with_the_clients_id(client):
    told = []

    def broken(summary):
        raise RuntimeError("a plugin's bug")

    async with FakeServer(on_finished=(broken, told.append)) as server:
        await client.post(
            server,
            "/v1/completions",
            {"prompt": "abc", "max_tokens": 4},
            **{"X-Request-Id": "mine"},
        )
        await server.quiet()
    (summary,) = told
    assert (summary.client_id, summary.finish) == ("mine", "length")
    assert (summary.prompt_tokens, summary.completion_tokens) == (3, 4)
    assert 0 <= summary.time_to_first_token_s <= summary.total_s


async def test_timings_are_plausible(client):
    async with FakeServer(FakeEngine(HashMind(), step_ms=2)) as server:
        timings = (await client.complete(server, "x" * 50, max_tokens=11)).json["timings"]
        assert (timings["prompt_n"], timings["predicted_n"]) == (50, 11)
        assert timings["predicted_ms"] >= 20


def test_the_server_imports_no_torch():
    code = (
        "import luce_core.server.app, luce_core.server.listen, sys; print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
