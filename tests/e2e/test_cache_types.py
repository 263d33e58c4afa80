"""What a quantised KV cache costs in quality, measured position by position."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from luce_core.load import LoadedModel, load_model, open_model
from luce_core.plan import DecodeRow, PrefillSlice, StepPlan
from luce_core.plugin_manager import build_plugin_manager
from luce_core.settings import parse_settings
from luce_core.testing.driver import Driver
from luce_core.weights.synthetic import SyntheticModel, write_synthetic

POSITIONS = 300
# Prose, code, figures and other languages: what a chat with a coding model holds.
TEXT = """\
The river had risen in the night, and by morning the lower meadow was a lake. Nobody in the village
could remember such water, though the oldest of them said that it had been worse before the dam.

def merge(left: list[int], right: list[int]) -> list[int]:
    result = []
    while left and right:
        result.append(left.pop(0) if left[0] <= right[0] else right.pop(0))
    return result + left + right

| year | visitors | change |
|------|----------|--------|
| 2019 | 1,204,311 | +3.1 % |
| 2020 |   388,020 | -67.8 % |

Der Zug nach Wien fährt um 17:45 Uhr von Gleis 3. Il est interdit de fumer dans les couloirs.
SELECT name, SUM(total) FROM orders JOIN users USING (user_id) GROUP BY name HAVING SUM(total) > 10;
Q: A train travels 180 km in two and a half hours. What is its average speed? A: 72 km/h, because
180 divided by 2.5 is 72. The answer is therefore seventy-two kilometres per hour.
Ingredients: 250 g of flour, three eggs, a pinch of salt, half a litre of milk. Whisk the eggs.
<ul class="menu"><li><a href="/about">About us</a></li><li><a href="/contact">Contact</a></li></ul>
"""


def load(words: list[str]) -> LoadedModel:
    """A model as `luce serve` loads it with these words."""
    plugins = build_plugin_manager()
    opened = open_model(parse_settings(words), plugins)
    return load_model(opened, plugins, lambda done, total, what: None)


@functools.cache
def greedy_choices(model: Path, k: str, v: str) -> list[int]:
    """The model's choice after each beginning of the text, which it is fed whatever it chose.

    Through the engine's own contract: a prompt of one token, then a decode row per token.
    """
    # The references: rounding activations as well would count against the cache.
    words = ("--threads", "1", "--max-concurrency", "1", "--kv-pool-tokens", "8192")
    words += ("--op", "reference")
    loaded = load([str(model), *words, "--cache-type-k", k, "--cache-type-v", v])
    engine = loaded.engine
    ids = loaded.opened.text.tokenizer.encode(TEXT, parse_special=False)[:POSITIONS]
    assert len(ids) == POSITIONS
    driver = Driver(engine, pool_blocks=loaded.pool.blocks)
    request = driver.submit(ids, max_tokens=1)
    driver.scheduler.handle(driver.inbox.drain(0.0)[0])
    driver.scheduler.admit()
    slot = request.slot
    assert slot is not None
    choices = []
    for position, token in enumerate(ids):
        if position == 0:
            plan = StepPlan(0, prefill=(PrefillSlice(slot.id, 0, (token,), True),))
        else:
            plan = StepPlan(position, decode=(DecodeRow(slot.id, token, position, 0),))
        result = engine.execute(engine.lower_plan(plan))
        choices += result.outputs[slot.id].tokens
        slot.length = position + 1
    engine.retire(slot)
    engine.close()
    assert len(choices) == POSITIONS
    return choices


def agreement(model: Path, k: str, v: str) -> float:
    """The share of positions with the choice that an f16 cache leads to."""
    ours, reference = greedy_choices(model, k, v), greedy_choices(model, "f16", "f16")
    return sum(a == b for a, b in zip(ours, reference, strict=True)) / POSITIONS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("k", "v", "least"),
    [("q8_0", "q8_0", 0.97), ("f16", "q4_0", 0.9), ("q8_0", "q4_0", 0.9), ("q4_0", "q8_0", 0.75)],
)
def test_smollm2_chooses_as_with_an_f16_cache(smollm2_path, k, v, least):
    """Found: 0.99, 0.95, 0.94, 0.80. Since the last is below 0.9, q4_0 keys are warned about."""
    found = agreement(smollm2_path, k, v)
    assert found >= least, f"{found:.3f}"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("k", "v", "least"), [("q8_0", "q8_0", 0.9), ("f16", "q4_0", 0.95)])
def test_qwen_coder_chooses_as_with_an_f16_cache(qwen_path, k, v, least):
    """Found: 0.917 and 0.97; transformers with keys and values rounded in the same way: 0.923.

    Since the first is below 0.95, quantised keys of Qwen2 are warned about.
    """
    found = agreement(qwen_path, k, v)
    assert found >= least, f"{found:.3f}"


@pytest.mark.parametrize(
    ("architecture", "k", "said"),
    [
        ("llama", "q4_0", "--cache-type-k q4_0 changes what llama models write; q8_0 keys do not"),
        ("llama", "q8_0", ""),
        ("qwen2", "q8_0", "--cache-type-k q8_0 changes what qwen2 models write; f16 keys do not"),
        ("qwen2", "f16", ""),
    ],
)
def test_keys_that_are_too_coarse_for_a_family_are_warned_about(
    tmp_path, caplog, architecture, k, said
):
    model = SyntheticModel(arch=architecture, heads=2, kv_heads=1)
    path = write_synthetic(tmp_path / "model.gguf", model)
    words = ("--threads", "1", "--cache-type-k", k, "--cache-type-v", "q4_0")
    load([str(path), *words]).engine.close()
    assert [record.getMessage() for record in caplog.records] == ([said] if said else [])
