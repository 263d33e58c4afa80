"""Measures decode steps of an allocated engine before it serves, for the choice of widths."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from luce_core.engine import SeqEngine
from luce_core.kv.block_table import BlockTable
from luce_core.kv.slot_table import Slot
from luce_core.plan import DecodeRow, StepPlan
from luce_core.request import GREEDY, Request, RequestTimes
from luce_qwen_dflash2.step_costs import StepCosts
from luce_qwen_dflash2.widths import FixedWidths, Widths

log = logging.getLogger(__name__)

# Cached tokens of the slots that are measured, where there is room.
_CONTEXT_TOKENS = 512
# All kinds of steps are run in turn, so often or so long; slow ones once.
_ROUNDS = 9
_ENOUGH_S = 0.6
_SLOW_S = 4.0


def measure_costs(
    engine: SeqEngine,
    use: Callable[[Widths], None],
    *,
    blocks: int,
    clock: Callable[[], float] = time.perf_counter,
) -> StepCosts:
    """Costs of an engine that nobody uses yet; `use` sets its widths.

    Leaves nothing that a request could see: the slots are retired, an admitted slot is cleared, and
    of a cache nothing is read before it has been written.
    """
    slots, most = engine.capabilities.max_slots, engine.capabilities.max_draft
    drafts = sorted({0, 1, min(3, most), most})
    counts = sorted({1, -(-slots // 2), slots})
    runs: dict[tuple[int, int], float] = {}
    started = clock()
    for done in range(_ROUNDS):
        spent = clock() - started
        if (done > 1 and spent > _ENOUGH_S) or (done and spent > _SLOW_S):
            break
        for count in counts:
            if 1 < count < slots and clock() - started > _SLOW_S:
                continue
            times = _step_seconds(engine, use, count, drafts, blocks=blocks, clock=clock)
            for each, seconds in zip(drafts, times, strict=True):
                # The first round touches memory; of the others the quickest is the step alone.
                before = seconds if done < 2 else runs[count, each]
                runs[count, each] = min(seconds, before)
    log.info(
        "a decode step takes %.2f ms, with %d drafts %.2f ms; with %d slots %.2f and %.2f ms",
        1e3 * runs[1, 0],
        most,
        1e3 * runs[1, most],
        slots,
        1e3 * runs[slots, 0],
        1e3 * runs[slots, most],
    )
    return StepCosts.from_runs(runs, slots=slots, max_draft=most)


def _step_seconds(
    engine: SeqEngine,
    use: Callable[[Widths], None],
    count: int,
    drafts: Sequence[int],
    *,
    blocks: int,
    clock: Callable[[], float],
) -> list[float]:
    """A step of `count` slots for each number of drafts, behind a context that nobody has filled
    and that all slots share. The first has none: it puts the draft where it may propose."""
    capabilities = engine.capabilities
    size = capabilities.block_size
    room = min(capabilities.max_context, blocks * size)
    start = max(0, min(_CONTEXT_TOKENS, room // 2, room - sum(drafts) - len(drafts)))
    table = BlockTable(size, list(range(min(blocks, -(-capabilities.max_context // size)))))
    slots = [Slot(slot_id, table) for slot_id in range(count)]
    seconds = []
    try:
        for slot in slots:
            engine.admit(slot, _request(capabilities.max_context))
            slot.length = start
        for width in drafts:
            use(FixedWidths(width))
            rows = [
                DecodeRow(slot.id, 0, slot.length, max(0, min(width, room - slot.length - 1)))
                for slot in slots
            ]
            began = clock()
            result = engine.execute(engine.lower_plan(StepPlan(0, (), tuple(rows))))
            seconds.append(clock() - began)
            for slot in slots:
                slot.length += len(result.outputs[slot.id].tokens)
    finally:
        for slot in slots:
            engine.retire(slot)
    return seconds


def _request(most: int) -> Request:
    return Request(
        id=0,
        prompt=(0,),
        params=GREEDY,
        max_tokens=most,
        stop_ids=frozenset(),
        times=RequestTimes(0.0),
    )
