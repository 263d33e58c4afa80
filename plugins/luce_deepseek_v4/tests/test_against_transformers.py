"""Tiny random models give transformers' logits at every position, in every way to run a request."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from luce_core.scheduler.policy import SchedulerPolicy
from luce_core.testing.driver import Driver
from luce_core.testing.leak_check import leak_check

TOLERANCE = 1e-4
NEW = 12
BLOCKS = 32


def prompt(length: int, salt: int = 0) -> list[int]:
    return random.Random(100 * salt + length).choices(range(320), k=length)


def paced(rows: int) -> SchedulerPolicy:
    """Steps of at most so many prompt rows."""
    return SchedulerPolicy(
        admission_coalesce_ms=0,
        prefill_chunk=rows,
        prefill_tokens=rows,
        long_prefill_tokens=rows,
        idle_prefill_tokens=rows,
    )


@pytest.fixture(scope="module")
def oracle(tiny_model):
    return tiny_model()


@pytest.fixture(scope="module")
def tiny(oracle, write_model, tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", oracle)


def check(watched, oracle, requests, driver) -> None:
    leak_check(driver.scheduler, engine=driver.engine)
    for request in requests:
        assert len(request.generated) == request.max_tokens
        error = watched.compare(request, oracle)
        print(f"logits differ by {error:.1e}")
        assert error < TOLERANCE


SIZES = [
    {},
    {"compress_ratios": [0, 0, 0, 0], "num_hash_layers": 0},
    {"compress_ratios": [4, 4, 4, 4], "num_hash_layers": 4},
    {"compress_ratios": [128, 128, 128, 0]},
    {"index_topk": 512},
    {"hc_mult": 2, "hc_sinkhorn_iters": 3, "o_groups": 4, "swiglu_limit": 0.5},
    {"sliding_window": 128, "num_experts_per_tok": 3, "routed_scaling_factor": 1.0},
    {"rope_parameters": {"rope_type": "default"}, "partial_rotary_factor": 0.5},
]


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: " ".join(sizes) or "usual")
def test_prompts_whole_and_their_continuations(
    sizes, tiny_model, write_model, tmp_path, load, watch
) -> None:
    model = tiny_model(**sizes)
    engine = load(write_model(tmp_path / "tiny.gguf", model), ds4_step_rows=300)
    watched, driver = watch(engine), Driver(engine, pool_blocks=BLOCKS)
    for length in (1, 3, 300):
        request = driver.submit(prompt(length), max_tokens=NEW)
        driver.run()
        assert watched.steps[-NEW:] == [[length], *[[1]] * (NEW - 1)]
        check(watched, model, [request], driver)


@pytest.mark.parametrize("rows", range(1, 17))
def test_any_chunking(rows, oracle, tiny, load, watch) -> None:
    engine = load(tiny)
    watched = watch(engine)
    driver = Driver(engine, pool_blocks=BLOCKS, policy=paced(rows))
    request = driver.submit(prompt(300), max_tokens=NEW)
    driver.run()
    assert watched.steps[0] == [rows]
    check(watched, oracle, [request], driver)


def test_in_company_of_prompts_and_decoders(oracle, tiny, load, watch) -> None:
    engine = load(tiny)
    watched, driver = watch(engine), Driver(engine, pool_blocks=BLOCKS)
    requests = []
    for salt, length in enumerate((150, 31, 129, 2, 40, 200)):
        requests.append(driver.submit(prompt(length, salt), max_tokens=NEW))
        driver.step()
    driver.run()
    assert any(len(step) == 6 and max(step) > 1 for step in watched.steps)
    check(watched, oracle, requests, driver)


def test_after_a_preemption(oracle, tiny, load, watch) -> None:
    engine = load(tiny)
    watched, driver = watch(engine), Driver(engine, pool_blocks=BLOCKS)
    requests = [driver.submit(prompt(130, salt), max_tokens=NEW) for salt in range(2)]
    while requests[1].finish is None:
        driver.step()
        if not requests[1].preemptions and len(requests[1].generated) > NEW // 2:
            driver.scheduler.preempt_newest()
    driver.run()
    assert requests[1].preemptions == 1
    check(watched, oracle, requests, driver)


def test_six_slots_that_join_and_leave_at_random(oracle, tiny, load, watch) -> None:
    """Slots and blocks are used again and again, some of them left in the middle of a window."""
    engine = load(tiny, slots=6, blocks=14)
    watched, driver = watch(engine), Driver(engine, pool_blocks=14)
    source = random.Random(7)
    requests, cancelled = [], []
    while len(requests) + len(cancelled) < 24 or not driver.scheduler.is_idle:
        if len(requests) + len(cancelled) < 24 and source.random() < 0.6:
            length = source.choice((1, 5, 17, 60, 127, 128, 131))
            salt = len(requests) + len(cancelled)
            request = driver.submit(prompt(length, salt), max_tokens=source.randint(1, NEW))
            (cancelled if source.random() < 0.2 else requests).append(request)
        for request in cancelled:
            if request.finish is None and source.random() < 0.1:
                driver.cancel(request)
        driver.step()
    assert max(map(len, watched.steps)) == 6
    check(watched, oracle, requests, driver)


def test_rows_of_one_step_equal_steps_of_one_row(tiny, load, watch, row_by_row) -> None:
    """To the bit, where products are made row by row."""
    seen = []
    for rows in (1, 4, 16, 100):
        engine = load(tiny, registry=row_by_row(), ds4_step_rows=100)
        watched = watch(engine)
        driver = Driver(engine, pool_blocks=BLOCKS, policy=paced(rows))
        request = driver.submit(prompt(150), max_tokens=NEW)
        driver.run()
        logits = watched.logits[request.id]
        seen.append(torch.stack([logits[position] for position in sorted(logits)]))
    for other in seen[1:]:
        assert torch.equal(seen[0], other)
