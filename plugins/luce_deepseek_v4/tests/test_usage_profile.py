"""The usage profile: counted beside the pass, written at the end, checked when it is read."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from luce_deepseek_v4.config import read_config
from luce_deepseek_v4.synthetic import SyntheticDeepSeek, write_deepseek
from luce_deepseek_v4.usage import UsageProfile, read_usage

from luce_core.errors import ConfigError
from luce_core.ops.record import ReferenceRecorder
from luce_core.testing.driver import run_alone
from luce_core.weights.gguf_file import GgufFile


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    model = SyntheticDeepSeek(experts=64, top_k=4)
    return write_deepseek(tmp_path_factory.mktemp("usage") / "model.gguf", model)


@pytest.fixture(scope="module")
def config(path):
    with GgufFile.open(path) as gguf:
        return read_config(gguf)


@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("two", [False, True])
def test_what_is_collected_is_what_was_picked(
    replayed, two, path, config, load, ops_registry, tmp_path
) -> None:
    registry, picked = ops_registry(), [Counter[int]() for _ in range(config.layers)]
    for op in ("moe_route", "moe_route_by_token"):
        registry.register_kernel(
            op,
            _counting(registry.spec(op).reference, picked),
            device="cpu",
            dtypes=(),
            provider="counting",
        )
    if replayed:
        registry.register_recorder(ReferenceRecorder().compile, provider="test", device="cpu")
    file = tmp_path / "usage.json"
    settings = {"ds4_expert_device": "cpu", "ds4_expert_budget_mb": 1} if two else {}
    engine = load(path, registry=registry, ds4_collect_routing=file, **settings)
    run_alone(engine, range(40), max_tokens=6, pool_blocks=8)
    assert not file.exists()
    engine.close()
    profile = read_usage(file, config)
    assert profile.rows == 45
    assert [sum(counts) for counts in profile.counts] == [45 * 4] * config.layers
    for layer, counts in enumerate(profile.counts):
        assert counts == [picked[layer][expert] for expert in range(64)]
    engine.close()
    assert list(tmp_path.iterdir()) == [file]


def _counting(route, picked: list[Counter[int]]):
    """The op, which notes its picks under the layer that is next in turn."""
    calls = iter(range(10**9))

    def note(*args: Any, **facts: Any) -> None:
        route(*args, **facts)
        out = args[-1]
        picked[_layer(facts, args, calls, len(picked))].update(out[:, 0].long().flatten().tolist())

    return note


def _layer(facts, args, calls, layers: int) -> int:
    """Layer 0 routes by token; the others take turns."""
    number = next(calls)
    by_token = len(args) == 4
    return 0 if by_token else 1 + number % (layers - 1)


def test_a_profile_brings_the_experts_of_its_text_near(path, load, tmp_path) -> None:
    file = tmp_path / "usage.json"
    engine = load(path, ds4_collect_routing=file)
    run_alone(engine, range(40), max_tokens=6, pool_blocks=8)
    engine.close()

    def copies(**settings: object) -> int:
        engine = load(path, ds4_expert_device="cpu", ds4_expert_budget_mb=1,
                      ds4_batch_copies=False, **settings)  # fmt: skip
        run_alone(engine, range(40), max_tokens=6, pool_blocks=8)
        engine.close()
        return engine.facts["expert_devices"]["copies"]

    with_profile, without = copies(ds4_expert_profile=file), copies()
    print(f"{with_profile} copies instead of {without}")
    assert with_profile < 0.8 * without


def test_a_profile_is_read_as_it_was_written(config, tmp_path) -> None:
    counts = [[layer * 64 + expert for expert in range(64)] for layer in range(4)]
    profile = UsageProfile(rows=7, counts=counts)
    profile.write(tmp_path / "usage.json")
    assert read_usage(tmp_path / "usage.json", config) == profile


GOOD = {"luce_expert_usage": 1, "architecture": "deepseek4", "rows": 1, "counts": [[0] * 64] * 4}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"luce_expert_usage": 2}, "luce_expert_usage"),
        ({"architecture": "qwen35moe"}, "architecture"),
        ({"counts": [[0] * 64] * 3}, "counts 3 layers, the model has 4"),
        ({"counts": [[0] * 64] * 3 + [[0] * 63]}, "counts 63 experts in layer 3.* has 64"),
        ({"counts": [[0] * 63 + [-1]] * 4}, r"counts\.0\.63"),
        ({"counts": [[0] * 63 + [0.5]] * 4}, r"counts\.0\.63"),
        ({"counts": [[0] * 63 + [True]] * 4}, r"counts\.0\.63"),
        ({"counts": "many"}, "counts"),
        ({"rows": 1 << 60}, "rows"),
        ({"more": 1}, "more"),
    ],
)
def test_a_profile_of_another_model_or_schema_is_refused(change, said, config, tmp_path) -> None:
    file = tmp_path / "usage.json"
    file.write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(ConfigError, match=rf"--ds4-expert-profile .*usage\.json: .*{said}"):
        read_usage(file, config)


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00", "[" * 100_000, '{"counts": 1e999}'])
def test_what_is_no_profile_is_refused(text, config, tmp_path) -> None:
    file = tmp_path / "usage.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"--ds4-expert-profile .*usage\.json"):
        read_usage(file, config)


def test_a_run_without_a_step_leaves_the_file_as_it_is(path, load, tmp_path) -> None:
    file = tmp_path / "usage.json"
    file.write_text("of before")
    load(path, ds4_collect_routing=file).close()
    assert file.read_text() == "of before"


def test_a_folder_cannot_be_written(path, load, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"--ds4-collect-routing .*no file can be written there"):
        load(path, ds4_collect_routing=tmp_path)
