"""How an engine's forward pass runs: replayed by a provider if one can, else op by op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

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


@runtime_checkable
class Profiled(Protocol):
    """What a compiled recording may offer beside being called: where its time goes."""

    def profile(self, batch: PackedBatch) -> Mapping[str, float]:
        """Run the batch once for the clock alone; seconds by op name, or by names of fused parts.

        Called right before the call that counts, on the same batch. It may write the caches at the
        batch's rows, as that call will do again; caches that a call moves on from what they hold,
        such as recurrent state, must be as they were.
        """
        raise AssertionError("a protocol is never called")


class Work(NamedTuple):
    """What one call of an op cannot do without: bytes of weights and of the KV cache to read, of
    recurrent state to read and to write, and operations (a product and a sum are two)."""

    read_bytes: int
    int8_operations: int = 0
    float_operations: int = 0


class Rates(NamedTuple):
    """What a device does at best in a second, as measured."""

    read_bytes: float
    int8_operations: float
    float_operations: float

    def seconds(self, work: Work) -> float:
        """The limit of a call: reading and computing go on at once, so the longer of them."""
        return max(self._reading(work), self._computing(work))

    def seconds_in_turn(self, work: Work) -> float:
        """What a call takes that reads first, and then computes."""
        return self._reading(work) + self._computing(work)

    def _reading(self, work: Work) -> float:
        return work.read_bytes / self.read_bytes

    def _computing(self, work: Work) -> float:
        return (
            work.int8_operations / self.int8_operations
            + work.float_operations / self.float_operations
        )


@runtime_checkable
class Bounded(Protocol):
    """What a compiled recording may offer further: how fast it could be."""

    def work(self, batch: PackedBatch) -> Mapping[str, tuple[Work, ...]]:
        """By the names of `profile`, what each call must do for the batch."""
        raise AssertionError("a protocol is never called")

    def rates(self, nbytes: int) -> Rates:
        """Measure the device, with weights of so many bytes in mind. Takes well under a second."""
        raise AssertionError("a protocol is never called")


@runtime_checkable
class Expectant(Protocol):
    """What a compiled recording may offer to be told."""

    def expect(self) -> None:
        """A call follows in a moment. Called on any thread; the call may fail to come."""
        raise AssertionError("a protocol is never called")


@runtime_checkable
class Described(Protocol):
    """What a compiled recording may offer for the start screen and `/props`."""

    @property
    def description(self) -> str:
        """How it replays, in a few words."""
        raise AssertionError("a protocol is never called")


class Replay:
    """A compiled recording as engines call it; `around` lets a profiler run it instead."""

    __slots__ = ("around", "compiled")

    def __init__(self, compiled: Callable[[PackedBatch], Any]) -> None:
        self.compiled = compiled
        self.around: Callable[[Callable[[PackedBatch], Any], PackedBatch], Any] | None = None

    def __call__(self, batch: PackedBatch) -> Any:
        if self.around is None:
            return self.compiled(batch)
        return self.around(self.compiled, batch)


@dataclass(frozen=True, slots=True)
class Program:
    """A forward pass ready to run, on any thread. `mode` says how it runs, and why, for people."""

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
        return Program(_eager(forward), "op by op: no provider replays recordings on this device")
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
            compiled = recorder.compile(recording)
            mode = f"replayed by {recorder.provider}"
            if isinstance(compiled, Described):
                mode = f"{mode}: {compiled.description}"
            return Program(Replay(compiled), mode)
        except RecordingRefused as refusal:
            refusals.append(f"{recorder.provider}: {refusal}")
    return Program(_eager(forward), f"op by op: {'; '.join(refusals)}")


def _eager(forward: Forward) -> Forward:
    return torch.inference_mode()(forward)
