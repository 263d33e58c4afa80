"""Drafts change no text, at any temperature, under every filter; no parameter is ignored."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from luce_core.request import FinishReason, Request, SamplingParams
from luce_core.testing.driver import Driver, Output
from luce_core.text.detokenizer import Detokenizer
from luce_core.text.output_parser import PlainParser
from luce_core.text.pipeline import TextPipeline
from luce_core.text.stop_strings import StopSet, StopStrings
from luce_core.text.tokenizer import Tokenizer
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.gguf_writer import write_gguf
from luce_core.weights.synthetic import SyntheticModel, write_synthetic

PROMPT = [(11 * index + 5) % 250 for index in range(12)]
NEW = 24


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    model = SyntheticModel(qtype="F32", width=64, heads=2, kv_heads=1, seed=4)
    return write_synthetic(tmp_path_factory.mktemp("tiny") / "tiny.gguf", model)


def run(engine, params: SamplingParams, *, stop_ids: Sequence[int] = ()) -> Output:
    driver = Driver(engine, pool_blocks=64)
    request = driver.submit(PROMPT, max_tokens=NEW, params=params, stop_ids=stop_ids)
    driver.run()
    return driver.output(request)


def drafting(truth: list[int], seed: int):
    """Drafts that are right for a random while, then wrong."""
    source = random.Random(seed)

    def drafts(request: Request, width: int) -> list[int]:
        done = len(request.generated)
        right = truth[done : done + source.randint(0, width)]
        return right + [source.randrange(300) for _ in range(width - len(right))]

    return drafts


PARAMS = [
    {"temperature": 0.0},
    {"temperature": 0.7, "seed": 1},
    {"temperature": 2.0, "seed": 2},
    {"temperature": 1.0, "top_k": 5, "seed": 3},
    {"temperature": 1.0, "top_p": 0.7, "seed": 4},
    {"temperature": 1.0, "min_p": 0.2, "seed": 5},
    {"temperature": 0.9, "repetition_penalty": 1.3, "presence_penalty": 0.5, "seed": 6},
    {"temperature": 0.0, "frequency_penalty": 1.0},
    {"temperature": 1.0, "logprobs": 3, "seed": 7},
]


@pytest.mark.parametrize("options", PARAMS, ids=lambda o: " ".join(map(str, o.items())))
def test_drafts_change_no_text(options, tiny, load) -> None:
    params = SamplingParams(**options)
    plain = run(load(tiny), params)
    engine = load(tiny, drafts=drafting(plain.tokens, 9), max_draft=4)
    drafted = run(engine, params)
    assert drafted.tokens == plain.tokens
    assert drafted.usage is not None
    assert drafted.usage.accepted > 0
    assert len(drafted.logprobs) == len(plain.logprobs)
    for ours, theirs in zip(drafted.logprobs, plain.logprobs, strict=True):
        assert ours.token == theirs.token
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)


def test_a_banned_favourite_never_appears_though_it_is_drafted(tiny, load) -> None:
    favourite = run(load(tiny), SamplingParams(temperature=0.0)).tokens[0]
    banned = SamplingParams(temperature=0.0, logit_bias=((favourite, -100.0),))
    plain = run(load(tiny), banned)
    assert favourite not in plain.tokens
    engine = load(tiny, drafts=lambda request, width: [favourite] * width, max_draft=4)
    assert run(engine, banned).tokens == plain.tokens


def test_stop_ids_wait_for_min_tokens_with_drafts_as_well(tiny, load) -> None:
    greedy = run(load(tiny), SamplingParams(temperature=0.0)).tokens
    stop = greedy[2]
    floor = SamplingParams(temperature=0.0, min_tokens=6)
    plain = run(load(tiny), floor, stop_ids=[stop])
    assert len(plain.tokens) >= 7
    assert stop not in plain.tokens[:6]
    engine = load(tiny, drafts=drafting(greedy, 3), max_draft=4)
    assert run(engine, floor, stop_ids=[stop]).tokens == plain.tokens


def test_a_row_of_nan_ends_its_request_and_no_other(tiny, load) -> None:
    expected = run(load(tiny), SamplingParams(temperature=0.0)).tokens
    engine = load(tiny)
    head = engine._model._head

    def spoiled(x) -> torch.Tensor:
        logits = head(x)
        if len(logits) == 3:
            logits[1] = float("nan")
        return logits

    engine._model._head = spoiled
    driver = Driver(engine, pool_blocks=64)
    greedy = SamplingParams(temperature=0.0)
    requests = [driver.submit(PROMPT, max_tokens=NEW, params=greedy) for _ in range(3)]
    driver.run()
    outputs = [driver.output(request) for request in requests]
    finishes = [output.finish for output in outputs]
    assert finishes == [FinishReason.LENGTH, FinishReason.ERROR, FinishReason.LENGTH]
    assert outputs[1].error is not None
    assert outputs[1].error.startswith("engine_output_invalid: ")
    assert outputs[0].tokens == outputs[2].tokens == expected


def test_any_id_that_has_logits_can_be_chosen_and_is_text_or_nothing(tmp_path, load) -> None:
    """Logits may be wider than the vocabulary; at a temperature of 100 every id comes up."""
    model = SyntheticModel(qtype="F32", vocab=320, context=1024, heads=2, kv_heads=1)
    path = write_synthetic(tmp_path / "wide.gguf", model)
    with GgufFile.open(path) as gguf:
        words = gguf.metadata.strings("tokenizer.ggml.tokens")[:300]
        types = gguf.metadata.ints("tokenizer.ggml.token_type")[:300]
        narrow = {
            **gguf.metadata.values,
            "tokenizer.ggml.tokens": list(words),
            "tokenizer.ggml.token_type": list(types),
        }
        write_gguf(tmp_path / "narrow.gguf", "llama", narrow, dict(gguf.tensors))
    engine = load(tmp_path / "narrow.gguf", blocks=256)
    driver = Driver(engine, pool_blocks=256)
    requests = [
        driver.submit(
            PROMPT, max_tokens=500, params=SamplingParams(temperature=100.0, seed=n, logprobs=2)
        )
        for n in range(4)
    ]
    driver.run()
    with GgufFile.open(tmp_path / "narrow.gguf") as gguf:
        tokenizer = Tokenizer.from_metadata(gguf.metadata)
    seen: set[int] = set()
    for request in requests:
        output = driver.output(request)
        assert output.finish is FinishReason.LENGTH
        pipeline = TextPipeline(Detokenizer(tokenizer), StopStrings(StopSet()), PlainParser())
        pipeline.push(output.tokens, output.logprobs)
        pipeline.finish()
        assert pipeline.tokens_used == 500
        seen |= set(output.tokens)
    assert max(seen) >= 300
    assert all(tokenizer.token_text(token) == "" for token in seen if token >= 300)
