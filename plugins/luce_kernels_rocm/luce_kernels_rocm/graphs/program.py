"""Compiles a recording into captured graphs, one for each shape of step that occurs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from luce_core.batch.packed import PackedBatch
from luce_core.ops.record import BufferRef, Recording
from luce_core.ops.spec import Rows
from luce_core.ops.symbols import RecordingRefused
from luce_kernels_rocm.graphs.backend import Backend, DeviceGraphs
from luce_kernels_rocm.graphs.inputs import GraphInputs
from luce_kernels_rocm.graphs.shape import GraphShape, Limits, decode_shapes, shape_of
from luce_kernels_rocm.graphs.steps import Steps

log = logging.getLogger(__name__)

# Shapes beyond these run op by op: a graph takes memory of the device.
MOST_GRAPHS = 128


def compile_recording(recording: Recording, backend: Backend | None = None) -> GraphProgram:
    """Captures the plain decode steps at once, so that a device which cannot do it is known at
    load. RecordingRefused says why; the engine then runs eagerly."""
    if not recording.calls:
        raise RecordingRefused("the step", "it calls no op")
    device = recording.calls[0].op.device
    graphs = backend or DeviceGraphs(device)
    graphs.check(recording)
    program = GraphProgram(recording, graphs, device)
    program.capture_decode_steps()
    return program


class GraphProgram:
    """A recording with its graphs. Called on one thread; what it returns is valid until the next
    call. A step that fits no graph runs op by op, in the same memory."""

    def __init__(self, recording: Recording, backend: Backend, device: torch.device) -> None:
        segments = recording.max_segments
        if not _has_segment_rows(recording):
            # Null rows bring segments of their own.
            segments = recording.max_rows
        self._limits = Limits.of(recording, segments=segments)
        self._steps = Steps(recording, max_segments=segments, device=device)
        self._inputs = GraphInputs(recording, self._limits, device)
        self._backend = backend
        self._replays: dict[GraphShape, Callable[[], None] | None] = {}

    @property
    def description(self) -> str:
        """For the start screen and `/props`."""
        counts = ", ".join(str(shape.rows) for shape in decode_shapes(self._limits))
        how = f"a graph for each shape of decode step (rows {counts}), op by op with prompt rows"
        return "; ".join(filter(None, (how, self._steps.description)))

    def __call__(self, batch: PackedBatch) -> Any:
        shape = shape_of(batch, self._limits)
        replay = None if shape is None else self._replay_of(shape)
        if shape is None or replay is None:
            return self._steps(batch)
        self._inputs.fill(batch, shape)
        replay()
        return self._steps.results(batch)

    def capture_decode_steps(self) -> None:
        """RecordingRefused if the device does not capture them."""
        for shape in decode_shapes(self._limits):
            try:
                self._replays[shape] = self._capture(shape)
            except Exception as error:  # whatever the driver or the compiler raises
                reason = f"its graph of {shape.rows} rows cannot be captured: {error}"
                raise RecordingRefused("the step", reason) from error

    def _replay_of(self, shape: GraphShape) -> Callable[[], None] | None:
        """The graph of a shape, captured when it first occurs; None if it is to run op by op."""
        if shape not in self._replays:
            if len(self._replays) == MOST_GRAPHS:
                return None
            try:
                self._replays[shape] = self._capture(shape)
            except Exception as error:  # as above; the step itself has not run yet
                log.warning("steps of %s run op by op: %s", shape, error)
                self._replays[shape] = None
        return self._replays[shape]

    def _capture(self, shape: GraphShape) -> Callable[[], None]:
        batch = self._inputs.batch(shape)
        self._inputs.fill_null(shape)
        with torch.inference_mode():
            return self._backend.capture(lambda: self._steps(batch))


def _has_segment_rows(recording: Recording) -> bool:
    refs = [ref for call in recording.calls for ref in (*call.args, call.out)]
    return any(isinstance(ref, BufferRef) and ref.rows is Rows.SEGMENTS for ref in refs)
