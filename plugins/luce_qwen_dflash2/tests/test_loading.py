"""Through the host's own loading: the engine is found, its ops are there, its memory is summed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import luce_qwen_dflash2
import pytest
from luce_qwen_dflash2.synthetic import SyntheticHybrid, write_hybrid

from luce_core.errors import ConfigError, ModelFileError
from luce_core.load import load_model, open_model
from luce_core.plugin_manager import Plugins, build_plugin_manager
from luce_core.settings import parse_settings
from luce_core.testing.driver import Driver


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return write_hybrid(tmp_path_factory.mktemp("tiny") / "tiny.gguf", SyntheticHybrid(seed=7))


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return build_plugin_manager(names=("qwen_dflash2",))


def loaded(plugins, *arguments: str):
    settings = parse_settings([*arguments, "--threads", "1"])
    return load_model(open_model(settings, plugins), plugins, lambda done, total, what: None)


def test_an_installed_plugin_serves_its_architectures(plugins) -> None:
    specs = plugins.engines()
    assert list(specs) == ["qwen_dflash2"]
    assert specs["qwen_dflash2"].architectures == ("qwen35", "qwen35moe")


def test_a_derived_pool_has_the_slots_state_in_its_sum(tiny, plugins) -> None:
    model = loaded(plugins, str(tiny), "--max-concurrency", "5", "--cache-type-k", "q8_0")
    need = model.engine.memory_need
    terms = dict(model.pool.terms)
    assert terms["- state of 5 + 1 slots"] == 6 * need.bytes_per_slot
    # 3 layers of state 6 x 16 x 16, 3 inputs and a log row of 160 channels, and one of the rule
    assert need.bytes_per_slot == 3 * 4 * (6 * 256 + 3 * 160 + 160 + 2 * 16 + 6 * 16 + 6)
    assert terms["- scratch of a step"] == need.scratch > 0
    assert model.pool.tokens == 5 * 512
    driver = Driver(model.engine, pool_blocks=model.pool.blocks)
    request = driver.submit(range(20), max_tokens=3)
    driver.run()
    assert len(request.generated) == 3


def test_a_pool_that_cannot_hold_a_context_shows_the_state(tiny, plugins, monkeypatch) -> None:
    monkeypatch.setattr("luce_core.load.free_bytes", lambda device: 1 << 20)
    with pytest.raises(ConfigError, match=re.escape("- state of 6 + 1 slots")):
        loaded(plugins, str(tiny), "--max-concurrency", "6")


def test_a_draft_loads_with_its_flags_and_counts_in_the_sum(tiny_pair, plugins, caplog) -> None:
    """State, ring and scratch are terms of the pool that --kv-pool-tokens 0 derives."""
    target, draft = map(str, tiny_pair)
    words = ("--max-concurrency", "5", "--cache-type-k", "q8_0", "--kv-pool-tokens", "0")
    alone = loaded(plugins, target, *words)
    details = ("--draft-device", "cpu", "--draft-block-size", "4", "--draft-min-acceptance", "0.2")
    with caplog.at_level("INFO"):
        pair = loaded(plugins, target, *words, "--draft", draft, *details)
    assert pair.engine.capabilities.max_draft == 3
    assert [r for r in caplog.records if "a decode step takes" in r.getMessage()]
    need, before = pair.engine.memory_need, alone.engine.memory_need
    rings = pair.engine._drafting._draft._rings.layers
    caches = [mixer.cache for mixer in pair.engine._model._recurrent]
    state = sum(getattr(c, name).nbytes for c in caches for name in type(c).__slots__)
    ring = sum(part.nbytes for each in rings for part in (each.k, each.v))
    assert (5 + 1) * need.bytes_per_slot == state + ring
    assert need.draft > pair.engine._drafting._draft.backlog.rows.nbytes
    # Steps are narrower beside a draft, whose features cost memory by the row.
    assert pair.engine.capabilities.max_step_rows < alone.engine.capabilities.max_step_rows / 3
    terms, fewer = dict(pair.pool.terms), dict(alone.pool.terms)
    assert terms["- state of 5 + 1 slots"] == state + ring > fewer["- state of 5 + 1 slots"]
    assert terms["- draft model"] == need.draft > fewer["- draft model"] == before.draft == 0
    driver = Driver(pair.engine, pool_blocks=pair.pool.blocks)
    request = driver.submit(range(20), max_tokens=30)
    driver.run()
    assert len(request.generated) == 30
    assert pair.engine.held_slots == []


def test_a_draft_that_does_not_fit_is_refused_before_weights_are_read(
    tiny_pair, tmp_path, plugins, write_tiny_draft
) -> None:
    wide = write_tiny_draft(tmp_path / "wide.gguf", width=128)
    opened = open_model(parse_settings([str(tiny_pair[0]), "--draft", str(wide)]), plugins)
    read: list[str] = []
    with pytest.raises(ModelFileError, match=r"wide.gguf.*embedding_length.*width 64"):
        load_model(opened, plugins, lambda done, total, what: read.append(what))
    assert not read
    target = str(tiny_pair[0])
    opened = open_model(parse_settings([target, "--draft", target]), plugins)
    with pytest.raises(ModelFileError, match=r"general.architecture.*dflash"):
        load_model(opened, plugins, lambda done, total, what: None)


def test_the_plugin_module_is_light() -> None:
    program = "import sys, luce_qwen_dflash2; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
    assert luce_qwen_dflash2.ARCHITECTURES
