from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from luce_core.kv.block_pool import BlockPool


def test_the_lowest_free_block_goes_out_first() -> None:
    pool = BlockPool(6, 16)
    assert pool.take(4) == [0, 1, 2, 3]
    pool.give([2, 0])
    assert pool.take(3) == [0, 2, 4]


def test_a_request_that_does_not_fit_changes_nothing() -> None:
    pool = BlockPool(3, 16)
    assert pool.take(4) is None
    assert pool.free_blocks == (0, 1, 2)


def test_blocks_for_rounds_up() -> None:
    pool = BlockPool(3, 16)
    assert [pool.blocks_for(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]


@given(st.lists(st.integers(0, 9), max_size=60), st.randoms(use_true_random=False))
def test_no_block_is_lost_or_has_two_owners(counts: list[int], random) -> None:
    pool = BlockPool(16, 4)
    owners: list[list[int]] = []
    for count in counts:
        if owners and random.random() < 0.5:
            pool.give(owners.pop(random.randrange(len(owners))))
        elif (blocks := pool.take(count)) is not None:
            owners.append(blocks)
        held = [block for blocks in owners for block in blocks]
        assert sorted([*held, *pool.free_blocks]) == list(range(16))
