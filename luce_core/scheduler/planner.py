"""Which rows a step has. Pure functions over requests that hold slots; no state, no blocks."""

from __future__ import annotations

from collections.abc import Sequence

from luce_core.engine import PrefillLimits
from luce_core.plan import DecodeRow, PrefillSlice, StepPlan
from luce_core.request import Request
from luce_core.scheduler.policy import PlanLimits


def build_plan(
    step: int,
    *,
    decode: tuple[DecodeRow, ...],
    prefilling: Sequence[Request],
    cursor: int,
    limits: PlanLimits,
) -> StepPlan:
    """One step: every decode row, and prompt slices within the limits that fit the situation.

    `prefilling` is in admission order; `cursor` is the step's rotation, so that each prompt in turn
    gets the first grant.
    """
    if not prefilling:
        return StepPlan(step, (), decode)
    chosen_limits = _limits_for(decode, prefilling, limits)
    rows_left = limits.max_step_rows - sum(1 + row.max_draft for row in decode)
    prompts = prefilling[: chosen_limits.max_prompts]
    grants = grant_rows(
        [request.total_tokens - request.prefilled for request in prompts],
        cursor=cursor,
        limits=chosen_limits,
        rows_left=rows_left,
    )
    slices = [
        _slice(request, rows) for request, rows in zip(prompts, grants, strict=True) if rows > 0
    ]
    slices.sort(key=lambda piece: piece.slot_id)
    return StepPlan(step, tuple(slices), decode)


def _limits_for(
    decode: tuple[DecodeRow, ...], prefilling: Sequence[Request], limits: PlanLimits
) -> PrefillLimits:
    if decode:
        is_long = any(r.total_tokens >= limits.long_threshold for r in prefilling)
        return limits.with_decode_long if is_long else limits.with_decode
    return limits.lone if len(prefilling) == 1 else limits.idle


def grant_rows(
    remaining: Sequence[int], *, cursor: int, limits: PrefillLimits, rows_left: int
) -> list[int]:
    """Prompt rows for each prompt: grants of one quantum, round-robin from the cursor.

    No prompt gets more than it has left or than `rows_per_slot`; together they get at most
    min(rows_total, rows_left).
    """
    budget = min(limits.rows_total, rows_left)
    wanted = [min(rows, limits.rows_per_slot) for rows in remaining]
    grants = [0] * len(wanted)
    count = len(wanted)
    turn = cursor % count
    idle_turns = 0
    while budget > 0 and idle_turns < count:
        grant = min(limits.quantum, wanted[turn] - grants[turn], budget)
        if grant > 0:
            grants[turn] += grant
            budget -= grant
            idle_turns = 0
        else:
            idle_turns += 1
        turn = (turn + 1) % count
    return grants


def _slice(request: Request, rows: int) -> PrefillSlice:
    slot = request.slot
    assert slot is not None
    start = slot.length
    stop = start + rows
    return PrefillSlice(
        slot.id,
        start,
        request.tokens_between(start, stop),
        stop == request.total_tokens,
    )
