"""With native kernels a step is one replayed recording, exact at both levels, and still right."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from luce_core.errors import LuceError
from luce_core.scheduler.policy import SchedulerPolicy
from luce_core.testing.driver import Driver
from luce_core.testing.engine_conformance import *  # noqa: F403
from luce_core.testing.engine_conformance import EngineUnderTest

kernels = pytest.importorskip("luce_kernels_cpu")

BLOCKS = 32
IDS = random.Random(35).choices(range(320), k=300)


@pytest.fixture(scope="module")
def oracle(tiny_model):
    return tiny_model(seed=35)


@pytest.fixture(scope="module")
def tiny(oracle, write_model, tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", oracle)


@pytest.fixture(scope="module")
def load_native(load, ops_registry):
    registry = ops_registry()
    try:
        kernels.luce_register_kernels(registry.register_kernel)
    except LuceError as error:
        pytest.skip(f"no native kernels here: {error}")
    kernels.luce_register_recorders(registry.register_recorder)
    return lambda path, **more: load(path, registry=registry, blocks=BLOCKS, **more)


@pytest.fixture(scope="module", params=["f32", "q4_0"])
def engine_under_test(request, tiny, load_native) -> EngineUnderTest:
    return EngineUnderTest(
        engine=load_native(tiny, cache=request.param),
        pool_blocks=BLOCKS,
        prompt_ids=range(256),
        longest=140,
        exact=True,
    )


def test_every_op_is_native_and_the_step_replayed(tiny, load_native) -> None:
    ops = load_native(tiny)._ops
    assert ops.modes == ("replayed by luce_kernels_cpu",)
    assert all(each.row_invariant and each.split_invariant for each in ops.bound)


@pytest.mark.parametrize("rows", range(1, 17))
def test_transformers_logits_at_any_chunking(rows, oracle, tiny, load_native) -> None:
    engine = load_native(tiny)
    seen = []
    run = engine._run

    def spy(batch):
        logits, greedy = run(replace(batch, logits_read=None))
        seen.extend(logits.clone())
        return logits, greedy

    engine._run = spy
    policy = SchedulerPolicy(
        admission_coalesce_ms=0, prefill_chunk=rows, prefill_tokens=rows, idle_prefill_tokens=rows
    )
    driver = Driver(engine, pool_blocks=BLOCKS, policy=policy)
    request = driver.submit(IDS, max_tokens=40)
    driver.run()
    with torch.no_grad():
        expected = oracle(torch.tensor([[*IDS, *request.generated]])).logits[0, len(IDS) - 1 : -1]
    ours = torch.stack(seen)
    assert ours.shape == expected.shape
    assert torch.equal(ours.argmax(-1), expected.argmax(-1))
    assert (ours - expected).abs().max() < 1e-4
