"""The only owner of slots and of the blocks they hold."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from luce_core.kv.block_pool import BlockPool
from luce_core.kv.block_table import BlockTable
from luce_core.request import Phase


class Slot:
    """A place in the engine that one request holds from admission to its end.

    `length` counts tokens durable in the cache; it and `phase` are written by the scheduler alone.
    """

    __slots__ = ("id", "length", "phase", "table")

    def __init__(self, slot_id: int, table: BlockTable) -> None:
        self.id = slot_id
        self.table = table
        self.length = 0
        self.phase = Phase.PREFILL


class SlotTable:
    """Slots 0..slots-1 over one block pool: lowest free id first, all or nothing."""

    def __init__(self, slots: int, pool: BlockPool) -> None:
        self.pool = pool
        self.slots = slots
        self._free = list(range(slots))
        self._live: dict[int, Slot] = {}

    @property
    def free_count(self) -> int:
        return len(self._free)

    @property
    def live(self) -> dict[int, Slot]:
        return self._live

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._live.values())

    def reserve(self, tokens: int) -> Slot | None:
        """A slot with blocks for `tokens` tokens, or None and nothing has changed."""
        if not self._free:
            return None
        blocks = self.pool.take(self.pool.blocks_for(tokens))
        if blocks is None:
            return None
        slot = Slot(heapq.heappop(self._free), BlockTable(self.pool.block_size, blocks))
        self._live[slot.id] = slot
        return slot

    def grow(self, slot: Slot, tokens: int) -> bool:
        """Make room for `tokens` tokens in all; False and nothing has changed if there is none."""
        missing = self.pool.blocks_for(tokens) - len(slot.table.blocks)
        if missing <= 0:
            return True
        blocks = self.pool.take(missing)
        if blocks is None:
            return False
        slot.table.blocks.extend(blocks)
        return True

    def shrink(self, slot: Slot, tokens: int) -> None:
        """Give back the blocks that `tokens` tokens do not need."""
        keep = self.pool.blocks_for(max(tokens, slot.length))
        spare = slot.table.blocks[keep:]
        if spare:
            del slot.table.blocks[keep:]
            self.pool.give(spare)

    def release(self, slot: Slot) -> None:
        """Slot and blocks are free again. The slot object must not be used afterwards."""
        assert self._live.get(slot.id) is slot, f"slot {slot.id} is not live"
        del self._live[slot.id]
        self.pool.give(slot.table.blocks)
        slot.table.blocks = []
        heapq.heappush(self._free, slot.id)

    def check_integrity(self) -> None:
        """Every block and every slot id has exactly one owner; AssertionError says what is off."""
        owned = list(self.pool.free_blocks)
        for slot in self._live.values():
            owned.extend(slot.table.blocks)
            assert 0 <= slot.length <= slot.table.capacity, (
                f"slot {slot.id}: length {slot.length}, capacity {slot.table.capacity}"
            )
        assert sorted(owned) == list(range(self.pool.total)), (
            f"{len(owned)} blocks accounted for of {self.pool.total}, or one has two owners"
        )
        ids = sorted([*self._free, *self._live])
        assert ids == list(range(self.slots)), f"slot ids accounted for: {ids}"
