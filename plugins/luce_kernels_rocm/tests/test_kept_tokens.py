"""A sampler that leaves top_k, top_p and min_p to the kernel draws the same tokens."""

from __future__ import annotations

import torch
from luce_kernels_rocm.interpreter import register_interpreted
from luce_kernels_rocm.offers import offers

from luce_core.device import Device
from luce_core.ops.core_ops import core_registry
from luce_core.request import Request, RequestTimes, SamplingParams
from luce_core.sampling.sampler import Sampler

VOCAB = 600
ROWS = (
    SamplingParams(temperature=1.0, top_k=5, seed=1),
    SamplingParams(temperature=0.7, top_p=0.9, seed=2),
    SamplingParams(temperature=1.3, min_p=0.05, seed=3),
    SamplingParams(temperature=2.0, top_k=40, top_p=0.5, min_p=0.001, seed=4),
    SamplingParams(temperature=1.0, seed=5),
    SamplingParams(temperature=0.0, seed=6),
    SamplingParams(temperature=1.0, top_p=0.8, seed=7, presence_penalty=0.5),
)


def tokens(sampler: Sampler, steps: int) -> list[list[int]]:
    """What all slots get, from the same logits each time."""
    generator = torch.Generator().manual_seed(7)
    slots = range(len(ROWS))
    for slot, params in enumerate(ROWS):
        request = Request(slot, (1,), params, steps, frozenset(), RequestTimes(0.0))
        sampler.admit(slot, request)
    found = []
    for _ in range(steps):
        # Rounded ones tie.
        logits = (torch.randn(len(ROWS), VOCAB, generator=generator) * 3).round(decimals=1)
        chosen = sampler.accept(logits, range(len(ROWS) + 1), slots, [()] * len(ROWS))
        assert not any(each.error for each in chosen)
        found.append([each.tokens[0] for each in chosen])
    return found


def test_the_kernel_s_sampler_draws_the_same_tokens() -> None:
    registry = core_registry()
    register_interpreted(registry.register_kernel)
    keep = registry.binder(Device("cpu"), torch.float32).bind("kept_tokens")
    assert keep.kernel.provider == "luce_kernels_rocm"
    wanted = tokens(Sampler(len(ROWS), VOCAB), 4)
    assert tokens(Sampler(len(ROWS), VOCAB, keep=keep), 4) == wanted
    assert len({tuple(row) for row in wanted}) > 1


def test_the_kernel_is_offered_on_gpus() -> None:
    assert "kept_tokens" in {offer.op for offer in offers()}
