"""With native kernels: a request's logits have the same bits alone and in company, with drafts and
without, in any chunking, on one thread and on more."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from luce_qwen_dflash2.engine import QwenEngine
from luce_qwen_dflash2.ops.draft_ops import DRAFT_OPS
from luce_qwen_dflash2.ops.target_ops import TARGET_OPS
from luce_qwen_dflash2.replayed import ReplayedDrafts
from luce_qwen_dflash2.synthetic import SyntheticHybrid, write_hybrid

from luce_core.request import Request, SamplingParams
from luce_core.scheduler.policy import SchedulerPolicy
from luce_core.testing.driver import Driver

VOCAB, BLOCKS, NEW = 320, 128, 24
LENGTHS = (1, 9, 16, 33, 70, 150)
PROMPTS = tuple(tuple(random.Random(length).choices(range(250), k=length)) for length in LENGTHS)
# Sampled, so that every row's logits are read; a greedy row may leave them unwritten.
PARAMS = SamplingParams(temperature=0.8, seed=5)
Logits = dict[int, torch.Tensor]


def chunked(rows: int) -> SchedulerPolicy:
    return SchedulerPolicy(
        admission_coalesce_ms=0,
        prefill_chunk=rows,
        prefill_tokens=rows,
        long_prefill_tokens=rows,
        idle_prefill_tokens=rows,
    )


@pytest.fixture(
    params=[
        {"qtype": "Q8_0"},
        {"qtype": "Q4_K", "width": 256, "ff": 256, "heads": 8, "state_dim": 128},
        {"qtype": "Q8_0", "experts": 6, "ff": 64},
    ],
    ids=["Q8_0", "Q4_K", "experts"],
)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_hybrid(tmp_path / "model.gguf", SyntheticHybrid(seed=4, **request.param))


def seen(watched: Any, requests: list[Request]) -> list[tuple[list[int], Logits]]:
    """Tokens and logits by position of each request. Of what was drafted and rejected behind its
    last token nothing counts."""
    return [
        (
            list(request.generated),
            {
                position: row
                for position, row in watched.logits[request.id].items()
                if position < request.total_tokens - 1
            },
        )
        for request in requests
    ]


def run(
    engine: QwenEngine, watched: Any, policy: SchedulerPolicy, *, between: int
) -> list[tuple[list[int], Logits]]:
    """The requests join `between` steps after each other."""
    watched.logits.clear()
    driver = Driver(engine, pool_blocks=BLOCKS, policy=policy)
    requests = []
    for text in PROMPTS:
        requests.append(driver.submit(text, max_tokens=NEW, params=PARAMS))
        for _ in range(between):
            driver.step()
    driver.run()
    return seen(watched, requests)


def test_logits_have_the_same_bits_in_any_company_and_chunking(
    model: Path, load: Any, watch: Any, native_ops: Any
) -> None:
    engine = load(model, registry=native_ops(), threads=1, blocks=BLOCKS, cache="q8_0")
    watched = watch(engine)
    alone = run(engine, watched, chunked(512), between=10_000)
    assert all(len(logits) == NEW for _, logits in alone)
    known = {text: tokens for text, (tokens, _) in zip(PROMPTS, alone, strict=True)}
    replayed = ReplayedDrafts(known, corruption=0.2, vocab_size=VOCAB)
    compared = 0
    for drafts, threads in ((None, 1), (None, 2), (replayed, 1), (replayed, 2)):
        other = load(
            model,
            registry=native_ops(),
            threads=threads,
            blocks=BLOCKS,
            cache="q8_0",
            drafts=drafts,
            max_draft=7 if drafts else 0,
        )
        assert other._ops.modes == ("replayed by luce_kernels_cpu",) * (2 if drafts else 1)
        watched = watch(other)
        for rows, between in ((512, 3), (1, 0), (7, 2), (64, 1)):
            for mine, expected in zip(
                run(other, watched, chunked(rows), between=between), alone, strict=True
            ):
                assert mine[0] == expected[0]
                assert mine[1].keys() == expected[1].keys()
                for position, row in expected[1].items():
                    assert torch.equal(mine[1][position], row), (rows, position)
                    compared += 1
    assert compared == 4 * 4 * len(PROMPTS) * NEW


def test_every_op_of_its_own_has_a_native_kernel(native_ops: Any) -> None:
    registry = native_ops()
    for spec in (*TARGET_OPS, *DRAFT_OPS):
        offers = {kernel.provider for kernel in registry.kernels(spec.name)}
        assert "luce_kernels_cpu" in offers, spec.name
