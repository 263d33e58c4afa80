"""Whose tokens are drafted, by what, and what the draft is told of every step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from luce_core.errors import EngineDead
from luce_core.plan import DecodeRow, StepPlan
from luce_core.request import Request
from luce_core.sampling.accept import Accepted
from luce_core.sampling.sampler import Sampler
from luce_qwen_dflash2.acceptance_watch import AcceptanceWatch
from luce_qwen_dflash2.draft.backlog import Kept
from luce_qwen_dflash2.draft.draft import Anchor, Draft
from luce_qwen_dflash2.widths import Widths

log = logging.getLogger(__name__)

# Proposes up to `width` tokens that may follow the request's own; host work only.
DraftSource = Callable[[Request, int], Sequence[int]]
Drafts = Mapping[int, Sequence[int]]


class Drafting:
    """Drafts of an engine's steps. Engine thread only.

    `draft` proposes; `source`, for tests and benchmarks, replaces what is proposed, at the draft's
    full cost if there is one. At least one of both is there. What fails here costs drafts, never a
    request: a slot whose features could not be taken in drafts no more until it is admitted again.
    """

    def __init__(
        self,
        draft: Draft | None,
        source: DraftSource | None,
        widths: Widths,
        sampler: Sampler,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        assert draft is not None or source is not None
        self._widths = widths
        self._draft = draft
        self._source = source
        self._sampler = sampler
        self._watch = AcceptanceWatch()
        self._new: set[int] = set()  # admitted, and no rows of theirs have been seen
        self._lost: set[int] = set()
        self._rest = self._rested = 0  # steps that need not choose widths, and did not
        self._resting: list[int] = []  # as long as these slots go on decoding
        self._has_failed = False
        self._clock = clock
        self._began = 0.0  # when the step began whose widths were chosen last
        self._plain = 0  # how many slots it has, if it drafts nothing and carries no prompt

    @property
    def held_slots(self) -> set[int]:
        """Slots of which something is kept."""
        filled = () if self._draft is None else self._draft.held_slots
        return {*self._new, *self._lost, *filled}

    def use(self, widths: Widths) -> None:
        """Change who chooses the widths; while no slot is held."""
        self._widths = widths

    def admit(self, slot_id: int) -> None:
        self._forget(slot_id)
        self._rest = self._plain = 0
        self._new.add(slot_id)
        self._widths.admit(slot_id)

    def retire(self, slot_id: int) -> None:
        """Idempotent."""
        self._forget(slot_id)
        self._new.discard(slot_id)

    def _forget(self, slot_id: int) -> None:
        self._lost.discard(slot_id)
        if self._draft is not None:
            self._draft.reset(slot_id)

    def propose(self, plan: StepPlan, requests: Mapping[int, Request]) -> dict[int, list[int]]:
        """Drafts by slot id for the decode rows of a plan, all of them that `accept` could take."""
        slot_ids = [row.slot_id for row in plan.decode]
        if self._rest and slot_ids == self._resting and not plan.prefill:
            self._rest -= 1
            self._rested += 1
            return {}
        self._end_rest()
        spaces = [(row.slot_id, self._room(row)) for row in plan.decode]
        room = {slot_id: space for slot_id, space in spaces if space}
        if not room:
            return {}
        others = len(plan.decode) - len(room)
        widths = self._widths.choose(room, others=others, with_prompts=bool(plan.prefill))
        if not widths:
            if not plan.prefill:
                self._rest, self._resting = self._widths.rest(), slot_ids
                self._plain = len(slot_ids)
            return {}
        noise = self._sampler.draft_noise
        try:
            anchors = [
                Anchor(row.slot_id, row.token, row.position, width, noise(row.slot_id, width))
                for row in plan.decode
                if (width := widths.get(row.slot_id))
            ]
            proposed = self._proposed(anchors, requests)
        except EngineDead:
            raise
        except Exception:
            self._failed("propose; the step goes on without drafts")
            return {}
        slot_ids = [anchor.slot_id for anchor in anchors]
        clipped = self._sampler.clip_drafts(slot_ids, proposed)
        return {slot: tokens for slot, tokens in zip(slot_ids, clipped, strict=True) if tokens}

    def _end_rest(self) -> None:
        """What came since the last choice of widths was of one kind."""
        now = self._clock()
        if self._plain:
            steps = 1 + self._rested
            self._widths.took(self._plain, (now - self._began) / steps, steps=steps)
        if self._rested:
            self._widths.rested(self._rested)
        self._rest = self._rested = 0
        self._began, self._plain = now, 0

    def _room(self, row: DecodeRow) -> int:
        """Drafts that the plan, the draft's context and what it has seen of the slot allow."""
        draft, slot_id = self._draft, row.slot_id
        if draft is None or not row.max_draft:
            return row.max_draft
        if slot_id in self._lost or draft.filled(slot_id) != row.position:
            return 0
        return min(row.max_draft, draft.room(slot_id))

    def _proposed(
        self, anchors: Sequence[Anchor], requests: Mapping[int, Request]
    ) -> Sequence[Sequence[int]]:
        tokens: Sequence[Sequence[int]] = ()
        if self._draft is not None:
            tokens = self._draft.propose(anchors)
        if self._source is not None:
            tokens = [
                list(self._source(requests[anchor.slot_id], anchor.drafts))[: anchor.drafts]
                for anchor in anchors
            ]
        return tokens

    def open(self, rows: int) -> None:
        """Before the target's pass over so many rows, whose features the draft will take in."""
        draft = self._draft
        if draft is None:
            return
        try:
            draft.open(rows)
        except EngineDead:
            raise
        except Exception:
            self._lost.update(draft.held_slots)
            draft.drop()
            draft.open(rows)
            self._failed("take in what has waited; its slots draft no more")

    def settle(self, plan: StepPlan, drafts: Drafts, accepted: Mapping[int, Accepted]) -> None:
        """After a step: the draft keeps what stays, the widths learn what was accepted."""
        if plan.prefill:
            self._plain = 0
        for slot_id, tokens in drafts.items():
            if accepted[slot_id].error is None:
                count = len(accepted[slot_id].tokens) - 1
                self._widths.learn(slot_id, len(tokens), count)
                self._watch.add(len(tokens), count)
        if self._draft is None:
            return
        if not (drafts or plan.prefill or self._new or self._lost):
            # Of a slot that failed, which is about to be retired, a row more does not matter.
            self._draft.keep_all(plan.decode)
            return
        kept = self._kept(plan, drafts, accepted)
        if self._new:
            self._begin(kept)
        self._draft.keep(kept)

    def _begin(self, kept: Sequence[Kept]) -> None:
        """New slots begin at the first of their rows."""
        assert self._draft is not None
        for each in kept:
            if each.slot_id in self._new:
                self._new.discard(each.slot_id)
                self._draft.reset(each.slot_id, each.position)

    def _kept(self, plan: StepPlan, drafts: Drafts, accepted: Mapping[int, Accepted]) -> list[Kept]:
        """The durable rows of each slot: all of a prompt's; of a decode segment the anchor and the
        accepted drafts, which are as many as its new tokens. A failed slot is about to be retired.
        """
        kept, row = [], 0
        for piece in plan.prefill:
            count = len(piece.tokens)
            if accepted[piece.slot_id].error is None and piece.slot_id not in self._lost:
                kept.append(Kept(piece.slot_id, row, piece.start, count))
            row += count
        for each in plan.decode:
            count = len(accepted[each.slot_id].tokens)
            if count and each.slot_id not in self._lost:
                kept.append(Kept(each.slot_id, row, each.position, count))
            row += 1 + len(drafts.get(each.slot_id, ()))
        return kept

    def _failed(self, what: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            log.exception("the draft model could not %s (further failures are not logged)", what)
