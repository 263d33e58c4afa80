"""What steps of a loaded engine cost, measured with real plans before anybody is served.

The profile plays the scheduler's part on a slot table of its own: it reserves slots, advances them
by the results and gives everything back. Its slots begin in the middle of a context whose cache
nobody has filled, since filling it would take longer than all the rest; the values in a cache do
not change what reading it costs.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable

from luce_core.engine import EngineCapabilities, PrefillLimits, SeqEngine
from luce_core.errors import EngineDead, StepFault
from luce_core.kv.block_pool import BlockPool
from luce_core.kv.slot_table import Slot, SlotTable
from luce_core.plan import DecodeRow, PrefillSlice, StepPlan, StepResult, validate_result
from luce_core.request import GREEDY, Phase, Request, RequestTimes
from luce_core.scheduler.pacing import QUANTUM, Pacing, choose_rows

log = logging.getLogger(__name__)

_DECODERS = 4
# Half of what most chats reach, so that attention costs what it will cost.
_CONTEXT_TOKENS = 1024
# The first run of a shape compiles, fills caches or touches memory: it is not counted.
_RUNS = 1 + 5
_ENOUGH_S = 0.06
_FEW_RUNS = 1 + 3
_SLOW_S = 0.15
_TOTAL_S = 0.5
# An engine whose steps are slow may take so many of them instead.
_TOTAL_STEPS = 12
_TOKEN = 0


def measure_pacing(
    engine: SeqEngine,
    *,
    pool_blocks: int,
    bounds: PrefillLimits,
    clock: Callable[[], float] = time.perf_counter,
    strict: bool = False,
) -> Pacing | None:
    """Prompt rows to let in beside decoders, at most what `bounds` allows; None if there is no
    choice to make, or if the engine fails at it, which `strict` raises.

    `bounds` are the engine's limits with decoders, lowered by what the user has set. Called once,
    on an allocated engine that no runtime has yet. Raises EngineDead if the device is lost.
    """
    capabilities = engine.capabilities
    table = SlotTable(capabilities.max_slots, BlockPool(pool_blocks, capabilities.block_size))
    decoders = min(_DECODERS, capabilities.max_slots - 1)
    if decoders < 1 or bounds.rows_total <= QUANTUM:
        return None
    profile = _Profile(engine, table, decoders, bounds, clock)
    if profile.most_rows <= QUANTUM:
        return None
    try:
        return choose_rows(profile.cost, most=profile.most_rows, decoders=decoders)
    except EngineDead:
        raise
    except Exception:
        if strict:
            raise
        log.warning("the costs of steps could not be measured", exc_info=True)
        return None


class _Profile:
    """Costs of steps with `decoders` decode rows and some prompt rows beside them."""

    def __init__(
        self,
        engine: SeqEngine,
        table: SlotTable,
        decoders: int,
        bounds: PrefillLimits,
        clock: Callable[[], float],
    ) -> None:
        capabilities = engine.capabilities
        self._engine = engine
        self._table = table
        self._decoders = decoders
        self._clock = clock
        self._step = 0
        self._spent_s = 0.0
        self._budget_s = _TOTAL_S
        prompts = min(bounds.max_prompts, capabilities.max_slots - decoders)
        # Room of each slot, in whole blocks.
        size = capabilities.block_size
        share = table.pool.total // (decoders + prompts) * size
        self._room = min(capabilities.max_context, share)
        self._drafted = (_RUNS + 1) * (1 + capabilities.max_draft)
        self._rows_per_slot = min(bounds.rows_per_slot, self._room - 1)
        self.most_rows = min(
            bounds.rows_total,
            prompts * self._rows_per_slot,
            capabilities.max_step_rows - decoders * (1 + capabilities.max_draft),
        )
        if self._room <= self._drafted:
            self.most_rows = 0

    def cost(self, rows: int) -> float | None:
        """Seconds of a step with `rows` prompt rows, the median of some; None if time is up."""
        if rows and self._spent_s >= self._budget_s:
            return None
        started = self._clock()
        runs: list[float] = []
        try:
            decoding = [self._decoder() for _ in range(self._decoders)]
            while _wants_more(runs):
                prompts = self._prompts(rows)
                runs.append(self._run(decoding, prompts))
                for slot, _ in prompts:
                    self._release(slot)
        finally:
            for slot in list(self._table):
                self._release(slot)
        seconds = statistics.median_low(runs[1:])
        if not rows:
            self._budget_s = max(_TOTAL_S, _TOTAL_STEPS * seconds)
        else:
            # What compiling took is no reason to measure less.
            self._spent_s += min(self._clock() - started, (len(runs) + 2) * max(runs[1:]))
        return seconds

    def _decoder(self) -> Request:
        """A request that decodes from the middle of a context on."""
        start = min(_CONTEXT_TOKENS, self._capabilities.max_context // 2)
        start = max(0, min(start, self._room - self._drafted) - 1)
        slot, request = self._admit(start, prompt_tokens=start + 1)
        self._execute(StepPlan(0, prefill=(PrefillSlice(slot.id, start, (_TOKEN,), True),)))
        slot.length += 1
        self._engine.commit_prefill(slot)
        slot.phase = Phase.DECODE
        request.generated.append(_TOKEN)
        return request

    def _prompts(self, rows: int) -> list[tuple[Slot, int]]:
        """Slots in the middle of their prompts, and the rows that each has in the step."""
        prompts = []
        while rows:
            piece = min(rows, self._rows_per_slot)
            start = min(_CONTEXT_TOKENS, self._capabilities.max_context // 2)
            start = min(start, self._room - piece - 1)
            slot, _ = self._admit(start, prompt_tokens=start + piece + 1)
            prompts.append((slot, piece))
            rows -= piece
        return prompts

    def _run(self, decoding: list[Request], prompts: list[tuple[Slot, int]]) -> float:
        self._step += 1
        drafts = self._capabilities.max_draft
        plan = StepPlan(
            self._step,
            tuple(
                PrefillSlice(slot.id, slot.length, (_TOKEN,) * rows, False)
                for slot, rows in prompts
            ),
            tuple(
                DecodeRow(slot.id, request.generated[-1], slot.length, drafts)
                for request in decoding
                if (slot := request.slot) is not None
            ),
        )
        started = self._clock()
        result = self._execute(plan)
        seconds = self._clock() - started
        for request in decoding:
            assert request.slot is not None
            tokens = result.outputs[request.slot.id].tokens
            request.slot.length += len(tokens)
            request.generated.extend(tokens)
        return seconds

    def _execute(self, plan: StepPlan) -> StepResult:
        engine = self._engine
        result = engine.execute(engine.lower_plan(plan))
        validate_result(plan, result, vocab_size=self._capabilities.vocab_size)
        for slot_id, output in result.outputs.items():
            if output.error is not None:
                raise StepFault(f"slot {slot_id}: {output.error}")
        return result

    def _admit(self, length: int, *, prompt_tokens: int) -> tuple[Slot, Request]:
        slot = self._table.reserve(self._room)
        assert slot is not None
        request = Request(
            id=0,
            prompt=(_TOKEN,) * prompt_tokens,
            params=GREEDY,
            max_tokens=self._room,
            stop_ids=frozenset(),
            times=RequestTimes(0.0),
            slot=slot,
        )
        self._engine.admit(slot, request)
        slot.length = length
        return slot, request

    def _release(self, slot: Slot) -> None:
        self._engine.retire(slot)
        self._table.release(slot)

    @property
    def _capabilities(self) -> EngineCapabilities:
        return self._engine.capabilities


def _wants_more(runs: list[float]) -> bool:
    """A median of three at least, of five where steps are quick; slow ones hardly vary."""
    if len(runs) < 2:
        return True
    counted = runs[1:]
    if len(runs) < _FEW_RUNS:
        return min(counted) < _SLOW_S
    return len(runs) < _RUNS and sum(counted) < _ENOUGH_S
