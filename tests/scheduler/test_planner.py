from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from luce_core.engine import PrefillLimits
from luce_core.scheduler.planner import grant_rows


def limits(
    prompts: int = 8, per_slot: int = 512, total: int = 2048, quantum: int = 512
) -> PrefillLimits:
    return PrefillLimits(
        max_prompts=prompts, rows_per_slot=per_slot, rows_total=total, quantum=quantum
    )


def test_the_cursor_decides_who_gets_the_first_grant() -> None:
    scarce = limits(total=512)
    assert grant_rows([900, 900], cursor=0, limits=scarce, rows_left=9999) == [512, 0]
    assert grant_rows([900, 900], cursor=1, limits=scarce, rows_left=9999) == [0, 512]


def test_what_a_short_prompt_leaves_goes_to_the_long_one() -> None:
    shared = limits(per_slot=4096, total=2048)
    assert grant_rows([20, 7000], cursor=0, limits=shared, rows_left=9999) == [20, 2028]


def test_four_rows_a_prompt_sixteen_a_step_is_expressible() -> None:
    small = limits(prompts=6, per_slot=4, total=16, quantum=4)
    assert grant_rows([99] * 6, cursor=2, limits=small, rows_left=99) == [0, 0, 4, 4, 4, 4]


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=8),
    st.integers(0, 1000),
    st.builds(
        limits,
        per_slot=st.integers(1, 600),
        total=st.integers(1, 3000),
        quantum=st.integers(1, 600),
    ),
    st.integers(1, 3000),
)
def test_grants_keep_every_limit_and_waste_nothing(
    remaining: list[int], cursor: int, bounds: PrefillLimits, rows_left: int
) -> None:
    grants = grant_rows(remaining, cursor=cursor, limits=bounds, rows_left=rows_left)
    wanted = [min(rows, bounds.rows_per_slot) for rows in remaining]
    assert all(0 <= grant <= want for grant, want in zip(grants, wanted, strict=True))
    assert sum(grants) == min(sum(wanted), bounds.rows_total, rows_left)
