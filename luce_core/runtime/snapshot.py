"""What the asyncio thread may know of the engine thread: frozen views, replaced whole."""

from __future__ import annotations

from typing import NamedTuple

from luce_core.scheduler.scheduler import Scheduler


class SlotView(NamedTuple):
    """One occupied slot."""

    slot_id: int
    request_id: int
    phase: str
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int
    blocks: int
    preemptions: int
    proposed: int
    accepted: int


class Snapshot(NamedTuple):
    """The scheduler between two steps."""

    step: int
    running: int
    queued: int
    free_blocks: int
    total_blocks: int
    preemptions: int
    slots: tuple[SlotView, ...]

    @classmethod
    def of(cls, scheduler: Scheduler) -> Snapshot:
        """Engine thread only."""
        pool = scheduler.table.pool
        views = []
        for request in scheduler.live_requests:
            slot = request.slot
            assert slot is not None
            views.append(
                SlotView(
                    slot.id,
                    request.id,
                    slot.phase,
                    len(request.prompt),
                    len(request.generated),
                    slot.length,
                    len(slot.table.blocks),
                    request.preemptions,
                    request.proposed,
                    request.accepted,
                )
            )
        return cls(
            scheduler.step,
            scheduler.running,
            scheduler.queued,
            pool.free_count,
            pool.total,
            scheduler.preemptions,
            tuple(views),
        )
