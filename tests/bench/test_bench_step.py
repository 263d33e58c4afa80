"""`luce bench-step` on a tiny random model, and the clocks behind it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from luce_core.bench.bandwidth import read_bandwidth, step_bytes
from luce_core.bench.step_limits import limit_lines
from luce_core.bench.step_report import StepCase, StepReport
from luce_core.bench.stopwatch import Stopwatch, ops_source, watched
from luce_core.device import Device
from luce_core.ops.bound import BoundOp
from luce_core.ops.core_ops import core_registry
from luce_core.ops.program import Program, Rates, Replay, Work
from luce_core.sampling.sampler import Sampler
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.synthetic import SyntheticModel, write_synthetic

LUCE = shutil.which("luce", path=Path(sys.executable).parent)
OPS_OF_LLAMA = {
    "add",
    "embedding_rows",
    "gather_rows",
    "kv_write",
    "paged_attention",
    "quant_matmul",
    "rms_norm",
    "rope",
    "swiglu",
}
PHASES = {"plan", "lower", "kernels", "sample", "other", "apply", "deliver"}


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic(tmp_path_factory.mktemp("model") / "tiny.gguf", SyntheticModel())


def bench_step(*words: object) -> subprocess.CompletedProcess[str]:
    assert LUCE is not None
    command = [LUCE, "bench-step", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_the_parts_of_a_step_add_up_to_it(tiny_model, tmp_path) -> None:
    file = tmp_path / "step.json"
    words = ("--rows", "1,4,99", "--prefill", "100,2048", "--steps", 41, "--json", file)
    done = bench_step(tiny_model, *words, "--kv-pool-tokens", 4096)
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    assert set(report) == {
        "model",
        "engine",
        "device",
        "modes",
        "ops_from",
        "threads",
        "weight_bytes",
        "bandwidth_bytes_per_s",
        "rates_per_s",
        "cases",
        "skipped",
    }
    assert report["model"] == "tiny.gguf"
    assert report["engine"] == "llama"
    assert report["bandwidth_bytes_per_s"].keys() == {"1", "2"}
    assert [case["name"] for case in report["cases"]] == ["decode 1", "decode 4", "prefill 100"]
    for case, tokens in zip(report["cases"], (1, 4, 100), strict=True):
        phases, ops = case["phases_ms"], case["ops_ms"]
        assert set(phases) == PHASES
        assert min(phases.values()) >= 0
        assert case["tokens"] == tokens
        assert case["tok_s"] == pytest.approx(1e3 * tokens / case["total_ms"])
        # Sums of medians, not medians of sums.
        assert sum(phases.values()) == pytest.approx(case["total_ms"], rel=0.3)
        if report["ops_from"] == "each call of an op":
            assert set(ops) == OPS_OF_LLAMA
            assert sum(ops.values()) == pytest.approx(phases["kernels"], rel=0.3)
    decode, _, prefill = report["cases"]
    rates = report["rates_per_s"] or {"read_bytes": 0.0}  # of a provider that replays
    fastest = max(*report["bandwidth_bytes_per_s"].values(), rates["read_bytes"])
    assert decode["limit_ms"] == pytest.approx(1e3 * report["weight_bytes"] / fastest)
    assert decode["share"] == pytest.approx(decode["limit_ms"] / decode["phases_ms"]["kernels"])
    assert prefill["limit_ms"] is None
    assert set(decode["limits_ms"]) <= set(decode["ops_ms"])
    assert report["skipped"] == [
        "decode 99: there are 8 slots",
        "prefill 2048: there is room for 256 tokens",
    ]
    for line in (*report["skipped"], "│ kernels ", "│ all ", "│ share "):
        assert line in done.stdout


def test_a_bad_value_is_named_with_its_flag(tiny_model) -> None:
    done = bench_step(tiny_model, "--rows", "0")
    assert done.returncode == 1
    assert "--rows: give numbers from 1 to" in done.stderr


def test_a_file_that_cannot_be_written_is_refused_before_loading(tmp_path) -> None:
    done = bench_step(tmp_path / "none.gguf", "--json", tmp_path / "none" / "step.json")
    assert done.returncode == 1
    assert "there is no folder" in done.stderr


def test_ops_are_timed_only_inside_the_block() -> None:
    methods = BoundOp.__call__, Sampler.accept
    add = core_registry().binder(Device("cpu"), torch.float32).bind("add")
    x = torch.ones(2, 4)
    watch = Stopwatch(lambda: None)
    with watched(watch, [Program(lambda batch: None, "op by op")]):
        assert add(x, x).tolist() == (x + x).tolist()
    phases, ops = watch.take()
    assert set(ops) == {"add"}
    assert phases["kernels"] == ops["add"] > 0
    assert (BoundOp.__call__, Sampler.accept) == methods
    add(x, x)
    assert watch.take() == ({}, {})


class Tape:
    """A compiled recording that knows where its time goes."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, batch: object) -> object:
        self.calls.append("run")
        time.sleep(0.002)
        return batch

    def profile(self, batch: object) -> dict[str, float]:
        self.calls.append("profile")
        time.sleep(0.05)
        return {"norm + quantise": 0.25, "matmul": 0.5}


