"""How an engine's forward pass runs: replayed by a provider if one can, else op by op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from luce_core.batch.packed import PackedBatch
from luce_core.ops.record import Recording, record
from luce_core.ops.symbols import RecordingRefused

Forward = Callable[[Any], Any]
# Compiles a recording into a callable that takes a PackedBatch; RecordingRefused if it cannot.
Compile = Callable[[Recording], Callable[[PackedBatch], Any]]


@dataclass(frozen=True, slots=True)
class Recorder:
    """A provider's offer to replay recordings on devices of one kind."""

    provider: str
    device: str
    compile: Compile


@dataclass(frozen=True, slots=True)
class Program:
    """A forward pass ready to run. `mode` says how it runs, and why, for people."""

    run: Callable[[PackedBatch], Any]
    mode: str


def build_program(
    forward: Forward,
    recorders: tuple[Recorder, ...],
    *,
    max_rows: int,
    max_logits: int,
    max_segments: int,
    max_blocks: int,
) -> Program:
    """Record `forward` and let the first recorder that can compile it; eager otherwise.

    Called once after the caches exist. The outcome never changes a result: replay and eager
    agree bit for bit.
    """
    if not recorders:
        return Program(forward, "op by op: no provider replays recordings on this device")
    refusals = []
    for recorder in recorders:
        try:
            recording = record(
                forward,
                max_rows=max_rows,
                max_logits=max_logits,
                max_segments=max_segments,
                max_blocks=max_blocks,
            )
            return Program(recorder.compile(recording), f"replayed by {recorder.provider}")
        except RecordingRefused as refusal:
            refusals.append(f"{recorder.provider}: {refusal}")
    return Program(forward, f"op by op: {'; '.join(refusals)}")
