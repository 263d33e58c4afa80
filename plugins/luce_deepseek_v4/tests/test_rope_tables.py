"""Each kind of layer turns by its own table: queries and keys are transformers', layer by layer."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers.models.deepseek_v4 import modeling_deepseek_v4

from luce_core.testing.driver import Driver

# YaRN's original context is so short that it matters from the first tokens on.
YARN = {
    "rope_type": "yarn",
    "factor": 16.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
RATIOS = [0, 4, 128, 4]
IDS = random.Random(31).choices(range(320), k=400)


@pytest.fixture(scope="module")
def oracle(tiny_model):
    return tiny_model(seed=31, rope_parameters=YARN, compress_ratios=RATIOS)


@pytest.fixture(scope="module")
def tiny(oracle, write_model, tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", oracle)


def expected_rows(oracle, monkeypatch) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """By layer: queries [T, heads, D] and the window's keys [T, D]; and the logits."""
    seen = []
    attend = modeling_deepseek_v4.eager_attention_forward

    def spy(module, query, key, *args, **kwargs):
        seen.append((query[0].transpose(0, 1), key[0, 0, : query.shape[2]]))
        return attend(module, query, key, *args, **kwargs)

    monkeypatch.setattr(modeling_deepseek_v4, "eager_attention_forward", spy)
    with torch.no_grad():
        logits = oracle(torch.tensor([IDS])).logits[0]
    return seen, logits


def our_rows(engine, ids) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """The same of one step that holds the whole prompt."""
    queries = []
    for attention in engine._model._attention:
        attend = attention._attend._attend

        def spy(query, *rest, attend=attend):
            queries.append(query.clone())
            return attend(query, *rest)

        attention._attend._attend = spy
    driver = Driver(engine, pool_blocks=32)
    driver.submit(ids, max_tokens=1)
    driver.run()
    rings = [attention.ring.rows[0, : len(ids)] for attention in engine._model._attention]
    return list(zip(queries, rings, strict=True))


def test_queries_and_keys_of_every_layer(oracle, tiny, load, monkeypatch) -> None:
    expected, _ = expected_rows(oracle, monkeypatch)
    ours = our_rows(load(tiny, ds4_step_rows=len(IDS)), IDS)
    assert len(ours) == len(expected) == len(RATIOS)
    for layer, ((query, key), (their_query, their_key)) in enumerate(
        zip(ours, expected, strict=True)
    ):
        assert query.shape == their_query.shape
        assert (query - their_query).abs().max() < 1e-4, layer
        assert (key - their_key).abs().max() < 1e-4, layer


@pytest.mark.parametrize(
    "table",
    [
        {"deepseek4.attention.compress_rope_freq_base": 10000.0},
        {"deepseek4.rope.freq_base": 160000.0},
        {"deepseek4.rope.scaling.factor": 1.0},
    ],
    ids=["base of windows for all", "base of entries for all", "no YaRN"],
)
def test_another_table_is_noticed_after_forty_tokens(
    table, oracle, tiny, load, rewritten, tmp_path, watch
) -> None:
    with torch.no_grad():
        expected = oracle(torch.tensor([IDS[:40]])).logits[0, -1]
    errors = []
    for metadata in ({}, table):
        engine = load(rewritten(tiny, tmp_path / "changed.gguf", metadata=metadata))
        watched, driver = watch(engine), Driver(engine, pool_blocks=32)
        request = driver.submit(IDS[:40], max_tokens=1)
        driver.run()
        errors.append(float((watched.logits[request.id][39] - expected).abs().max()))
    right, wrong = errors
    print(f"{right:.1e} with the file's table, {wrong:.1e} with the other")
    assert right < 1e-4
    assert wrong > 1e-2
