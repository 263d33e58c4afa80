"""A request's logits have the same bits in any company and chunking, on any number of threads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch

from luce_core.plan import DecodeRow, PrefillSlice, StepPlan

LONGEST_SEGMENT = 9  # 1 + the engine's max_draft: rows of a verify segment
LENGTHS = (3, 16, 40, 70, 290, 600)  # the longest take several parts of the keys


class Step(NamedTuple):
    """A plan, and which position of which request each logit row stands for."""

    plan: StepPlan
    drafts: dict[int, tuple[int, ...]]
    rows: list[tuple[int, int]]


def texts(seed: int) -> list[list[int]]:
    source = random.Random(seed)
    return [source.choices(range(256), k=length) for length in LENGTHS]


def random_steps(requests: list[list[int]], source: random.Random) -> Iterator[Step]:
    """Advance random requests by random numbers of rows until all are read; for ever again."""
    done = [0] * len(requests)
    while True:
        prefill, decode, drafts, rows = [], [], {}, []
        decode_rows = []
        for slot, tokens in enumerate(requests):
            if done[slot] == len(tokens):
                done[slot] = 0
            if source.random() < 0.3:
                continue
            start, left = done[slot], len(tokens) - done[slot]
            if source.random() < 0.4:
                count = min(left, source.choice((1, 2, 7, 16, 33, 200)))
                is_last = source.random() < 0.7
                piece = tuple(tokens[start : start + count])
                prefill.append(PrefillSlice(slot, start, piece, is_last))
                rows += [(slot, start + count - 1)] * is_last
            else:
                count = min(left, source.randint(1, LONGEST_SEGMENT))
                decode.append(DecodeRow(slot, tokens[start], start, LONGEST_SEGMENT - 1))
                drafts[slot] = tuple(tokens[start + 1 : start + count])
                decode_rows += [(slot, start + i) for i in range(count)]
            done[slot] += count
        if prefill or decode:
            yield Step(StepPlan(1, tuple(prefill), tuple(decode)), drafts, rows + decode_rows)


def solo(steps, requests: list[list[int]]) -> dict[tuple[int, int], torch.Tensor]:
    """Logits at every position, one request and few rows at a time."""
    found = {}
    for slot, tokens in enumerate(requests):
        for start in range(0, len(tokens), 4):
            piece = tokens[start : start + 4]
            plan = StepPlan(1, decode=(DecodeRow(slot, piece[0], start, 3),))
            logits = steps.run(plan, {slot: tuple(piece[1:])})
            found |= {(slot, start + i): row for i, row in enumerate(logits)}
    return found


def check(load, tiny, stepper, *, threads: int, count: int, seed: int, **model: object) -> None:
    requests = texts(seed)
    path, cache = tiny(model["arch"], model["qtype"]), str(model["cache"])
    alone = solo(stepper(load(path, cache=cache, threads=1)), requests)
    together = stepper(load(path, cache=cache, threads=threads))
    steps = random_steps(requests, random.Random(seed))
    compared = 0
    for _, step in zip(range(count), steps, strict=False):
        logits = together.run(step.plan, step.drafts)
        assert len(logits) == len(step.rows)
        for row, place in zip(logits, step.rows, strict=True):
            assert torch.equal(row, alone[place]), (place, step)
            compared += 1
    assert compared > count


MODELS = [
    {"arch": "llama", "qtype": "Q4_0", "cache": "f16"},
    {"arch": "qwen2", "qtype": "Q5_1", "cache": "q8_0"},
    {"arch": "qwen3", "qtype": "BF16", "cache": "f32"},
]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{model['arch']}-{model['qtype']}")
def test_random_steps_give_the_bits_of_each_request_alone(
    load, tiny, stepper, model, threads
) -> None:
    check(load, tiny, stepper, threads=threads, count=40, seed=threads, **model)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{model['arch']}-{model['qtype']}")
def test_a_thousand_random_steps(load, tiny, stepper, model, threads) -> None:
    check(load, tiny, stepper, threads=threads, count=1000, seed=10 + threads, **model)
