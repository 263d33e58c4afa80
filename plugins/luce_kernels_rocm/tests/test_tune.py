"""Tables of tiles: choosing with a timer that is no GPU's, writing, reading, refusing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from luce_kernels_rocm.arch import arch_named
from luce_kernels_rocm.configs import decode_attention_config, narrow_config, tiled_config
from luce_kernels_rocm.interpreter import register_interpreted
from luce_kernels_rocm.offers import register_kernels
from luce_kernels_rocm.ops import quant_matmul
from luce_kernels_rocm.tiles import Tile, TileKey, read_table, tiles, write_table
from luce_kernels_rocm.tune.candidates import (
    Candidates,
    attention_candidates,
    narrow_candidates,
    tiled_candidates,
)
from luce_kernels_rocm.tune.choose import choose, choose_all
from luce_kernels_rocm.tune.command import tune, tune_with
from luce_kernels_rocm.tune.device_timer import DeviceTimer

from luce_core.device import Device
from luce_core.errors import ConfigError
from luce_core.ops.cases import CaseMaker
from luce_core.ops.core_ops import core_registry
from luce_core.weights.synthetic import SyntheticModel, write_synthetic

ARCH = arch_named("gfx1201")
KEY = TileKey("narrow", ("Q4_0", 64, 256))
USUAL = Tile(rows=1, columns=8, depth=8, warps=4)
FAST = Tile(rows=1, columns=4, depth=16, warps=2)
SLOW = Tile(rows=1, columns=16, depth=4, warps=8)


@pytest.fixture(autouse=True)
def no_table_stays() -> Iterator[None]:
    yield
    tiles()._found = {}
    quant_matmul._narrow_launch.cache_clear()


def timer(**seconds: float) -> Any:
    """By tile; one without a time does not run."""
    times = {{"usual": USUAL, "fast": FAST, "slow": SLOW}[name]: t for name, t in seconds.items()}

    def measure(key: TileKey, tile: Tile) -> float:
        if tile not in times:
            raise RuntimeError("out of resource: shared memory")
        return times[tile]

    return measure


def test_the_fastest_tile_is_chosen_and_what_does_not_run_is_left_out() -> None:
    choice = choose(Candidates(KEY, (USUAL, SLOW, FAST)), timer(usual=1.0, fast=0.5))
    assert (choice.tile, choice.seconds, choice.failed) == (FAST, 0.5, 1)
    assert not choice.is_usual


def test_noise_moves_nobody_from_the_usual_tile() -> None:
    told: list[str] = []
    candidates = Candidates(KEY, (USUAL, FAST, SLOW))
    found = choose_all([candidates], timer(usual=1.0, fast=0.98, slow=2.0), told.append)
    assert found == {}
    assert "usual tile" in told[0]


def test_a_usual_tile_that_does_not_run_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="shared memory"):
        choose(Candidates(KEY, (USUAL, FAST)), timer(fast=1.0))


def test_what_is_used_without_a_table_is_tried_first() -> None:
    narrow = narrow_candidates(ARCH, "Q4_K", 5120, 5120)
    usual = narrow_config(ARCH, "Q4_K", 5120, 5120, 8)
    first = narrow.tiles[0]
    assert (first.columns, first.depth, first.warps) == (usual.columns, usual.groups, usual.warps)
    tiled = tiled_candidates(ARCH, "Q4_K", 5120, 5120)
    assert tiled.tiles[0].rows == tiled_config(ARCH, "Q4_K", 5120, 5120).rows
    decode = attention_candidates(ARCH, "decode_attention", 8, 256)
    assert decode.tiles[0].depth == decode_attention_config(ARCH, 8, 256).keys
    for candidates in (narrow, tiled, decode):
        assert len(candidates.tiles) == len(set(candidates.tiles)) > 10


def test_a_table_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    found = {KEY: FAST, TileKey("decode_attention", (4, 128)): replace(FAST, stages=2)}
    write_table(path, "gfx1201", "Radeon", found)
    assert read_table(path, "gfx1201") == found


def changed(path: Path, **changes: Any) -> Path:
    write_table(path, "gfx1201", "Radeon", {KEY: FAST})
    path.write_bytes(orjson.dumps({**orjson.loads(path.read_bytes()), **changes}))
    return path


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"arch": "sm_90", "device": "H200"}, "measured on sm_90 .H200., this device is gfx1201"),
        ({"kernels": 0}, "version 0 of the kernels.*run luce tune again"),
        ({"format": 9}, "not a table of format 1"),
        ({"tiles": {}}, "its tiles are no list"),
        ({"tiles": [{"kernel": "narrow"}]}, "tile 0 must have a kernel"),
        ({"tiles": [{"kernel": "narrow", "facts": [True], "rows": 1, "columns": 1, "depth": 1,
                     "warps": 1, "stages": 1}]}, "tile 0 must"),
        ({"tiles": [{"kernel": "narrow", "facts": [], "rows": 3, "columns": 1, "depth": 1,
                     "warps": 1, "stages": 1}]}, "powers of two"),
        ({"tiles": [{"kernel": "narrow", "facts": [], "rows": 4096, "columns": 1, "depth": 1,
                     "warps": 1, "stages": 1}]}, "up to 1024"),
    ],
)  # fmt: skip
def test_tables_of_others_are_refused(tmp_path: Path, changes: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_table(changed(tmp_path / "table.json", **changes), "gfx1201")


def test_files_that_are_no_table_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    with pytest.raises(ConfigError, match="No such file"):
        read_table(path, "gfx1201")
    path.write_text("{")
    with pytest.raises(ConfigError, match="no JSON"):
        read_table(path, "gfx1201")
    path.write_bytes(b" " * (1 << 20) + b"{}")
    with pytest.raises(ConfigError, match="larger than"):
        read_table(path, "gfx1201")


def test_a_binder_reads_the_table_before_anything_is_bound(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    write_table(path, "", "a CPU", {KEY: FAST})  # the architecture of a CPU has no name
    registry = core_registry()
    register_interpreted(registry.register_kernel)
    before = narrow_config(ARCH, "Q4_0", 64, 256, 2)
    binder = registry.binder(Device("cpu"), torch.float32, table=path)
    config = narrow_config(ARCH, "Q4_0", 64, 256, 2)
    assert (config.rows, config.columns, config.groups, config.warps) == (2, 4, 16, 2)
    assert (before.columns, before.groups) != (4, 16)
    # The same tile for every count of rows, and the products are right with it.
    maker = CaseMaker("cpu", torch.float32)
    weight, x = maker.weight(64, 256, "Q4_0"), maker.normal(3, 256)
    got = binder.linear(weight)(x)
    torch.testing.assert_close(got, x @ weight.dequantize().T, rtol=2e-4, atol=2e-4)


def test_a_table_of_another_device_ends_the_start(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    write_table(path, "gfx1201", "Radeon", {})
    registry = core_registry()
    with pytest.raises(ConfigError, match="no kernel for cpu reads a table"):
        registry.binder(Device("cpu"), torch.float16, table=path)
    register_kernels(registry.register_kernel, devices=("cpu",))
    with pytest.raises(ConfigError, match="measured on gfx1201"):
        registry.binder(Device("cpu"), torch.float16, table=path)


def test_the_layers_of_a_model_are_tuned_each_once(tmp_path: Path) -> None:
    model = write_synthetic(
        tmp_path / "small.gguf",
        SyntheticModel(vocab=288, width=64, heads=4, kv_heads=2, head_dim=32, ff=96, qtype="Q4_0"),
    )
    path, told, timed = tmp_path / "table.json", [], []

    def measure(key: TileKey, tile: Tile) -> float:
        timed.append((key, tile))
        return 1.0 if tile.warps != 2 else 0.5

    tune_with(measure, model, ARCH, "Radeon", only="", path=path, tell=told.append)
    found = read_table(path, "gfx1201")
    assert TileKey("narrow", ("Q4_0", 96, 64)) in found
    assert TileKey("decode_attention", (2, 32)) in found
    assert all(tile.warps == 2 for tile in found.values())
    assert len(timed) == len(set(timed))
    assert "Radeon (gfx1201)" in told[0]
    with pytest.raises(ConfigError, match="'flash'"):
        tune_with(measure, model, ARCH, "Radeon", only="flash", path=path, tell=told.append)
    nowhere = tmp_path / "missing" / "table.json"
    with pytest.raises(ConfigError, match="there is no folder"):
        tune_with(measure, model, ARCH, "Radeon", only="", path=nowhere, tell=told.append)


class Counting:
    """Runs the first call once; keeps how many took turns and the tile that was in place."""

    def __init__(self, *, run: bool = True) -> None:
        self.seen: list[tuple[int, int]] = []
        self._run = run

    def seconds(self, runs: Sequence[Any]) -> float:
        if self._run:
            runs[0]()
        self.seen.append((len(runs), narrow_config(ARCH, "Q4_0", 64, 256, 1).columns))
        return 0.25


def test_a_tile_is_timed_in_place_over_all_counts_of_rows_and_leaves() -> None:
    before = narrow_config(ARCH, "Q4_0", 64, 256, 1).columns
    clock = Counting()
    timer = DeviceTimer(torch.device("cpu"), clock)
    assert timer(KEY, FAST) == 4 * 0.25
    assert clock.seen == [(64, FAST.columns)] * 4  # 1, 2, 4 and 8 rows; 64 weights take turns
    assert narrow_config(ARCH, "Q4_0", 64, 256, 1).columns == before
    assert quant_matmul._narrow_launch.cache_info().currsize == 0


@pytest.mark.parametrize("kernel", ["decode_attention", "prefill_attention"])
def test_attention_is_timed_with_one_tile(kernel: str) -> None:
    clock = Counting(run=False)
    key = TileKey(kernel, (4, 32))
    assert DeviceTimer(torch.device("cpu"), clock)(key, USUAL) == 0.25
    assert len(clock.seen) == 1


def test_a_cpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run on GPUs"):
        tune(tmp_path / "m.gguf", Device("cpu"), "", tmp_path / "t.json", print)
