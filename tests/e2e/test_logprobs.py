"""Reported log-probabilities are the model's own, whatever is done to the scores afterwards."""

from __future__ import annotations

import math

import pytest
import torch

PROMPT = "The capital of France is"
PARIS = 7042
WAYS = {
    "greedy": {"temperature": 0},
    "temperature 0.7": {"temperature": 0.7, "seed": 3},
    "temperature 2": {"temperature": 2, "seed": 3},
    "bias": {"temperature": 0, "logit_bias": {str(PARIS): -100, "284": 50}},
    "repetition penalty": {"temperature": 0, "repetition_penalty": 1.5},
    "filters": {"temperature": 1, "top_k": 2, "top_p": 0.1, "min_p": 0.5, "seed": 3},
    "penalties": {"temperature": 0, "presence_penalty": 2, "frequency_penalty": 2},
}


def first_position(server, **fields) -> tuple[str, float, dict[str, float]]:
    """The sampled token, its log-probability, and the top list, at the first position."""
    choice = server.complete(PROMPT, max_tokens=1, logprobs=20, **fields)
    sheet = choice["logprobs"]
    return sheet["tokens"][0], sheet["token_logprobs"][0], sheet["top_logprobs"][0]


@pytest.fixture(scope="module")
def greedy(smollm2) -> dict[str, float]:
    token, logprob, top = first_position(smollm2, **WAYS["greedy"])
    assert smollm2.post("/detokenize", {"tokens": [PARIS]})["content"] == token == " Paris"
    assert logprob == top[" Paris"] == max(top.values())
    assert -1.5 < logprob < 0
    assert sum(map(math.exp, top.values())) <= 1
    return top


@pytest.mark.parametrize("way", WAYS)
def test_temperature_bias_penalties_and_filters_change_no_logprob(smollm2, greedy, way):
    token, logprob, top = first_position(smollm2, **WAYS[way])
    assert token in top
    assert top[token] == logprob
    common = greedy.keys() & top.keys()
    assert len(common) >= 20
    for other in common:
        assert top[other] == pytest.approx(greedy[other], abs=1e-5), other
        assert top[other] <= 0


@pytest.mark.parametrize("count", [0, 1, 20])
def test_the_sampled_token_is_listed_even_outside_of_the_top(smollm2, greedy, count):
    """A bias makes an unlikely token certain; its own log-probability stays what it was."""
    message = [{"role": "user", "content": "Hi"}]
    (unlikely,) = smollm2.post("/tokenize", {"content": " zebra"})["tokens"][:1]
    body = {
        "messages": message,
        "max_tokens": 1,
        "logprobs": True,
        "top_logprobs": count,
        "logit_bias": {str(unlikely): 100},
        "temperature": 0,
    }
    (entry,) = smollm2.post("/v1/chat/completions", body)["choices"][0]["logprobs"]["content"]
    top = [candidate["logprob"] for candidate in entry["top_logprobs"]]
    assert len(top) == count
    assert top == sorted(top, reverse=True)
    assert entry["token"] == smollm2.post("/detokenize", {"tokens": [unlikely]})["content"]
    assert entry["logprob"] < -3
    assert all(value > entry["logprob"] for value in top)


# Of transformers 5.24 with the file's weights in float32; the slow test computes them anew.
FROM_TRANSFORMERS = {
    " Paris": -0.2581,
    " the": -2.7407,
    " London": -4.3844,
    " Le": -4.6199,
    " New": -4.6778,
    " La": -4.7244,
    " ": -4.9160,
    " not": -4.9315,
}


def test_logprobs_of_the_references_equal_what_transformers_found(references):
    greedy = first_position(references, **WAYS["greedy"])[2]
    best = dict(sorted(greedy.items(), key=lambda entry: -entry[1])[: len(FROM_TRANSFORMERS)])
    assert best == pytest.approx(FROM_TRANSFORMERS, abs=1e-2)


@pytest.mark.slow
def test_logprobs_of_the_references_equal_those_of_transformers(references, smollm2_path):
    import transformers  # heavy: only this test needs it

    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        smollm2_path.parent, gguf_file=smollm2_path.name, dtype=torch.float32
    ).eval()
    worst = 0.0
    for prompt in (PROMPT, "def fibonacci(n):\n    ", "Der Zug nach Wien fährt um", "Q: 7 * 8 = "):
        ids = references.post("/tokenize", {"content": prompt})["tokens"]
        with torch.no_grad():
            expected = torch.log_softmax(oracle(torch.tensor([ids])).logits[0, -1], dim=-1)
        ours = references.complete(ids, max_tokens=1, temperature=0, logprobs=20)["logprobs"]
        assert len(ours["top_logprobs"][0]) == 20
        for index, value in zip(*(part.tolist() for part in expected.topk(12)[::-1]), strict=True):
            text = references.post("/detokenize", {"tokens": [index]})["content"]
            worst = max(worst, abs(ours["top_logprobs"][0][text] - value))
    assert worst < 1e-2, worst
