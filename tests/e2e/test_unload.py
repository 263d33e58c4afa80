"""A runtime that is dropped gives everything back: memory, mapped files, threads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from luce_core.weights.synthetic import SyntheticModel, write_synthetic

# Loads, answers and drops a model several times; the first round is the start to compare with,
# since it brings what stays for good: imported modules, torch's own pools. What the C library keeps
# of freed memory for the next allocation is given back first: it is no leak.
PROGRAM = """
import asyncio, ctypes, gc, json, os, sys, threading

from luce_core.load import load_model, open_model
from luce_core.plugin_manager import build_plugin_manager
from luce_core.request import GREEDY, Request, RequestTimes
from luce_core.serve import build_runtime
from luce_core.server.metrics import Metrics
from luce_core.settings import parse_settings

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def mapped(path):
    return sum(path in line for line in open("/proc/self/maps"))

async def serve_once(settings, plugins):
    loaded = load_model(open_model(settings, plugins), plugins, lambda done, total, what: None)
    runtime = build_runtime(settings, loaded, Metrics([]))
    await runtime.start()
    runtime.hub.reserve(1)
    text = loaded.opened.text
    ids = tuple(text.tokenizer.encode("a b c d e f g", parse_special=False))
    request = Request(id=1, prompt=ids, params=GREEDY, max_tokens=8, stop_ids=frozenset(),
                      times=RequestTimes(0.0))
    stream = runtime.hub.open(request, text.plain_pipeline())
    while (await stream.read(lambda: 0.0)).finish is None:
        pass
    runtime.hub.release(stream)
    assert await runtime.drain(10)
    assert await runtime.stop()
    return resident(), mapped(settings.model)

model, rounds = sys.argv[1], int(sys.argv[2])
settings = parse_settings([model, "--threads", "1", "--kv-pool-tokens", "16384"])
plugins = build_plugin_manager()
rows = []
for _ in range(rounds):
    held, maps_held = asyncio.run(serve_once(settings, plugins))
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    rows.append({"held": held, "left": resident(), "maps_held": maps_held,
                 "maps": mapped(settings.model),
                 "threads": [thread.name for thread in threading.enumerate()]})
json.dump(rows, sys.stdout)
"""
MIB = 1 << 20


def check_rounds(model: Path, rounds: int) -> None:
    command = [sys.executable, "-c", PROGRAM, str(model), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    first, *others = json.loads(done.stdout)
    assert first["maps_held"] > 0
    assert first["held"] - first["left"] > 30 * MIB, "the model is too small to be missed"
    for row in (first, *others):
        assert row["maps"] == 0
        assert row["threads"] == ["MainThread"]
    grown = [(row["left"] - first["left"]) / MIB for row in others]
    assert max(grown) < 20, grown


def test_runtimes_that_follow_each_other_in_a_process_leave_no_memory_maps_or_threads(tmp_path):
    model = SyntheticModel(layers=6, width=512, heads=8, kv_heads=2, ff=1536, vocab=4000)
    check_rounds(write_synthetic(tmp_path / "model.gguf", model), 5)


@pytest.mark.slow
def test_a_real_model_leaves_no_memory_maps_or_threads(smollm2_path):
    check_rounds(smollm2_path, 10)
