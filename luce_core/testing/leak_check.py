"""After everything has ended, everything is back: slots, blocks, streams, engine state."""

from __future__ import annotations

from luce_core.runtime.hub import Hub
from luce_core.scheduler.scheduler import Scheduler


def leak_check(scheduler: Scheduler, *, hub: Hub | None = None, engine: object = None) -> None:
    """AssertionError naming what was kept. Call while no step is running.

    `engine` is asked for `held_slots` if it has them, as FakeEngine does.
    """
    scheduler.check_integrity()
    table = scheduler.table
    assert scheduler.is_idle, f"{scheduler.queued} queued, {scheduler.running} running"
    assert table.free_count == table.slots, f"{table.slots - table.free_count} slots are kept"
    kept = table.pool.total - table.pool.free_count
    assert kept == 0, f"{kept} blocks are kept"
    held = getattr(engine, "held_slots", [])
    assert not held, f"the engine keeps state of slots {held}"
    if hub is not None:
        assert hub.unfinished == 0, f"{hub.unfinished} streams are open"
        assert hub.unread_bytes == 0, f"{hub.unread_bytes} characters are unread"
