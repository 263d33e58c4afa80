"""Every type of the compressed cache, and what it costs beside float32 entries."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from luce_core.testing.driver import Driver

IDS = random.Random(33).choices(range(320), k=260)
# The mean error in standard deviations of the logits, and the share of equal best tokens: twice
# what was measured. Most of it comes from few positions, where another entry or expert is chosen.
MOST = {
    "f16": (2.2e-2, 0.96),
    "bf16": (5.4e-2, 0.86),
    "q8_0": (3.4e-2, 0.93),
    "q4_0": (1.5e-1, 0.74),
}


@pytest.fixture(scope="module")
def tiny(tiny_model, write_model, tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", tiny_model(seed=33))


@pytest.fixture(scope="module")
def logits_of(tiny, load, watch):
    def run(cache: str) -> Tensor:
        engine = load(tiny, cache=cache, ds4_step_rows=64)
        watched, driver = watch(engine), Driver(engine, pool_blocks=32)
        request = driver.submit(IDS, max_tokens=1)
        driver.run()
        seen = watched.logits[request.id]
        return torch.stack([seen[position] for position in sorted(seen)])

    return run


@pytest.fixture(scope="module")
def exact(logits_of) -> Tensor:
    return logits_of("f32")


@pytest.mark.parametrize("cache", MOST)
def test_a_type_costs_no_more_than_it_did(cache, exact, logits_of) -> None:
    found = logits_of(cache)
    error = float((found - exact).abs().mean() / exact.std())
    same = float((found.argmax(-1) == exact.argmax(-1)).float().mean())
    print(f"{cache}: mean error {error:.2e}, {100 * same:.1f} % of best tokens are the same")
    most, least = MOST[cache]
    assert 0 < error < most
    assert same > least
