"""Filters that a provider's op does draw the same tokens, and so does noise for whole rows."""

from __future__ import annotations

import pytest
import torch

from luce_core.device import Device
from luce_core.ops.core_ops import core_registry
from luce_core.sampling import sampler as module
from luce_core.sampling.sampler import Keep, Sampler

VOCAB = 500
PARAMS = (
    {"temperature": 1.0, "top_k": 5, "seed": 1},
    {"temperature": 0.7, "top_p": 0.9, "seed": 2},
    {"temperature": 1.3, "min_p": 0.05, "seed": 3},
    {"temperature": 2.0, "top_k": 40, "top_p": 0.5, "min_p": 0.001, "seed": 4},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 0.0, "seed": 6},
)


def drawn(request_of, one_step, keep: Keep | None = None) -> list[list[int]]:
    sampler = Sampler(len(PARAMS), VOCAB, keep=keep)
    generator = torch.Generator().manual_seed(3)
    slots = list(range(len(PARAMS)))
    for slot, params in enumerate(PARAMS):
        sampler.admit(slot, request_of(**params))
    steps = (torch.randn(len(PARAMS), VOCAB, generator=generator) * 3 for _ in range(8))
    return [one_step(sampler, logits, slots) for logits in steps]


def test_the_op_keeps_what_the_sampler_keeps(request_of, one_step) -> None:
    keep = core_registry().binder(Device("cpu"), torch.float32).bind("kept_tokens")
    asked = []

    def watched(*args: torch.Tensor) -> torch.Tensor:
        asked.append(args[0].shape[0])
        return keep(*args)

    assert drawn(request_of, one_step, watched) == drawn(request_of, one_step)
    assert asked == [4] * 8  # the rows with filters, and no others


def test_noise_for_whole_rows_draws_what_noise_for_few_tokens_does(
    request_of, one_step, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for fraction in (0, VOCAB):  # for few tokens always, never
        monkeypatch.setattr(module, "_SPARSE_FRACTION", fraction)
        found.append(drawn(request_of, one_step))
    assert found[0] == found[1]
