"""Through the host's own loading: the engine is found, its ops are there, its memory is summed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import luce_deepseek_v4
import pytest
from luce_deepseek_v4.synthetic import SyntheticDeepSeek, write_deepseek

from luce_core.errors import ConfigError
from luce_core.load import load_model, open_model
from luce_core.plugin_manager import Plugins, build_plugin_manager
from luce_core.settings import parse_settings, with_engine_settings
from luce_core.testing.driver import Driver


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return write_deepseek(tmp_path_factory.mktemp("tiny") / "tiny.gguf", SyntheticDeepSeek())


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return build_plugin_manager(names=("deepseek_v4",))


def loaded(plugins, *arguments: str):
    models = {spec.name: spec.settings for spec in plugins.engines().values()}
    settings = parse_settings([*arguments, "--threads", "1"], with_engine_settings(models))
    return load_model(open_model(settings, plugins), plugins, lambda done, total, what: None)


def test_an_installed_plugin_serves_its_architecture(plugins) -> None:
    specs = plugins.engines()
    assert list(specs) == ["deepseek_v4"]
    assert specs["deepseek_v4"].architectures == ("deepseek4",)


def test_a_derived_pool_has_rings_and_pools_in_its_sum(tiny, plugins) -> None:
    words = ("--max-concurrency", "5", "--cache-type-k", "q8_0", "--cache-type-v", "q8_0")
    model = loaded(plugins, str(tiny), *words)
    need = model.engine.memory_need
    terms = dict(model.pool.terms)
    assert terms["- state of 5 + 1 slots"] == 6 * need.bytes_per_slot
    # 4 rings of 15 + 16 rows of 64 float16 values, two pairs of double pools of 4 and one single
    assert need.bytes_per_slot == 4 * 31 * 64 * 2 + 4 * 3 * (4 * 64 + 64 + 4 * 64)
    assert terms["- scratch of a step"] == need.scratch > 0
    # a row of 64 values takes 68 bytes: four compressors have a row of 4 tokens, one of 128
    assert need.bytes_per_token == -(-(4 * 32 * 68 + 68) // 128)
    assert model.pool.tokens == 5 * 1024
    driver = Driver(model.engine, pool_blocks=model.pool.blocks)
    request = driver.submit(range(20), max_tokens=3)
    driver.run()
    assert len(request.generated) == 3


def test_what_the_engine_states_of_itself(tiny, plugins) -> None:
    words = ("--cache-type-k", "q4_0", "--cache-type-v", "q4_0", "--ds4-step-rows", "32")
    facts = loaded(plugins, str(tiny), *words).engine.facts
    assert facts == {
        "layers": 4,
        "layers_by_ratio": {"0": 1, "4": 2, "128": 1},
        "layers_routed_by_token": 1,
        "cached_entries": "q4_0",
        "cached_indexer_entries": "q8_0",
        "ring_entries": 15 + 32,
        "ring_type": "float16",
        "step_rows": 32,
        "prompt_rows": 4,
        "prefill": "exact",
        "expert_group_rows": 8,
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--draft", "DRAFT"], "--draft"),
        (["--peer-access"], "--peer-access"),
        (["--cache-type-k", "q8_0"], "--cache-type-k q8_0 and --cache-type-v f16"),
        (["--max-concurrency", "32"], "--ds4-step-rows 16 .* --max-concurrency 32"),
        (["--max-ctx", "2048"], "--max-ctx 2048"),
    ],
)
def test_what_the_engine_does_not_take_is_refused_by_name(words, said, tiny, plugins) -> None:
    words = [str(tiny) if word == "DRAFT" else word for word in words]
    with pytest.raises(ConfigError, match=said):
        loaded(plugins, str(tiny), *words)


def test_the_plugin_module_is_light() -> None:
    program = "import sys, luce_deepseek_v4; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
    assert luce_deepseek_v4.ARCHITECTURES
