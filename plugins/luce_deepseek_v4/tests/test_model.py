"""Memory that is asked for is what is held, and state is a slot's own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from luce_deepseek_v4.config import RATIOS, read_config
from luce_deepseek_v4.engine import DeepSeekEngine
from luce_deepseek_v4.limits import engine_capabilities, scratch_bytes
from luce_deepseek_v4.model import Model
from luce_deepseek_v4.ops.entry_cache import EntryLayout
from luce_deepseek_v4.room import CacheTypes
from luce_deepseek_v4.settings import DeepSeekSettings
from luce_deepseek_v4.synthetic import (
    V4_FLASH,
    SyntheticDeepSeek,
    deepseek_metadata,
    scaled_down,
    write_deepseek,
)

from luce_core.engine import PrefillLimits
from luce_core.ops.record import record
from luce_core.testing.driver import Driver, run_alone
from luce_core.weights.typed_metadata import TypedMetadata


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return write_deepseek(tmp_path_factory.mktemp("tiny") / "tiny.gguf", SyntheticDeepSeek())


def states(engine: DeepSeekEngine):
    return [state for each in engine._model._attention for state in each.compressed]


@pytest.mark.parametrize("cache", ["f32", "f16", "bf16", "q8_0", "q4_0"])
def test_memory_need_is_what_is_held(cache, tiny, load) -> None:
    engine = load(tiny, cache=cache, blocks=7)
    rings = [attention.ring.rows for attention in engine._model._attention]
    pools = [state.pool for state in states(engine)]
    by_slot = sum(tensor.nbytes for tensor in (*rings, *pools))
    assert by_slot == engine.memory_need.bytes_per_slot * (6 + 1)
    entries = sum(state.entries.nbytes for state in states(engine))
    asked = engine.memory_need.bytes_per_token * 128 * (7 + 1)
    assert asked - 128 * (7 + 1) < entries <= asked


def test_the_real_model_has_the_published_layers_and_cache_sizes() -> None:
    """2 layers of a window, 21 of ratio 4, 20 of 128; 3440 cached values of a token."""
    metadata = TypedMetadata("V4 Flash", deepseek_metadata(V4_FLASH))
    config = read_config(cast("Any", SimpleNamespace(metadata=metadata, tensors={})))
    assert [config.ratios.count(ratio) for ratio in RATIOS] == [2, 21, 20]
    assert (config.ratios[2], config.ratios[3], config.ratios[-1]) == (4, 128, 4)
    facts = config.attention.compressed_rope
    assert (facts["theta"], facts["factor"], facts["original_context"]) == (160000, 16, 65536)
    assert config.attention.plain_rope == {"rotary_dim": 64, "theta": 10000}
    block = 0
    for ratio in config.ratios:
        dims = {0: (), 4: (512, 128), 128: (512,)}[ratio]
        layouts = [EntryLayout(ratio=ratio, head_dim=dim, cache_type="f16") for dim in dims]
        block += sum(layout.bytes_per_block for layout in layouts)
    assert block == 128 * 2 * 3440
    assert scaled_down(6).ratios == (0, 0, 4, 128, 4, 128)
    assert scaled_down(6).width == V4_FLASH.width


def test_a_slot_is_cleared_when_it_is_taken(tiny, load) -> None:
    engine = load(tiny, blocks=8, slots=2)
    for attention in engine._model._attention:
        attention.ring.rows.fill_(float("nan"))
        for state in attention.compressed:
            state.pool.fill_(float("nan"))
            state.entries.view(torch.uint8).fill_(0xFF)
    got = run_alone(engine, range(150), max_tokens=4, pool_blocks=8)
    fresh = run_alone(load(tiny, blocks=8, slots=2), range(150), max_tokens=4, pool_blocks=8)
    assert got.tokens == fresh.tokens
    assert not engine._model._attention[0].ring.rows[0].isnan().any()


def test_upstreams_limits_are_the_defaults(tiny, load) -> None:
    capabilities = load(tiny).capabilities
    assert capabilities.block_size == 128
    assert capabilities.max_step_rows == 16
    shared = PrefillLimits(max_prompts=6, rows_per_slot=4, rows_total=16, quantum=4)
    assert capabilities.with_decode == capabilities.idle == shared
    assert capabilities.lone.rows_per_slot == capabilities.lone.rows_total == 16
    raised = load(tiny, ds4_step_rows=64, ds4_prompt_rows=32).capabilities
    assert raised.max_step_rows == raised.lone.rows_per_slot == 64
    assert raised.with_decode.rows_per_slot == 32


def test_a_step_has_sixteen_rows_at_most_and_four_of_a_prompt_in_company(tiny, load, watch) -> None:
    engine = load(tiny, blocks=32)
    watched, driver = watch(engine), Driver(engine, pool_blocks=32)
    driver.submit(range(40), max_tokens=30)
    for _ in range(4):
        driver.step()
    for length in (50, 60, 70, 80, 90):
        driver.submit(range(length), max_tokens=8)
    driver.run()
    assert watched.steps[0] == [16]
    shared = [step for step in watched.steps if len(step) > 1]
    assert max(map(sum, watched.steps)) == max(map(sum, shared)) == 16
    assert max(map(max, shared)) == 4


@pytest.mark.parametrize(
    "model",
    [
        SyntheticDeepSeek(width=512, inner=1024, heads=8),
        SyntheticDeepSeek(width=256, inner=64, heads=32, experts=16, top_k=4),
    ],
    ids=["wide experts", "wide attention"],
)
@pytest.mark.parametrize("rows", [16, 256])
def test_scratch_holds_what_a_recorded_pass_takes(model, rows, tmp_path, context) -> None:
    loading = context(write_deepseek(tmp_path / "model.gguf", model))
    config = read_config(loading.gguf)
    capabilities = engine_capabilities(
        config,
        DeepSeekSettings(ds4_step_rows=rows),
        slots=4,
        max_context=None,
        vocab_size=model.vocab,
    )
    arena = record(
        Model(loading, config, CacheTypes("f16")).forward,
        max_rows=rows,
        max_logits=4,
        max_segments=4,
        max_blocks=8,
    ).arena
    scratch = scratch_bytes(config, capabilities)
    print(f"{sum(arena) / 2**20:.2f} MiB of {scratch / 2**20:.2f}")
    assert sum(arena) <= scratch < 2.5 * sum(arena)


def test_closing_gives_the_state_back(tiny, load) -> None:
    engine = load(tiny)
    engine.close()
    engine.close()
    assert all(each.ring.rows.shape[0] == 1 for each in engine._model._attention)
    assert all(state.entries.shape[0] == 1 for state in states(engine))
