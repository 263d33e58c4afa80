from __future__ import annotations

import pytest

from luce_core.engine import EngineCapabilities, MemoryNeed, PrefillLimits
from luce_core.errors import ConfigError
from luce_core.host_memory import available_bytes, usable_cores
from luce_core.kv.pool_size import size_pool


def capabilities(slots: int = 4, context: int = 1000, block: int = 16) -> EngineCapabilities:
    limits = PrefillLimits(max_prompts=1, rows_per_slot=1, rows_total=1, quantum=1)
    return EngineCapabilities(
        max_slots=slots,
        max_context=context,
        block_size=block,
        vocab_size=10,
        max_step_rows=64,
        with_decode=limits,
        idle=limits,
        lone=limits,
    )


def test_ample_memory_gives_every_slot_a_whole_context() -> None:
    size = size_pool(
        capabilities(), MemoryNeed(bytes_per_token=10), free_bytes=1 << 30, reserve_bytes=0
    )
    assert size.blocks == 4 * 63  # 1000 tokens are 62.5 blocks


def test_every_term_of_the_sum_counts() -> None:
    need = MemoryNeed(
        bytes_per_token=100, bytes_per_slot=1000, weights_to_load=5000, draft=300, scratch=700
    )
    free = 5 * 1000 + 5000 + 300 + 700 + 400 + (16 + 1600) * 100
    size = size_pool(capabilities(), need, free_bytes=free, reserve_bytes=400)
    assert size.tokens == 1600
    smaller = size_pool(capabilities(), need, free_bytes=free - 1, reserve_bytes=400)
    assert smaller.tokens == 1584
    assert "what memory holds" in smaller.explain()


def test_a_pool_that_cannot_hold_one_context_is_refused_with_the_sum() -> None:
    need = MemoryNeed(bytes_per_token=100, weights_to_load=10_000)
    with pytest.raises(ConfigError, match=r"one context of 1000 tokens(.|\n)*weights still"):
        size_pool(capabilities(), need, free_bytes=100_000, reserve_bytes=0)


def test_an_explicit_size_rounds_up_to_whole_blocks() -> None:
    size = size_pool(
        capabilities(), MemoryNeed(bytes_per_token=1), free_bytes=0, wanted_tokens=1001
    )
    assert size.tokens == 1008


def test_the_cgroup_limits_memory_and_cores(tmp_path) -> None:
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   2048 kB\n")
    assert available_bytes(tmp_path, tmp_path / "meminfo") == 600_000
    assert usable_cores(tmp_path) == 1
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes(tmp_path, tmp_path / "meminfo") == 2048 * 1024
