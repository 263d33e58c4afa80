from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce_core.engine import EngineCapabilities, PrefillLimits
from luce_core.pace import build_policy
from luce_core.scheduler.pacing import MIXED_STEP_COST, QUANTUM, Pacing, choose_rows
from luce_core.scheduler.policy import PlanLimits
from luce_core.settings import Settings, parse_settings

LARGE = PrefillLimits(max_prompts=8, rows_per_slot=512, rows_total=4096, quantum=512)
ENGINE = EngineCapabilities(
    max_slots=8,
    max_context=8192,
    block_size=16,
    vocab_size=10,
    max_step_rows=8192,
    with_decode=LARGE,
    idle=replace(LARGE, rows_per_slot=4096),
    lone=replace(LARGE, rows_per_slot=4096),
)
MEASURED = Pacing(rows=48, decoders=4, decode_s=0.005, mixed_s=0.0198)


def affine(step_ms: float, row_ms: float) -> Callable[[int], float]:
    return lambda rows: (step_ms + row_ms * rows) / 1000


def limits(*arguments: str, pacing: Pacing | None = MEASURED) -> PlanLimits:
    settings = parse_settings(["model.gguf", *arguments], Settings)
    return build_policy(settings, pacing).limits(ENGINE)


@pytest.mark.parametrize(
    ("step_ms", "row_ms", "most", "rows"),
    [
        (5.0, 0.3, 2048, 48),  # 15 ms are left for rows: 50
        (5.0, 0.01, 2048, 1488),
        (5.0, 0.001, 2048, 2048),
        (5.0, 2.0, 2048, 16),  # even 16 rows cost too much, but a prompt must go on
        (5.0, 0.3, 40, 40),
        (5.0, 0.3, 10, 10),
    ],
)
def test_a_mixed_step_costs_at_most_four_decode_steps(
    step_ms: float, row_ms: float, most: int, rows: int
) -> None:
    cost = affine(step_ms, row_ms)
    pacing = choose_rows(cost, most=most, decoders=4)
    assert pacing.rows == rows
    assert (pacing.decode_s, pacing.mixed_s) == (cost(0), cost(rows))


@given(
    st.floats(0.1, 100),
    st.floats(0, 10),
    st.floats(0, 0.01),
    st.integers(0, 64),
    st.integers(1, 4096),
)
def test_what_is_chosen_was_measured_and_keeps_the_bound(
    step: float, row: float, bend: float, tile: int, most: int
) -> None:
    """Costs that bend upwards and come in tiles."""

    def cost(rows: int) -> float:
        tiled = rows if not tile else -(-rows // tile) * tile
        return step + row * tiled + bend * tiled * tiled

    asked: list[int] = []

    def ask(rows: int) -> float:
        asked.append(rows)
        return cost(rows)

    pacing = choose_rows(ask, most=most, decoders=4)
    least = min(QUANTUM, most)
    assert pacing.rows in asked
    assert len(asked) <= 9
    assert least <= pacing.rows <= most
    assert pacing.rows % QUANTUM == 0 or pacing.rows == most
    assert pacing.rows == least or cost(pacing.rows) <= MIXED_STEP_COST * step


def test_when_time_is_up_the_best_of_what_was_measured_is_taken() -> None:
    asked: list[int] = []

    def cost(rows: int) -> float | None:
        asked.append(rows)
        return affine(5.0, 0.01)(rows) if len(asked) <= 3 else None

    assert choose_rows(cost, most=2048, decoders=4).rows == asked[2] == 64


def test_the_choice_is_told_in_one_line() -> None:
    said = "48, a step of 4 decoders takes 5.0 ms, with them 19.8 ms"
    assert MEASURED.explain() == said


def test_without_flags_the_choice_bounds_long_prompts_too_and_idle_steps_not() -> None:
    chosen = limits()
    for beside in (chosen.with_decode, chosen.with_decode_long):
        assert (beside.rows_per_slot, beside.rows_total) == (48, 48)
    assert (chosen.idle.rows_per_slot, chosen.idle.rows_total) == (4096, 4096)
    assert (chosen.lone.rows_per_slot, chosen.lone.rows_total) == (4096, 4096)


@pytest.mark.parametrize(
    ("arguments", "beside", "long"),
    [
        (["--prefill-chunk", "256"], (256, 2048), (256, 4096)),
        (["--prefill-tokens", "100"], (512, 100), (512, 200)),
        (["--prefill-chunk", "32", "--prefill-tokens", "64"], (32, 64), (32, 128)),
        (["--long-prefill-tokens", "1000"], (48, 48), (512, 1000)),
        (["--prefill-chunk", "32", "--long-prefill-tokens", "99"], (32, 2048), (32, 99)),
    ],
)
def test_what_is_set_wins(
    arguments: list[str], beside: tuple[int, int], long: tuple[int, int]
) -> None:
    chosen = limits(*arguments)
    assert (chosen.with_decode.rows_per_slot, chosen.with_decode.rows_total) == beside
    found = chosen.with_decode_long
    assert (found.rows_per_slot, found.rows_total) == long


def test_an_engine_that_cannot_be_measured_keeps_the_plain_limits() -> None:
    chosen = limits(pacing=None)
    assert (chosen.with_decode.rows_per_slot, chosen.with_decode.rows_total) == (512, 2048)
    assert (chosen.with_decode_long.rows_per_slot, chosen.with_decode_long.rows_total) == (
        512,
        4096,
    )
