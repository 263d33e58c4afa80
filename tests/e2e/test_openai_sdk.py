"""A real model through the official SDK, without retries."""

from __future__ import annotations

import openai
import pytest

QUESTION = [{"role": "user", "content": "Name the capital of France."}]


def test_the_capital_of_france_streamed_and_whole(sdk):
    create = sdk.chat.completions.create
    whole = create(model="any", messages=QUESTION, temperature=0)
    assert "Paris" in whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "stop"
    assert whole.model == "SmolLM2-135M-Instruct.Q4_1"
    pieces, finish, usage = [], None, None
    with create(
        model="any",
        messages=QUESTION,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        for chunk in stream:
            for choice in chunk.choices:
                pieces.append(choice.delta.content or "")
                finish = choice.finish_reason or finish
            usage = chunk.usage or usage
    assert "".join(pieces) == whole.choices[0].message.content
    assert len([piece for piece in pieces if piece]) > 3
    assert (finish, usage) == ("stop", whole.usage)
    assert usage.completion_tokens == 8  # The| capital| of| France| is| Paris|.|<|im_end|>


def test_the_references_name_the_same_capital(references):
    body = {"messages": QUESTION, "temperature": 0}
    choice = references.post("/v1/chat/completions", body)["choices"][0]
    assert choice["message"]["content"] == "The capital of France is Paris."


def test_two_choices_of_a_seed_differ_and_come_again(sdk):
    def texts() -> list[str]:
        reply = sdk.chat.completions.create(
            model="any", messages=QUESTION, n=2, seed=11, temperature=1.2, max_tokens=12
        )
        assert [choice.index for choice in reply.choices] == [0, 1]
        return [choice.message.content for choice in reply.choices]

    first = texts()
    assert first[0] != first[1]
    assert texts() == first


def test_logprobs_are_sorted_and_sum_to_at_most_one(sdk):
    reply = sdk.chat.completions.create(
        model="any",
        messages=QUESTION,
        temperature=0,
        max_tokens=4,
        logprobs=True,
        top_logprobs=20,
    )
    entries = reply.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries) == reply.choices[0].message.content
    for entry in entries:
        top = [candidate.logprob for candidate in entry.top_logprobs]
        assert len(top) == 20
        assert top == sorted(top, reverse=True)
        assert entry.logprob == top[0] < 0
        assert entry.token == entry.top_logprobs[0].token
        assert bytes(entry.bytes).decode() == entry.token


def test_a_stop_string_ends_the_text_before_it(sdk):
    reply = sdk.chat.completions.create(
        model="any", messages=QUESTION, temperature=0, stop=[" Paris", "Rome"]
    )
    assert reply.choices[0].message.content == "The capital of France is"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.completion_tokens == 6


def test_max_tokens_ends_with_length(sdk):
    for field in ("max_tokens", "max_completion_tokens"):
        reply = sdk.chat.completions.create(
            model="any", messages=QUESTION, temperature=0, **{field: 3}
        )
        assert reply.choices[0].message.content == "The capital of"
        assert reply.choices[0].finish_reason == "length"
        assert reply.usage.completion_tokens == 3


def test_closing_a_stream_frees_its_slot(sdk, smollm2):
    before = smollm2.metric("luce:requests_cancelled")
    with sdk.completions.create(
        model="any",
        prompt="Once upon a time",
        max_tokens=4000,
        stream=True,
        extra_body={"ignore_eos": True},
    ) as stream:
        for number, _ in enumerate(stream):
            if number == 3:
                break
    smollm2.wait_idle(5)
    assert smollm2.metric("luce:requests_cancelled", phase="decode") == before + 1
    assert smollm2.metric("vllm:generation_tokens") < 4000


def test_each_refusal_is_its_own_exception_and_names_the_field(sdk):
    create = sdk.chat.completions.create
    with pytest.raises(openai.BadRequestError) as caught:
        create(model="any", messages=QUESTION, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as caught:
        create(model="any", messages=QUESTION, logprobs=True, top_logprobs=21)
    assert caught.value.param == "top_logprobs"
    with pytest.raises(openai.BadRequestError) as caught:
        create(model="any", messages=[{"role": "user", "content": "a b " * 9000}])
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        create(model="any", messages=QUESTION, tools=[{"type": "function", "function": {}}])
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "tools")
    with pytest.raises(openai.NotFoundError):
        sdk.embeddings.create(model="any", input="x")
    with pytest.raises(openai.NotFoundError):
        sdk.models.retrieve("other")


def test_the_model_list_describes_the_file(sdk):
    (model,) = sdk.models.list().data
    assert model.id == "SmolLM2-135M-Instruct.Q4_1"
    assert model.model_dump()["max_model_len"] == 8192
