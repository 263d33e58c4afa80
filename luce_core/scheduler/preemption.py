"""Room for the next step, and the ladder of what gives way when the pool runs out."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from luce_core.kv.slot_table import Slot, SlotTable
from luce_core.request import Request


def draft_room(request: Request, slot: Slot, *, max_draft: int, max_context: int) -> int:
    """Drafts worth verifying: within the engine's width, max_tokens and the context."""
    return max(
        0,
        min(
            max_draft,
            request.max_tokens - len(request.generated) - 1,
            max_context - slot.length - 1,
        ),
    )


def secure_decode_room(
    decoding: Callable[[], Iterable[Request]],
    newest_live: Callable[[], Request | None],
    *,
    table: SlotTable,
    drafts: Callable[[Request], int],
    preempt: Callable[[Request], None],
    end_in_full_pool: Callable[[Request], None],
) -> bool:
    """Give every decoder the blocks of its next step; True if its drafts fit as well.

    What gives way, in order: (1) speculation in this step, whose blocks come back; (2) the newest
    live request, preempted; (3) the last one alone in a full pool ends with `length`. The oldest is
    never preempted, so that it always gets done. `decoding` and `newest_live` are asked again after
    each change.
    """
    if all(_grow(table, request, drafts(request)) for request in decoding()):
        return True
    for request in decoding():
        assert request.slot is not None
        table.shrink(request.slot, request.slot.length + 1)
    while not all(_grow(table, request, 0) for request in decoding()):
        newest = newest_live()
        assert newest is not None
        if len(table.live) == 1:
            end_in_full_pool(newest)
        else:
            preempt(newest)
    return False


def _grow(table: SlotTable, request: Request, drafts: int) -> bool:
    slot = request.slot
    assert slot is not None
    return table.grow(slot, slot.length + 1 + drafts)
