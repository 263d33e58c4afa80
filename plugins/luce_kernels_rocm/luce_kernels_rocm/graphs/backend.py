"""Capturing a graph on a GPU. torch calls HIP graphs by the same names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from luce_core.ops.host_op import HOST
from luce_core.ops.kernel import REFERENCE
from luce_core.ops.record import Recording
from luce_core.ops.symbols import RecordingRefused


class Backend(Protocol):
    """What captures; tests have one that needs no GPU."""

    def check(self, recording: Recording) -> None:
        """RecordingRefused names an op that cannot be captured, before anything is run."""
        raise AssertionError("a protocol is never called")

    def capture(self, run: Callable[[], object]) -> Callable[[], None]:
        """What repeats `run` on the same memory. `run` is called twice: for what happens at a
        first time only, such as compiling, and to be captured. Raises what the driver raises."""
        raise AssertionError("a protocol is never called")


class DeviceGraphs:
    """Graphs of one device. They share the memory that kernels take for themselves: no graph's
    is needed once it has run."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = None
        self._pool: Any = None

    def check(self, recording: Recording) -> None:
        for call in recording.calls:
            if call.op.kernel.provider == HOST:
                raise RecordingRefused(
                    call.op.spec.name,
                    "the host does it in the middle of a step, which is one graph",
                )
            if call.op.kernel.provider == REFERENCE:
                raise RecordingRefused(
                    call.op.spec.name, "the reference waits for the device, which no graph can hold"
                )

    def capture(self, run: Callable[[], object]) -> Callable[[], None]:
        with torch.cuda.device(self._device):
            if self._stream is None:
                self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            here = torch.cuda.current_stream()
            self._stream.wait_stream(here)
            with torch.cuda.stream(self._stream):
                run()
            here.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(
                graph,
                pool=self._pool,
                stream=self._stream,
                capture_error_mode="thread_local",  # other threads are not the graph's business
            ):
                run()
            self._pool = graph.pool()
        replay: Callable[[], None] = graph.replay
        return replay
