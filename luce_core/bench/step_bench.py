"""`luce bench-step`: where the time of decode steps and of prefill goes."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import torch
from rich.console import Console

from luce_core.bench.bandwidth import buffer_bytes, read_bandwidth, step_bytes
from luce_core.bench.json_file import refuse_unwritable, write_json
from luce_core.bench.rig import Parts, Rig, Seconds
from luce_core.bench.step_limits import limit_lines
from luce_core.bench.step_report import (
    NO_WORK,
    PHASES,
    StepCase,
    StepReport,
    report_json,
    report_lines,
    report_table,
)
from luce_core.bench.stopwatch import Stopwatch, ops_source, watched
from luce_core.device import Device
from luce_core.load import LoadedModel, load_model, open_model
from luce_core.ops.program import Bounded, Program, Rates, Replay, Work
from luce_core.plugin_manager import Plugins
from luce_core.readable import readable
from luce_core.settings import Settings

if TYPE_CHECKING:
    from luce_core.bench.step_options import StepSettings

# Decode rows are measured behind prompts of this length, after steps that are not counted: cores
# may be slower for some milliseconds after the products of a prompt. Ops have steps of their own,
# since to ask for their times makes a step longer.
_CONTEXT_TOKENS = 64
_UNCOUNTED = 16
_PROFILED = 8
_PREFILLS = 3

Runs = list[list[Parts]]


def bench_step(settings: Settings, plugins: Plugins, console: Console) -> int:
    """Load the model as `serve` does, measure, print, write. Raises LuceError."""
    options = cast("StepSettings", settings)
    refuse_unwritable(options.json)
    loaded = load_model(open_model(settings, plugins), plugins, lambda done, total, what: None)
    try:
        report = measure_steps(options, loaded)
    finally:
        loaded.engine.close()
    for line in report_lines(report):
        console.print(line)
    console.print(report_table(report))
    for line in limit_lines(report):
        console.print(line, soft_wrap=True)
    if options.json is not None:
        write_json(options.json, report_json(report))
    return 0


def measure_steps(options: StepSettings, loaded: LoadedModel) -> StepReport:
    """All cases that fit the engine; the bandwidth of host memory for engines on it."""
    opened, capabilities = loaded.opened, loaded.engine.capabilities
    device, gguf = opened.device, opened.gguf
    rig = Rig(options, loaded, Stopwatch(_waiter(device)))
    bandwidth: dict[int, float] = {}
    if device.kind == "cpu":
        bandwidth = read_bandwidth(step_bytes(gguf, 1), (1, 2))
    rates = _rates(loaded.ops.programs, buffer_bytes(step_bytes(gguf, 1)))
    fastest = max((*bandwidth.values(), rates.read_bytes if rates else 0.0))
    cases: list[StepCase] = []
    skipped: list[str] = []
    room = min(capabilities.max_context, loaded.pool.tokens)
    spare = 2 * capabilities.block_size + capabilities.max_draft
    with watched(rig.watch, loaded.ops.programs):
        for rows in options.rows:
            length = _CONTEXT_TOKENS + rig.room_for(_UNCOUNTED + options.steps + _PROFILED) + spare
            if rows > capabilities.max_slots:
                skipped.append(f"decode {rows}: there are {capabilities.max_slots} slots")
            elif length > capabilities.max_context or rows * length > loaded.pool.tokens:
                skipped.append(f"decode {rows}: {rows} x {length} tokens of cache are not there")
            else:
                runs, profiled, tokens = _decode(rig, rows, options.steps)
                limit_ms = 1e3 * step_bytes(gguf, rows) / fastest if fastest else None
                work = {name: tuple(calls) for name, calls in rig.watch.work.items()}
                name = f"decode {rows}"
                cases.append(
                    _case(name, runs, profiled, tokens=tokens, limit_ms=limit_ms, work=work)
                )
        for length in options.prefill:
            if length + spare > room:
                skipped.append(f"prefill {length}: there is room for {room} tokens")
            else:
                cases.append(_case(f"prefill {length}", *_prefill(rig, length), tokens=length))
    return StepReport(
        model=readable(gguf.path.name),
        engine=opened.spec.name,
        device=str(device),
        modes=loaded.ops.modes,
        ops_from=ops_source(loaded.ops.programs),
        threads=torch.get_num_threads(),
        weight_bytes=step_bytes(gguf, 1),
        bandwidth=bandwidth,
        rates=rates,
        cases=cases,
        skipped=skipped,
    )


def _rates(programs: Sequence[Program], nbytes: int) -> Rates | None:
    """What the provider of a replayed program measures of the device."""
    for program in programs:
        if isinstance(program.run, Replay) and isinstance(program.run.compiled, Bounded):
            return program.run.compiled.rates(nbytes)
    return None


def _waiter(device: Device) -> Callable[[], None]:
    return (lambda: None) if device.kind == "cpu" else torch.cuda.synchronize


def _decode(rig: Rig, rows: int, steps: int) -> tuple[Runs, Runs, float]:
    """`steps` runs of one step each, in which `rows` slots decode, some more for ops before them,
    so that no limit is one of longer contexts than were measured, and tokens per step."""
    most = rig.room_for(_UNCOUNTED + steps + _PROFILED)
    streams = [rig.submit(_CONTEXT_TOKENS, max_tokens=most) for _ in range(rows)]
    while not all(stream.request.generated for stream in streams):
        rig.step()
    for _ in range(_UNCOUNTED):
        rig.step()
    profiled = [[rig.step(by_op=True)] for _ in range(_PROFILED)]
    before = sum(len(stream.request.generated) for stream in streams)
    runs = [[rig.step()] for _ in range(steps)]
    made = sum(len(stream.request.generated) for stream in streams) - before
    rig.finish(streams)
    return runs, profiled, made / steps


def _prefill(rig: Rig, length: int) -> tuple[Runs, Runs]:
    """Runs from a prompt to its first token, after one that is not counted, and one for ops."""

    def run(*, by_op: bool = False) -> list[Parts]:
        stream = rig.submit(length, max_tokens=rig.room_for(1))
        parts = []
        while not stream.request.generated:
            parts.append(rig.step(by_op=by_op))
        rig.finish([stream])
        return parts

    run()
    return [run() for _ in range(_PREFILLS)], [run(by_op=True)]


def _case(
    name: str,
    runs: Runs,
    profiled: Runs,
    *,
    tokens: float,
    limit_ms: float | None = None,
    work: Mapping[str, tuple[Work, ...]] = NO_WORK,
) -> StepCase:
    """Medians over the runs of the sums over their steps; `profiled` says where ops' time goes."""
    phases = [_sums(phases for phases, _ in run) for run in runs]
    for run in phases:
        run["other"] = run["execute"] - run["kernels"] - run["sample"]
    ops = [_sums(ops for _, ops in run) for run in profiled]
    return StepCase(
        name=name,
        tokens=tokens,
        steps=len(runs[0]),
        runs=len(runs),
        phases_ms={phase: _median_ms(phases, phase) for phase in PHASES},
        ops_ms={op: _median_ms(ops, op) for op in ops[0]},
        total_ms=_median_ms(phases, "step") + _median_ms(phases, "deliver"),
        limit_ms=limit_ms,
        work=work,
    )


def _sums(parts: Iterable[Seconds]) -> Counter[str]:
    total: Counter[str] = Counter()
    for seconds in parts:
        total.update(seconds)
    return total


def _median_ms(runs: Sequence[Counter[str]], name: str) -> float:
    return 1e3 * statistics.median(run[name] for run in runs)
