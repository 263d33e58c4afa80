"""The kernel of top_k, top_p and min_p keeps what the core's sampler keeps."""

from __future__ import annotations

import torch
from luce_kernels_rocm.ops.kept_tokens import kept_tokens

from luce_core.request import SamplingParams
from luce_core.sampling import filters

ROWS = (
    SamplingParams(temperature=1.0, top_k=5),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(temperature=1.3, min_p=0.05),
    SamplingParams(temperature=0.9, top_k=40, top_p=0.5, min_p=0.001),
    SamplingParams(temperature=2.0),
    SamplingParams(temperature=0.01, top_p=0.999999),
    SamplingParams(temperature=1.0, top_k=1),
)


def test_the_same_tokens_are_kept_as_on_a_cpu() -> None:
    generator = torch.Generator().manual_seed(7)
    # A block and a ragged end; some rows with ties, two kinds of zero, and banned tokens.
    logits = torch.randn(len(ROWS), 1300, generator=generator) * 4
    logits[:2] = logits[:2].round()
    logits[0, 100:120] = -0.0
    logits[3, 3:1200] = float("-inf")
    temperature = torch.tensor([row.temperature for row in ROWS])
    scaled = (logits - logits.amax(1, keepdim=True)) / temperature[:, None]
    row_filters = filters.row_filters(list(ROWS), logits.shape[1], "cpu")
    wanted = filters.kept_tokens(logits, scaled, row_filters)
    got = kept_tokens(logits, scaled, row_filters)
    assert got.dtype == torch.bool
    assert torch.equal(got, wanted)
    assert got.any(1).all()