def test_a_replay_that_profiles_is_asked_and_its_own_time_is_kept_apart() -> None:
    tape = Tape()
    program = Program(Replay(tape), "replayed")
    watch = Stopwatch(lambda: None)
    with watched(watch, [program]):
        assert program.run("batch") == "batch"
    phases, ops = watch.take()
    assert ops == {"norm + quantise": 0.25, "matmul": 0.5}
    assert tape.calls == ["profile", "run"]
    assert 0.002 <= phases["kernels"] < phases["aside"]
    assert "profile" in ops_source([program])
    program.run("batch")
    assert tape.calls == ["profile", "run", "run"]
    assert watch.take() == ({}, {})


class BoundedTape(Tape):
    def work(self, batch: object) -> dict[str, tuple[Work, ...]]:
        return {"matmul": (Work(4_000_000, int8_operations=100_000_000), Work(1_000_000))}

    def rates(self, nbytes: int) -> Rates:
        return Rates(1e10, 1e12, 1e11)


def test_the_watch_keeps_what_a_bounded_replay_had_to_do() -> None:
    watch, tape = Stopwatch(lambda: None), BoundedTape()
    with watched(watch, [program := Program(Replay(tape), "replayed")]):
        program.run("batch")
    assert watch.work == tape.work("batch")


def step_report(rates: Rates | None) -> StepReport:
    case = StepCase(
        name="decode 1",
        tokens=1,
        steps=1,
        runs=3,
        phases_ms={"kernels": 2.0},
        ops_ms={"norm": 0.5, "matmul": 1.0},
        total_ms=2.5,
        limit_ms=None,
        work=BoundedTape().work("batch"),
    )
    return StepReport(
        model="m",
        engine="e",
        device="cpu",
        modes=(),
        ops_from="",
        threads=1,
        weight_bytes=97_000_000,
        bandwidth={},
        rates=rates,
        cases=[case],
        skipped=(),
    )


def test_the_limit_of_an_op_is_the_longer_of_reading_and_computing_call_by_call_or_their_sum() -> (
    None
):
    rates = Rates(read_bytes=1e10, int8_operations=1e12, float_operations=1e11)
    *_, head, _, matmul, norm, kernels, step, outside = limit_lines(step_report(rates))
    assert head.startswith("| decode 1 | reads MB |")
    # 4 MB take 400 us and its operations 100 us; 1 MB takes 100 us.
    assert matmul == "| matmul | 5.00 | 100 | - | 500 | 1000 | 50% | 60% |"
    assert norm == "| norm | - | - | - | - | 500 | - | - |"
    assert kernels == "| kernels | 5.00 | 100 | - | 500 | 2000 | 25% | 30% |"
    assert step == "| step | 5.00 | 100 | - | 500 | 2500 | 20% | 24% |"
    assert outside == "| outside kernels | - | - | - | - | 500 | 20.0% of the step |  |"
    slow = Rates(read_bytes=1e10, int8_operations=1e11, float_operations=1e11)
    assert "| matmul | 5.00 | 100 | - | 1100 | 1000 | 110% | 150% |" in limit_lines(
        step_report(slow)
    )


def test_without_rates_there_is_no_table_of_limits() -> None:
    assert limit_lines(step_report(None)) == []


def test_a_replay_that_does_not_profile_is_timed_as_a_whole() -> None:
    program = Program(Replay(lambda batch: batch), "replayed")
    watch = Stopwatch(lambda: None)
    with watched(watch, [program]):
        program.run("batch")
    phases, ops = watch.take()
    assert phases["kernels"] > 0
    assert not ops
    assert ops_source([program]).startswith("nowhere")


@pytest.mark.parametrize("tied", [True, False])
def test_a_step_reads_every_weight_but_a_table_that_is_no_head(tied, tmp_path) -> None:
    path = write_synthetic(tmp_path / "m.gguf", SyntheticModel(tied=tied))
    with GgufFile.open(path) as gguf:
        sizes = {name: tensor.nbytes for name, tensor in gguf.tensors.items()}
        read = step_bytes(gguf, 1)
    assert ("output.weight" in sizes) is not tied
    assert read == sum(sizes.values()) - (0 if tied else sizes["token_embd.weight"])


def test_bandwidth_is_measured_per_thread_count() -> None:
    rates = read_bandwidth(1, (1, 2))
    assert rates.keys() == {1, 2}
    assert all(1e8 < rate < 1e13 for rate in rates.values())
