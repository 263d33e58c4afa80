from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from luce_core.kv.block_pool import BlockPool
from luce_core.kv.block_table import BlockTable
from luce_core.kv.slot_table import Slot, SlotTable


def table(slots: int = 2, blocks: int = 8, block_size: int = 4) -> SlotTable:
    return SlotTable(slots, BlockPool(blocks, block_size))


def test_a_position_is_found_through_the_table() -> None:
    blocks = BlockTable(4, [7, 2])
    assert blocks.locate(0) == (7, 0)
    assert blocks.locate(5) == (2, 1)
    assert blocks.capacity == 8


def test_reserve_is_all_or_nothing() -> None:
    slots = table()
    first = slots.reserve(20)
    assert first is not None
    assert slots.reserve(16) is None
    assert slots.free_count == 1
    assert slots.pool.free_count == 3


def test_no_slot_means_no_blocks_are_taken() -> None:
    slots = table(slots=1)
    assert slots.reserve(4) is not None
    assert slots.reserve(4) is None
    assert slots.pool.free_count == 7


def test_grow_that_fails_changes_nothing() -> None:
    slots = table()
    slot = slots.reserve(16)
    assert slot is not None
    assert not slots.grow(slot, 36)
    assert slot.table.capacity == 16
    assert slots.grow(slot, 32)


def test_shrink_keeps_what_is_in_the_cache() -> None:
    slots = table()
    slot = slots.reserve(32)
    assert slot is not None
    slot.length = 9
    slots.shrink(slot, 4)
    assert slot.table.capacity == 12


def test_a_released_slot_serves_again_with_the_lowest_blocks() -> None:
    slots = table()
    first = slots.reserve(8)
    assert first is not None
    slots.release(first)
    again = slots.reserve(8)
    assert again is not None
    assert (again.id, again.table.blocks, again.length) == (0, [0, 1], 0)


def test_integrity_check_notices_a_block_with_two_owners() -> None:
    slots = table()
    slot = slots.reserve(8)
    assert slot is not None
    slots.pool.give([0])
    with pytest.raises(AssertionError, match="two owners"):
        slots.check_integrity()


class SlotTableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = table(slots=3, blocks=10)
        self.live: list[Slot] = []

    @rule(tokens=st.integers(0, 48))
    def reserve(self, tokens: int) -> None:
        if slot := self.table.reserve(tokens):
            self.live.append(slot)

    @precondition(lambda self: self.live)
    @rule(tokens=st.integers(0, 48), index=st.integers(0, 9))
    def grow(self, tokens: int, index: int) -> None:
        slot = self.live[index % len(self.live)]
        before = list(slot.table.blocks)
        grown = self.table.grow(slot, tokens)
        assert slot.table.blocks[: len(before)] == before
        assert slot.table.capacity >= tokens if grown else slot.table.blocks == before

    @precondition(lambda self: self.live)
    @rule(tokens=st.integers(0, 48), index=st.integers(0, 9))
    def shrink(self, tokens: int, index: int) -> None:
        self.table.shrink(self.live[index % len(self.live)], tokens)

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 9))
    def release(self, index: int) -> None:
        self.table.release(self.live.pop(index % len(self.live)))

    @invariant()
    def nothing_is_lost(self) -> None:
        self.table.check_integrity()


SlotTableMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestSlotTable = SlotTableMachine.TestCase
