"""The queue, the slots and the life of every request. Engine thread only; no torch, no text."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from luce_core.commands import Cancel, Command, Drain, Finish, Stop, Submit
from luce_core.engine import SeqEngine
from luce_core.kv.block_pool import BlockPool
from luce_core.kv.slot_table import Slot, SlotTable
from luce_core.plan import (
    DecodeRow,
    SlotOutput,
    StepPlan,
    StepResult,
    TokenEvent,
    TokenLogprob,
    Usage,
)
from luce_core.request import FinishReason, Phase, Request
from luce_core.scheduler.admission import AdmissionQueue, AdmissionRule
from luce_core.scheduler.coalescing import Coalescing
from luce_core.scheduler.planner import build_plan
from luce_core.scheduler.policy import SchedulerPolicy
from luce_core.scheduler.preemption import draft_room, secure_decode_room

log = logging.getLogger(__name__)

SHUTTING_DOWN = "shutting_down: the server is shutting down"


class Scheduler:
    """Owns requests, slots and blocks, and alone decides when a request ends.

    The step loop calls, in this order: `handle` for each command, `admit`, `plan`, `apply` and
    `take_events`. `is_receiving` tells whether requests are on their way that have not been
    submitted yet; it is asked on the engine thread.
    """

    def __init__(
        self,
        engine: SeqEngine,
        *,
        pool_blocks: int,
        policy: SchedulerPolicy,
        clock: Callable[[], float] = time.monotonic,
        is_receiving: Callable[[], bool] = lambda: False,
    ) -> None:
        capabilities = engine.capabilities
        self._engine = engine
        self._clock = clock
        self._policy = policy
        self._limits = policy.limits(capabilities)
        self._max_draft = capabilities.max_draft
        self._max_context = capabilities.max_context
        self.table = SlotTable(
            capabilities.max_slots, BlockPool(pool_blocks, capabilities.block_size)
        )
        self.rule = AdmissionRule(
            max_context=capabilities.max_context,
            pool_tokens=pool_blocks * capabilities.block_size,
            headroom=capabilities.block_size + 1 + capabilities.max_draft,
            reserve_full=policy.reserve == "full",
        )
        self._queue = AdmissionQueue()
        self._requests: dict[int, Request] = {}
        self._by_slot: dict[int, Request] = {}
        self._decoding: list[Request] | None = []  # None: to be listed again
        self._events: list[TokenEvent] = []
        self._step = 0
        self._speculate = True
        self._burst_steps = 0
        self._coalescing = Coalescing(
            clock,
            is_receiving,
            most_s=policy.admission_coalesce_ms / 1000,
            quiet_s=policy.coalesce_quiet_ms / 1000,
        )
        self.draining = False
        self.stopped = False
        self.preemptions = 0
        self.retire_faults = 0

    # -- what the step loop asks ---------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """No request is queued or holds a slot."""
        return not self._requests

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def running(self) -> int:
        return len(self._by_slot)

    @property
    def live_requests(self) -> Sequence[Request]:
        """Requests that hold a slot, by slot id."""
        return [self._by_slot[slot_id] for slot_id in sorted(self._by_slot)]

    @property
    def step(self) -> int:
        """Number of the last plan that was not empty."""
        return self._step

    def wait_s(self) -> float | None:
        """How long the loop may sleep for commands: None for ever, 0 not at all."""
        if not self._requests:
            return None
        return self._coalescing.sleep_s()

    def take_events(self) -> list[TokenEvent]:
        """News since the last call, in order."""
        events, self._events = self._events, []
        return events

    # -- commands ------------------------------------------------------------------------------

    def handle(self, command: Command) -> None:
        """Carry out one command. Ids that are unknown or have ended are ignored."""
        match command:
            case Submit(request):
                self._submit(request)
            case Cancel(request_id):
                if found := self._requests.get(request_id):
                    self._end(found, FinishReason.CANCELLED)
            case Finish(request_id, tokens):
                if found := self._requests.get(request_id):
                    del found.generated[tokens:]
                    self._end(found, FinishReason.STOP)
            case Drain():
                self.draining = True
            case Stop():
                self.draining = self.stopped = True
                self.end_all(FinishReason.CANCELLED, SHUTTING_DOWN)

    def _submit(self, request: Request) -> None:
        self._coalescing.arrived(was_idle=not self._requests)
        self._requests[request.id] = request
        self._queue.push(request)

    # -- admission -----------------------------------------------------------------------------

    def admit(self) -> None:
        """Give decoders the room of their next step, then let the head of the queue in.

        If the head does not fit, nobody is admitted behind it.
        """
        self._speculate = secure_decode_room(
            self._list_decoding,
            self._newest_live,
            table=self.table,
            drafts=self._drafts,
            preempt=self._preempt,
            end_in_full_pool=lambda request: self._end(request, FinishReason.LENGTH),
        )
        full = self.draining or len(self._queue) >= self.table.free_count
        if self._coalescing.waits(is_full=full):
            return
        while (request := self._queue.head) is not None and self.table.free_count:
            slot = self.table.reserve(self.rule.reservation(request))
            if slot is None:
                return
            self._queue.remove(request)
            request.slot = slot
            self._by_slot[slot.id] = request
            if request.times.admitted is None:
                request.times.admitted = self._clock()
            try:
                self._engine.admit(slot, request)
            except Exception:
                log.exception("request %d: the engine's admit failed", request.id)
                self._end(
                    request,
                    FinishReason.ERROR,
                    error="admission_failed: the engine could not take this request",
                )

    # -- planning ------------------------------------------------------------------------------

    def plan(self) -> StepPlan:
        """The next step. Call right after `admit`, which has secured the room for it."""
        decoding = self._list_decoding()
        prefilling: list[Request] = []
        if len(decoding) < len(self._by_slot):
            prefilling = [r for r in self._by_slot.values() if self._is_prefilling(r)]
        if self._skips_decode(decoding, prefilling):
            rows: tuple[DecodeRow, ...] = ()
        else:
            rows = self._decode_rows(decoding)
        if not (rows or prefilling):
            return StepPlan(self._step)
        self._step += 1
        return build_plan(
            self._step,
            decode=rows,
            prefilling=prefilling,
            cursor=self._step,
            limits=self._limits,
        )

    @staticmethod
    def _is_prefilling(request: Request) -> bool:
        return request.slot is not None and request.slot.phase is Phase.PREFILL

    def _skips_decode(self, decoding: list[Request], prefilling: list[Request]) -> bool:
        if not (decoding and prefilling and self._burst_steps < self._policy.first_burst_steps):
            self._burst_steps = 0
            return False
        self._burst_steps += 1
        return True

    def _decode_rows(self, decoding: list[Request]) -> tuple[DecodeRow, ...]:
        rows = []
        speculate = self._speculate and self._max_draft > 0
        for request in decoding:
            slot = request.slot
            assert slot is not None
            drafts = self._drafts(request) if speculate else 0
            rows.append(DecodeRow(slot.id, request.generated[-1], slot.length, drafts))
        return tuple(rows)

    def _drafts(self, request: Request) -> int:
        if not self._max_draft:
            return 0
        assert request.slot is not None
        return draft_room(
            request, request.slot, max_draft=self._max_draft, max_context=self._max_context
        )

    def _list_decoding(self) -> list[Request]:
        """Decoding requests by slot id; listed again only after a slot changed hands or phase."""
        if self._decoding is None:
            self._decoding = [
                request
                for slot_id in sorted(self._by_slot)
                if not self._is_prefilling(request := self._by_slot[slot_id])
            ]
        return self._decoding

    def _newest_live(self) -> Request | None:
        return max(self._by_slot.values(), key=lambda request: request.id, default=None)

    def preempt_newest(self) -> None:
        """Preempt the newest request that holds a slot, if there is one; between steps only."""
        if (newest := self._newest_live()) is not None:
            self._preempt(newest)

    def _preempt(self, request: Request) -> None:
        """Back to the front of the queue; rebuilt later from prompt + generated tokens."""
        log.info("request %d is preempted at %d tokens", request.id, request.total_tokens)
        self.preemptions += 1
        request.preemptions += 1
        self._release_slot(request)
        self._queue.push_front(request)

    # -- results -------------------------------------------------------------------------------

    def apply(self, plan: StepPlan, result: StepResult) -> None:
        """Advance every slot of the plan by a validated result, and end what has ended."""
        outputs = result.outputs
        by_slot = self._by_slot
        for piece in plan.prefill:
            request = by_slot[piece.slot_id]
            output = outputs[piece.slot_id]
            slot = request.slot
            assert slot is not None
            if output.error is not None:
                self._end(request, FinishReason.ERROR, error=output.error)
                continue
            slot.length += len(piece.tokens)
            if piece.is_last and self._commit_prefill(request, slot):
                self._deliver(request, output)
        for row in plan.decode:
            request = by_slot[row.slot_id]
            output = outputs[row.slot_id]
            slot = request.slot
            assert slot is not None
            if output.error is not None:
                self._end(request, FinishReason.ERROR, error=output.error)
                continue
            # Rejected drafts stay in the cache behind `length`; the next step overwrites them
            # before anything reads them.
            slot.length += len(output.tokens)
            self._deliver(request, output)

    def _commit_prefill(self, request: Request, slot: Slot) -> bool:
        try:
            self._engine.commit_prefill(slot)
        except Exception:
            log.exception("request %d: the engine's commit_prefill failed", request.id)
            self._end(
                request,
                FinishReason.ERROR,
                error="prefill_failed: the engine failed at the end of the prompt",
            )
            return False
        slot.phase = Phase.DECODE
        self._decoding = None
        if request.times.first_token is None:
            request.times.first_token = self._clock()
        return True

    def _deliver(self, request: Request, output: SlotOutput) -> None:
        """Take accepted tokens in order up to the first finish; the rest appears nowhere."""
        generated = request.generated
        finish: FinishReason | None = None
        taken = 0
        for token in output.tokens:
            generated.append(token)
            taken += 1
            if token in request.stop_ids and len(generated) > request.params.min_tokens:
                finish = FinishReason.STOP
                break
            if len(generated) >= request.max_tokens:
                finish = FinishReason.LENGTH
                break
        tokens, logprobs = output.tokens, output.logprobs
        if taken < len(tokens):
            tokens = tokens[:taken]
            logprobs = logprobs[:taken] if logprobs is not None else None
        if output.proposed:
            request.proposed += output.proposed
            request.accepted += min(taken, len(output.tokens) - 1)
        if finish is None:
            self._events.append(TokenEvent(request.id, tokens, logprobs))
        else:
            self._end(request, finish, tokens=tokens, logprobs=logprobs)

    def end_all(self, reason: FinishReason, error: str) -> None:
        """End every request: the device is lost, or the server stops now."""
        for request in list(self._requests.values()):
            self._end(request, reason, error=error)

    # -- the only way out ----------------------------------------------------------------------

    def _end(
        self,
        request: Request,
        reason: FinishReason,
        *,
        tokens: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprob, ...] | None = None,
        error: str | None = None,
    ) -> None:
        """The only way into FINISHED: frees what is held and emits the one terminal event."""
        assert request.finish is None
        request.ended_in = request.state
        if request.slot is not None:
            self._release_slot(request)
        else:
            self._queue.remove(request)
        del self._requests[request.id]
        request.finish = reason
        request.error = error
        request.times.finished = self._clock()
        usage = Usage(
            len(request.prompt), len(request.generated), request.proposed, request.accepted
        )
        self._events.append(TokenEvent(request.id, tokens, logprobs, reason, usage, error))

    def _release_slot(self, request: Request) -> None:
        slot = request.slot
        assert slot is not None
        try:
            self._engine.retire(slot)
        except Exception:
            # retire must not fail; the slot is reused all the same, since admit clears it.
            self.retire_faults += 1
            log.exception("request %d: the engine's retire failed", request.id)
        del self._by_slot[slot.id]
        self.table.release(slot)
        request.slot = None
        self._decoding = None

    def check_integrity(self) -> None:
        """Slots, blocks, queue and requests agree; AssertionError says what is off."""
        self.table.check_integrity()
        assert self.table.live.keys() == self._by_slot.keys()
        assert len(self._queue) + len(self._by_slot) == len(self._requests)
        for request in self._requests.values():
            assert request.finish is None
